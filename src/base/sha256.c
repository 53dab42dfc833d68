#include "base/sha256.h"

#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdlib.h>

struct sha256 {
    EVP_MD_CTX *ctx;
};

static void to_hex(const unsigned char *digest, char out[SHA256_HEX])
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < SHA256_BYTES; i++) {
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
    h->ctx = EVP_MD_CTX_new();
    if (!h->ctx || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1) {
        sha256_free(h);
        return NULL;
    }
    return h;
}

void sha256_update(struct sha256 *h, const void *bytes, size_t n)
{
    EVP_DigestUpdate(h->ctx, bytes, n);
}

void sha256_hex(struct sha256 *h, char out[SHA256_HEX])
{
    unsigned char digest[SHA256_BYTES];

    EVP_DigestFinal_ex(h->ctx, digest, NULL);
    EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL);
    to_hex(digest, out);
}

void sha256_free(struct sha256 *h)
{
    if (!h)
        return;
    EVP_MD_CTX_free(h->ctx);
    free(h);
}

void sha256_of(const void *bytes, size_t n, unsigned char out[SHA256_BYTES])
{
    SHA256(bytes, n, out);
}

void sha256_hex_of(const void *bytes, size_t n, char out[SHA256_HEX])
{
    unsigned char digest[SHA256_BYTES];

    SHA256(bytes, n, digest);
    to_hex(digest, out);
}
