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

/* ---- memory that was set aside ---- */

static void what_is_set_aside_serves_a_text_and_values_once(void **state)
{
    struct buf b = {0};
    json_t *v;

    (void)state;
    nomem_forget();
    assert_true(nomem_set_aside(NOMEM_ANSWER));
    until_failure = 0;
    v = json_pack("{s:[s, i, n]}", "list", "a", 1);
    assert_non_null(v);
    assert_int_equal(until_failure, -1); /* one has failed */
    assert_false(nomem_noted());
    until_failure = 0; /* it is used up */
    buf_add_str(&b, "text");
    assert_true(b.failed && nomem_noted());
    json_decref(v);
    buf_release(&b);
}

static void nothing_is_ready_after_a_failure_until_it_is_forgotten(void **state)
{
    (void)state;
    nomem_note();
    assert_false(nomem_set_aside(NOMEM_ANSWER));
    nomem_forget();
    assert_true(nomem_set_aside(NOMEM_ANSWER));
    nomem_let_go();
    until_failure = 0;
    assert_false(nomem_set_aside(NOMEM_ANSWER));
    assert_false(nomem_noted()); /* nothing is missing yet */
    assert_true(nomem_set_aside(NOMEM_ANSWER));
    nomem_let_go();
}

static void what_is_larger_than_what_is_set_aside_leaves_it_there(void **state)
{
    struct buf b = {0};

    (void)state;
    nomem_forget();
    assert_true(nomem_set_aside(1000));
    until_failure = 0;
    assert_null(buf_reserve(&b, 5000));
    buf_reset(&b);
    until_failure = 0;
    assert_non_null(buf_reserve(&b, 500));
    assert_true(nomem_set_aside(1000) || nomem_noted()); /* anew: the one before is given up */
    nomem_let_go();
    buf_release(&b);
}

static void more_is_set_aside_where_less_was(void **state)
{
    struct buf b = {0};

    (void)state;
    nomem_forget();
    assert_true(nomem_set_aside(1000));
    assert_true(nomem_set_aside(100000));
    assert_true(nomem_set_aside(1000));
    until_failure = 0;
    assert_non_null(buf_reserve(&b, 50000));
    nomem_let_go();
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_kind_are_whole_or_not_there),
        cmocka_unit_test(a_long_text_is_whole_or_not_there),
        cmocka_unit_test(many_small_values_are_whole_or_not_there),
        cmocka_unit_test(a_list_that_lost_an_entry_is_noticed),
        cmocka_unit_test(a_text_that_is_malformed_is_told_as_that_after_a_failure),
        cmocka_unit_test(what_is_set_aside_serves_a_text_and_values_once),
        cmocka_unit_test(nothing_is_ready_after_a_failure_until_it_is_forgotten),
        cmocka_unit_test(what_is_larger_than_what_is_set_aside_leaves_it_there),
        cmocka_unit_test(more_is_set_aside_where_less_was),
    };

    json_memory_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
