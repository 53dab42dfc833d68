/* JSON without memory: each allocation under a text fails, once or for good, and what comes of it
 * is an error and never a part of the value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/nomem.h"
#include "no_memory.h"

/* One try with the n-th allocation failing. False: there are fewer. */
static bool fails_whole(const char *text, const json_t *whole, long n)
{
    struct err e = {0};
    json_t *v;

    nomem_forget();
    met = false;
    until_failure = n;
    v = json_parse(text, strlen(text), &e);
    until_failure = -1;
    assert_int_equal(nomem_noted(), met);
    if (met)
        assert_int_equal(e.code, ERR_NOMEM);
    if (met)
        assert_null(v);
    else
        assert_true(json_equal(v, whole));
    json_decref(v);
    return met;
}

static void each_allocation_fails(const char *text, long step)
{
    struct err e = {0};
    json_t *whole = json_parse(text, strlen(text), &e);
    long n;

    assert_non_null(whole);
    for (int i = 0; i < 2; i++) {
        lasting = i;
        for (n = 0; fails_whole(text, whole, n); n += step)
            ;
        assert_true(n > 4);
    }
    lasting = false;
    json_decref(whole);
}

static void values_of_every_kind_are_whole_or_not_there(void **state)
{
    (void)state;
    each_allocation_fails(
        "{\"name\": \"a\", \"list\": [1, 2.5, -1e300, [true, null, {}], [], 1,2,3,4,5,6,7,8,9,10],"
        " \"a key that is longer than the others, and longer than that, too\": \"a text of some"
        " length, \\u00e9\\ud83d\\ude00\\n, that the buffer of a token must grow for\", \"z\":"
        " {\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"j\":10}}",
        1);
}

/* The token buffer grows to 2 MB, over many pieces of the text. */
static void a_long_text_is_whole_or_not_there(void **state)
{
    enum { LONG = 1 << 20 };
    struct buf b = {0};

    (void)state;
    buf_add_str(&b, "[\"short\", \"");
    memset(buf_reserve(&b, LONG), 'x', LONG);
    b.len += LONG;
    buf_add_str(&b, "\", {\"a\": \"b\"}]");
    each_allocation_fails(buf_str(&b), 1);
    buf_release(&b);
}

static void many_small_values_are_whole_or_not_there(void **state)
{
    struct buf b = {0};

    (void)state;
    buf_add_char(&b, '[');
    for (int i = 0; i < 3000; i++)
        buf_printf(&b, "%s{\"k%d\":[%d,\"text number %d\",{}]}", i ? "," : "", i, i, i);
    buf_add_char(&b, ']');
    each_allocation_fails(buf_str(&b), 97);
    buf_release(&b);
}

static void a_list_that_lost_an_entry_is_noticed(void **state)
{
    json_t *list = json_array();

    (void)state;
    nomem_forget();
    until_failure = 0;
    json_array_append_new(list, json_string("a"));
    assert_int_equal(json_array_size(list), 0);
    assert_true(nomem_noted());
    nomem_forget();
    json_array_append_new(list, json_string("a"));
    assert_false(nomem_noted());
    json_decref(list);
}

static void a_text_that_is_malformed_is_told_as_that_after_a_failure(void **state)
{
    struct err e = {0};

    (void)state;
    nomem_forget();
    until_failure = 0;
    assert_null(json_parse("[1]", 3, &e));
    assert_int_equal(e.code, ERR_NOMEM);
    assert_null(json_parse("[1", 2, &e));
    assert_int_equal(e.code, ERR_FORMAT);
    assert_true(nomem_noted()); /* still: since the last forget */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_kind_are_whole_or_not_there),
        cmocka_unit_test(a_long_text_is_whole_or_not_there),
        cmocka_unit_test(many_small_values_are_whole_or_not_there),
        cmocka_unit_test(a_list_that_lost_an_entry_is_noticed),
        cmocka_unit_test(a_text_that_is_malformed_is_told_as_that_after_a_failure),
    };

    json_memory_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
