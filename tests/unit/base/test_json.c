/* Text that cannot be a JSON string as it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/json.h"

static void a_string_with_a_nul_is_told_from_others(void **state)
{
    json_t *cut = json_stringn("a\0b", 3), *whole = json_string("a"), *none = json_null();

    (void)state;
    assert_true(json_holds_nul(cut));
    assert_false(json_holds_nul(whole));
    assert_false(json_holds_nul(none));
    assert_false(json_holds_nul(NULL));
    json_decref(cut);
    json_decref(whole);
}

static void bytes_that_are_not_utf8_become_question_marks(void **state)
{
    static const char *const texts[][2] = {
        {"", ""},
        {"caf\xc3\xa9", "caf\xc3\xa9"},
        {"caf\xe9 \xc3\xa9", "caf? \xc3\xa9"},
        {"cut \xe2\x82", "cut ??"},
        {"\xff", "?"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *v = json_repaired(texts[i][0]);

        assert_string_equal(json_string_value(v), texts[i][1]);
        json_decref(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_string_with_a_nul_is_told_from_others),
        cmocka_unit_test(bytes_that_are_not_utf8_become_question_marks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
