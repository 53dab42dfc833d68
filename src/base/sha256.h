/* base/sha256.h - SHA-256 through OpenSSL (its SHA-NI path). One object, one thread at a time. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>

struct sha256;

enum { SHA256_BYTES = 32, SHA256_HEX = 65 };
enum {
    SHA256_PIECE = 128 << 10
}; /* hashed in less than 0.1 ms: who hashes on a lent core looks up after it */

struct sha256 *sha256_new(void); /* NULL: out of memory */
void sha256_update(struct sha256 *h, const void *bytes, size_t n);
/* n bytes for each of two objects, in nearly the time of one where the processor has SHA-NI and
 * both are at the border of a 64-byte block; else one after the other. */
void sha256_update_pair(struct sha256 *a, const void *for_a, struct sha256 *b, const void *for_b,
                        size_t n);
/* Lower-case hex with NUL; the object starts over. */
void sha256_hex(struct sha256 *h, char out[SHA256_HEX]);
void sha256_free(struct sha256 *h); /* NULL is allowed */

void sha256_of(const void *bytes, size_t n, unsigned char out[SHA256_BYTES]);
void sha256_hex_of(const void *bytes, size_t n, char out[SHA256_HEX]);
#endif
