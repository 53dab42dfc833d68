/* The pull reader: what it reads is what the JSON parser reads, and what it refuses is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/json_scan.h"

static void strings_are_unescaped_as_the_parser_does(void **state)
{
    static const char *const texts[] = {
        "\"\"",
        "\"plain\"",
        "  \"a\\\"b\\\\c\\/d\\b\\f\\n\\r\\t\"",
        "\"\\u0041\\u00e9\\u20ac\\u0000z\"",
        "\"\\ud83d\\ude00\\uD83D\\uDE00\"",
        "\"\xc3\xa9\xf0\x9f\x98\x80\x7f\"",
    };
    struct buf got = {0};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err e = {0};
        struct json_scan s;
        json_t *want = json_parse(texts[i], strlen(texts[i]), &e);

        assert_non_null(want);
        json_scan_init(&s, texts[i], strlen(texts[i]));
        assert_int_equal(json_scan_string(&s, &got), 0);
        assert_ptr_equal(s.p, s.end);
        assert_int_equal(got.len, json_string_length(want));
        assert_memory_equal(buf_str(&got), json_string_value(want), got.len);
        json_decref(want);
    }
    buf_release(&got);
}

static void strings_that_are_not_json_are_refused(void **state)
{
    static const char *const texts[] = {"",
                                        "x",
                                        "\"",
                                        "\"a",
                                        "\"\\",
                                        "\"\\x\"",
                                        "\"\\u12\"",
                                        "\"\\u12g4\"",
                                        "\"\\ud800\"",
                                        "\"\\udc00\"",
                                        "\"\\ud800\\u0041\"",
                                        "\"a\nb\"",
                                        "\"\\ud800\\",
                                        "\"\\u"};
    struct buf got = {0};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct json_scan s;

        json_scan_init(&s, texts[i], strlen(texts[i]));
        if (json_scan_string(&s, &got) == 0)
            fail_msg("%s was read", texts[i]);
    }
    buf_release(&got);
}

static int read_int(const char *text, int64_t *out)
{
    struct json_scan s;

    json_scan_init(&s, text, strlen(text));
    return json_scan_int(&s, out);
}

static void whole_numbers_are_read_to_their_limits(void **state)
{
    static const char *const refused[] = {"",
                                          "-",
                                          "01",
                                          "-01",
                                          "1.0",
                                          "1e3",
                                          "+1",
                                          "a",
                                          "9223372036854775808",
                                          "-9223372036854775809"};
    int64_t v;

    (void)state;
    assert_true(read_int("0", &v) == 0 && v == 0);
    assert_true(read_int(" -17,", &v) == 0 && v == -17);
    assert_true(read_int("9223372036854775807", &v) == 0 && v == INT64_MAX);
    assert_true(read_int("-9223372036854775808", &v) == 0 && v == INT64_MIN);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (read_int(refused[i], &v) == 0)
            fail_msg("%s was read", refused[i]);
}

static void members_are_found_behind_values_of_every_kind(void **state)
{
    static const char text[] =
        " { \"a\" : {\"x\":[1,{\"k\":\"}]\\\"\"}]} , \"b\":\"]}\", \"c\":true,\n"
        "\"d\":[[],[{}]], \"\\u006bey\" : 7 } ";
    struct json_scan s;
    int64_t v = 0;

    (void)state;
    json_scan_init(&s, text, sizeof text - 1);
    assert_int_equal(json_scan_member(&s, "key"), 1);
    assert_true(json_scan_int(&s, &v) == 0 && v == 7);
    json_scan_init(&s, text, sizeof text - 1);
    assert_int_equal(json_scan_member(&s, "x"), 0); /* only of this object */
    json_scan_init(&s, "{}", 2);
    assert_int_equal(json_scan_member(&s, "x"), 0);
    json_scan_init(&s, "[1]", 3);
    assert_int_equal(json_scan_member(&s, "x"), -1);
    json_scan_init(&s, "{\"a\":[1", 7);
    assert_int_equal(json_scan_member(&s, "x"), -1);
}

static void a_failure_tells_the_byte(void **state)
{
    struct json_scan s;
    struct err e = {0};

    (void)state;
    json_scan_init(&s, "  x", 3);
    assert_int_equal(json_scan_take(&s, '{'), -1);
    assert_int_equal(json_scan_fail(&s, "here", &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.msg, "here: malformed JSON at byte 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_are_unescaped_as_the_parser_does),
        cmocka_unit_test(strings_that_are_not_json_are_refused),
        cmocka_unit_test(whole_numbers_are_read_to_their_limits),
        cmocka_unit_test(members_are_found_behind_values_of_every_kind),
        cmocka_unit_test(a_failure_tells_the_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
