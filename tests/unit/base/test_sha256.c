/* SHA-256: known digests, and pairs of messages beside one after the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"

enum { BYTES = 4096 };

static void fill(unsigned char *bytes, unsigned key)
{
    for (unsigned i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)((i * 2654435761u + key * 40503u) >> 13);
}

static void known_messages_have_their_digests(void **state)
{
    static const struct {
        const char *text, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    struct sha256 *h = sha256_new();
    char hex[SHA256_HEX];

    (void)state;
    assert_non_null(h);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        sha256_update(h, known[i].text, strlen(known[i].text));
        sha256_hex(h, hex);
        assert_string_equal(hex, known[i].hex);
        sha256_hex_of(known[i].text, strlen(known[i].text), hex);
        assert_string_equal(hex, known[i].hex);
    }
    sha256_free(h);
}

/* Both objects get `before` bytes alone, n as a pair, then the rest alone. */
static void check_pair(const unsigned char *x, const unsigned char *y, size_t before_x,
                       size_t before_y, size_t n)
{
    struct sha256 *a = sha256_new(), *b = sha256_new();
    char want[SHA256_HEX], got[SHA256_HEX];

    assert_true(a && b);
    sha256_update(a, x, before_x);
    sha256_update(b, y, before_y);
    sha256_update_pair(a, x + before_x, b, y + before_y, n);
    sha256_update(a, x + before_x + n, BYTES - before_x - n);
    sha256_update(b, y + before_y + n, BYTES - before_y - n);
    sha256_hex(a, got);
    sha256_hex_of(x, BYTES, want);
    assert_string_equal(got, want);
    sha256_hex(b, got);
    sha256_hex_of(y, BYTES, want);
    assert_string_equal(got, want);
    sha256_free(a);
    sha256_free(b);
}

static void a_pair_is_what_two_are_alone(void **state)
{
    static const size_t before[] = {0, 1, 63, 64, 128, 200},
                        lengths[] = {0, 1, 55, 63, 64, 65, 128, 640, 1000, 2048, 3000};
    unsigned char x[BYTES], y[BYTES];

    (void)state;
    fill(x, 1);
    fill(y, 2);
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
        for (size_t k = 0; k < sizeof before / sizeof before[0]; k++)
            for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
                check_pair(x, y, before[i], before[k], lengths[l]);
}

static void pairs_may_follow_one_another_and_change_partners(void **state)
{
    unsigned char text[3][BYTES];
    struct sha256 *h[3];
    char want[SHA256_HEX], got[SHA256_HEX];

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        fill(text[i], i);
        h[i] = sha256_new();
        assert_non_null(h[i]);
    }
    for (size_t at = 0; at < BYTES; at += 512) {
        size_t alone = at / 512 % 3, p = (alone + 1) % 3, q = (alone + 2) % 3;

        sha256_update(h[alone], text[alone] + at, 512);
        sha256_update_pair(h[p], text[p] + at, h[q], text[q] + at, 512);
    }
    for (int i = 0; i < 3; i++) {
        sha256_hex(h[i], got);
        sha256_hex_of(text[i], BYTES, want);
        assert_string_equal(got, want);
        sha256_free(h[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_messages_have_their_digests),
        cmocka_unit_test(a_pair_is_what_two_are_alone),
        cmocka_unit_test(pairs_may_follow_one_another_and_change_partners),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
