/* UTF-8: every scalar value, and what is not one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"

static void every_scalar_value_is_written_and_accepted(void **state)
{
    (void)state;
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        char out[4];
        size_t n;

        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        n = utf8_encode(c, out);
        assert_int_equal(n, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_sequence((unsigned char *)out, (unsigned char *)out + n), n);
        assert_false(n > 1 && utf8_valid(out, n - 1));
    }
}

static void what_is_no_scalar_value_is_refused(void **state)
{
    static const char *const bad[] = {
        "\x80",         "\xbf",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xff",         "\xc3",         "\xe2\x82",         "\xf0\x9f\x98",     "a\xc3(",
        "\xe2(\xa1"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(utf8_valid(bad[i], strlen(bad[i])));
    assert_true(utf8_valid("", 0));
    assert_true(utf8_valid("a\0b", 3));
}

static void what_is_malformed_is_repaired(void **state)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"\xc3\xa9\xe2\x82\xac", "\xc3\xa9\xe2\x82\xac"},
        {"cut \xe2\x82", "cut ??"},
        {"\xff\xc3\xa9\xed\xa0\x80.", "?\xc3\xa9???."},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];

        strcpy(text, cases[i].from);
        utf8_repair(text);
        assert_string_equal(text, cases[i].to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_value_is_written_and_accepted),
        cmocka_unit_test(what_is_no_scalar_value_is_refused),
        cmocka_unit_test(what_is_malformed_is_repaired),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
