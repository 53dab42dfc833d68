/* Files that could not be removed, and are. A tree deeper than the removal goes is one that fails.
 */
#include "store/scratch.h"

#include "base/buf.h"
#include "store/leftovers.h"

enum { TOO_DEEP = 80 };

static void put_deep(const struct scratch *s, const char *name)
{
    struct buf path = {0};

    buf_add_str(&path, name);
    for (int i = 0; i < TOO_DEEP; i++)
        buf_add_str(&path, "/d");
    put_dir(s, buf_str(&path));
    buf_release(&path);
}

/* Takes away what made it too deep. */
static void make_shallow(const struct scratch *s, const char *name)
{
    struct buf path = {0};
    struct err e = {0};

    buf_add_str(&path, name);
    for (int i = 0; i < TOO_DEEP / 2; i++)
        buf_add_str(&path, "/d");
    assert_int_equal(fs_remove_tree(s->fd, buf_str(&path), &e), 0);
    buf_release(&path);
}

static void what_stays_goes_when_it_can(void **state)
{
    struct scratch *s = *state;
    struct err e = {0};
    struct leftovers *l = leftovers_new(&e);
    int left;

    put_deep(s, "a");
    put_deep(s, "b");
    put_dir(s, "c/d");
    assert_int_equal(leftovers_remove(l, s->fd, "c", &e), 0);
    assert_int_equal(leftovers_remove(l, s->fd, "a", &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(leftovers_remove(l, s->fd, "b", &e), -1);
    assert_int_equal(leftovers_retry(l, &left), 0);
    assert_int_equal(left, 2);
    make_shallow(s, "a");
    assert_int_equal(leftovers_retry(l, &left), 1);
    assert_int_equal(left, 1);
    assert_false(exists(s, "a"));
    make_shallow(s, "b");
    assert_int_equal(leftovers_retry(l, &left), 1);
    assert_int_equal(left, 0);
    assert_int_equal(leftovers_retry(l, &left), 0);
    leftovers_free(l);
}

static void one_that_is_gone_already_counts_as_removed(void **state)
{
    struct scratch *s = *state;
    struct err e = {0};
    struct leftovers *l = leftovers_new(&e);
    int left;

    put_deep(s, "a");
    assert_int_equal(leftovers_remove(l, s->fd, "a", &e), -1);
    make_shallow(s, "a");
    assert_int_equal(fs_remove_tree(s->fd, "a", &e), 0);
    assert_int_equal(leftovers_retry(l, &left), 1);
    leftovers_free(l);
}

static void without_a_list_it_is_only_told(void **state)
{
    struct scratch *s = *state;
    struct err e = {0};
    int left;

    put_deep(s, "a");
    assert_int_equal(leftovers_remove(NULL, s->fd, "a", &e), -1);
    assert_int_equal(leftovers_retry(NULL, &left), 0);
    make_shallow(s, "a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_stays_goes_when_it_can, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(one_that_is_gone_already_counts_as_removed, scratch_make,
                                        scratch_drop),
        cmocka_unit_test_setup_teardown(without_a_list_it_is_only_told, scratch_make, scratch_drop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
