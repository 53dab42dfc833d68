/* base/uuid: canonical text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/err.h"
#include "base/uuid.h"

static void a_new_one_is_canonical_and_never_repeats(void **state)
{
    char a[UUID_TEXT], b[UUID_TEXT];
    struct err e = {0};

    (void)state;
    assert_int_equal(uuid_new(a, &e), 0);
    assert_int_equal(uuid_new(b, &e), 0);
    assert_true(uuid_valid(a));
    assert_int_equal(a[14], '4');
    assert_non_null(strchr("89ab", a[19]));
    assert_string_not_equal(a, b);
}

static void other_texts_are_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "x",
        "0123abcd-0123-4567-89ab-0123456789a",
        "0123abcd-0123-4567-89ab-0123456789abc",
        "0123ABCD-0123-4567-89ab-0123456789ab",
        "0123abcd00123-4567-89ab-0123456789ab",
        "0123abcd-0123-4567-89ab-0123456789ag",
    };

    (void)state;
    assert_true(uuid_valid("0123abcd-0123-4567-89ab-0123456789ab"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(uuid_valid(bad[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_one_is_canonical_and_never_repeats),
        cmocka_unit_test(other_texts_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
