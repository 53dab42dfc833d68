#include "base/sha256.h"

/* The newer interface hides the state, which a pair of messages needs. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/sha256_ni.h"

struct sha256 {
    SHA256_CTX ctx;
    bool pairs;
};

static void to_hex(const unsigned char *digest, char out[SHA256_HEX])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < SHA256_BYTES; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[SHA256_HEX - 1] = 0;
}

struct sha256 *sha256_new(void)
{
    struct sha256 *h = calloc(1, sizeof *h);

    if (!h)
        return NULL;
    SHA256_Init(&h->ctx);
    h->pairs = sha256_ni_usable();
    return h;
}

void sha256_update(struct sha256 *h, const void *bytes, size_t n)
{
    SHA256_Update(&h->ctx, bytes, n);
}

static void count_bytes(SHA256_CTX *c, size_t n)
{
    uint64_t bits = ((uint64_t)c->Nh << 32 | c->Nl) + (uint64_t)n * 8;

    c->Nl = (SHA_LONG)bits;
    c->Nh = (SHA_LONG)(bits >> 32);
}

void sha256_update_pair(struct sha256 *a, const void *for_a, struct sha256 *b, const void *for_b,
                        size_t n)
{
    uint32_t *const state[2] = {a->ctx.h, b->ctx.h};
    const unsigned char *const bytes[2] = {for_a, for_b};
    size_t blocks = a->pairs && a->ctx.num == 0 && b->ctx.num == 0 ? n / SHA256_CBLOCK : 0;
    size_t done = blocks * SHA256_CBLOCK;

    if (blocks > 0) {
        sha256_ni_pair(state, bytes, blocks);
        count_bytes(&a->ctx, done);
        count_bytes(&b->ctx, done);
    }
    sha256_update(a, bytes[0] + done, n - done);
    sha256_update(b, bytes[1] + done, n - done);
}

void sha256_hex(struct sha256 *h, char out[SHA256_HEX])
{
    unsigned char digest[SHA256_BYTES];

    SHA256_Final(digest, &h->ctx);
    SHA256_Init(&h->ctx);
    to_hex(digest, out);
}

void sha256_free(struct sha256 *h)
{
    free(h);
}

/* Not SHA256(): that one takes memory, and without it leaves `out` as it was. */
void sha256_of(const void *bytes, size_t n, unsigned char out[SHA256_BYTES])
{
    SHA256_CTX c;

    SHA256_Init(&c);
    SHA256_Update(&c, bytes, n);
    SHA256_Final(out, &c);
}

void sha256_hex_of(const void *bytes, size_t n, char out[SHA256_HEX])
{
    unsigned char digest[SHA256_BYTES];

    sha256_of(bytes, n, digest);
    to_hex(digest, out);
}
