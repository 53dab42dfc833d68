/* service/secret.h - ids that prove something: 32 random bytes as URL-safe base64.
 *
 * The text leaves the server once; what stays is its SHA-256, compared in constant time. Logs carry
 * the first 8 hex digits of the digest. */
#ifndef SERVICE_SECRET_H
#define SERVICE_SECRET_H

#include <stdbool.h>

#include "base/sha256.h"

struct err;

enum {
    SECRET_CHARS = 43, /* of the random part */
    SECRET_MAX = 64,   /* with a short prefix and the NUL */
    SECRET_REF = 9,
};

/* `prefix` (at most 16 characters, may be "") and 43 characters into out. 0 or -1. */
int secret_new(const char *prefix, char out[SECRET_MAX], struct err *e);
void secret_digest(const char *text, unsigned char out[SHA256_BYTES]);
bool secret_equal(const unsigned char a[SHA256_BYTES], const unsigned char b[SHA256_BYTES]);
void secret_ref(const unsigned char digest[SHA256_BYTES], char out[SECRET_REF]);
#endif
