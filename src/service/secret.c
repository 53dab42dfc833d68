#include "service/secret.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

enum { SECRET_BYTES = 32 };

int secret_new(const char *prefix, char out[SECRET_MAX], struct err *e)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    unsigned char raw[SECRET_BYTES + 1] = {0}; /* one zero byte fills the last group */
    size_t at = (size_t)snprintf(out, SECRET_MAX - SECRET_CHARS, "%s", prefix);
    size_t end = at + SECRET_CHARS;

    if (RAND_bytes(raw, SECRET_BYTES) != 1)
        return err_set(e, ERR_IO, "no random bytes for an id");
    for (size_t i = 0; i < SECRET_BYTES; i += 3) {
        unsigned v = (unsigned)raw[i] << 16 | (unsigned)raw[i + 1] << 8 | raw[i + 2];

        for (int shift = 18; shift >= 0 && at < end; shift -= 6)
            out[at++] = digits[v >> shift & 63];
    }
    out[at] = '\0';
    OPENSSL_cleanse(raw, sizeof raw);
    return 0;
}

void secret_digest(const char *text, unsigned char out[SHA256_BYTES])
{
    sha256_of(text, strlen(text), out);
}

bool secret_equal(const unsigned char a[SHA256_BYTES], const unsigned char b[SHA256_BYTES])
{
    return CRYPTO_memcmp(a, b, SHA256_BYTES) == 0;
}

void secret_ref(const unsigned char digest[SHA256_BYTES], char out[SECRET_REF])
{
    snprintf(out, SECRET_REF, "%02x%02x%02x%02x", digest[0], digest[1], digest[2], digest[3]);
}
