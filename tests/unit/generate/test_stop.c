#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "generate/stop.h"

#define STOP(s)          \
    {                    \
        s, sizeof(s) - 1 \
    }

/* Feeds the text in pieces of `size` bytes; what came out, owned. */
static char *run(const struct stop_string *strings, int n, const char *text, size_t size,
                 bool *found)
{
    struct stop_search s;
    struct buf out = {0};
    size_t len = strlen(text);

    stop_init(&s, strings, n);
    *found = false;
    for (size_t at = 0; at < len && !*found; at += size)
        *found = stop_push(&s, text + at, len - at < size ? len - at : size, &out);
    stop_flush(&s, &out);
    stop_release(&s);
    buf_add(&out, "", 0);
    return buf_take(&out);
}

static void any_cut_gives_the_text_before_the_stop(void **state)
{
    static const struct stop_string stops[] = {STOP("end."), STOP("\n\n")};
    static const char text[] = "the e, the en, the end. and more\n\n";
    bool found;

    (void)state;
    for (size_t size = 1; size <= sizeof text; size++) {
        char *got = run(stops, 2, text, size, &found);

        assert_true(found);
        assert_string_equal(got, "the e, the en, the ");
        free(got);
    }
}

static void the_earliest_of_several_wins_whatever_their_order(void **state)
{
    static const struct stop_string stops[] = {STOP("xyz"), STOP("b")};
    bool found;
    char *got = run(stops, 2, "aabxyz", 6, &found);

    (void)state;
    assert_string_equal(got, "aa");
    free(got);
}

static void the_stop_that_is_complete_first_wins_at_any_cut(void **state)
{
    static const struct stop_string stops[] = {STOP("bcde"), STOP("cd"), STOP("bcd")};
    bool found;

    (void)state;
    for (size_t size = 1; size < 7; size++) {
        char *got = run(stops, 3, "abcdef", size, &found);

        assert_string_equal(got, "a");
        free(got);
    }
}

static void a_beginning_that_never_completes_is_shown_at_the_end(void **state)
{
    static const struct stop_string stops[] = {STOP("abcd")};
    bool found;

    (void)state;
    for (size_t size = 1; size < 8; size++) {
        char *got = run(stops, 1, "ababcab abc", size, &found);

        assert_false(found);
        assert_string_equal(got, "ababcab abc");
        free(got);
    }
}

static void what_may_become_a_stop_is_held_and_nothing_else(void **state)
{
    static const struct stop_string stops[] = {STOP("aab")};
    struct stop_search s;
    struct buf out = {0};

    (void)state;
    stop_init(&s, stops, 1);
    assert_false(stop_push(&s, "xaa", 3, &out));
    assert_string_equal(buf_str(&out), "x");
    assert_false(stop_push(&s, "a", 1, &out));
    assert_string_equal(buf_str(&out), "xa");
    assert_true(stop_push(&s, "bz", 2, &out));
    assert_string_equal(buf_str(&out), "xa");
    stop_release(&s);
    buf_release(&out);
}

static void a_stop_at_the_very_beginning_leaves_an_empty_text(void **state)
{
    static const struct stop_string stops[] = {STOP("a")};
    bool found;
    char *got = run(stops, 1, "abc", 1, &found);

    (void)state;
    assert_true(found);
    assert_string_equal(got, "");
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_gives_the_text_before_the_stop),
        cmocka_unit_test(the_earliest_of_several_wins_whatever_their_order),
        cmocka_unit_test(the_stop_that_is_complete_first_wins_at_any_cut),
        cmocka_unit_test(a_beginning_that_never_completes_is_shown_at_the_end),
        cmocka_unit_test(what_may_become_a_stop_is_held_and_nothing_else),
        cmocka_unit_test(a_stop_at_the_very_beginning_leaves_an_empty_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
