/* The checkpoint roots: opening, the lock, which root holds a run. */
#include "store/scratch.h"

#include "base/buf.h"
#include "store/roots.h"

static struct roots *open_two(const struct scratch *s)
{
    struct buf warnings = {0};
    struct err e = {0};
    struct roots *r;

    put_dir(s, "read");
    r = roots_open(scratch_path(s, "main"), scratch_path(s, "read"), &warnings, &e);
    if (!r)
        fail_msg("%s", e.msg);
    assert_int_equal(warnings.len, 0);
    return r;
}

/* The hint changes how the answer is found, never the answer. */
static uint32_t where(const struct roots *r, const char *run)
{
    static const char *const likely[] = {"step-000001", "latest", "nothing-of-this-name"};
    struct err e = {0};
    uint32_t mask, hinted;

    assert_int_equal(roots_find_run(r, run, NULL, &mask, &e), 0);
    for (size_t i = 0; i < sizeof likely / sizeof *likely; i++) {
        assert_int_equal(roots_find_run(r, run, likely[i], &hinted, &e), 0);
        assert_int_equal(hinted, mask);
    }
    return mask;
}

static void refuses(const char *primary, const char *list, enum err_code code, const char *word)
{
    struct buf warnings = {0};
    struct err e = {0};

    assert_null(roots_open(primary, list, &warnings, &e));
    assert_int_equal(e.code, code);
    assert_non_null(strstr(e.msg, word));
    buf_release(&warnings);
}

static void a_missing_primary_root_is_created(void **state)
{
    struct scratch *s = *state;
    struct roots *r = open_two(s);
    struct stat st;

    assert_int_equal(fstatat(s->fd, "main", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777 & ~0750U, 0);
    assert_int_equal(roots_count(r), 2);
    assert_string_equal(roots_path(r, ROOTS_PRIMARY), scratch_path(s, "main"));
    roots_close(r);
}

static void a_missing_read_root_is_a_warning_and_is_found_later(void **state)
{
    struct scratch *s = *state;
    struct buf warnings = {0};
    struct err e = {0};
    struct roots *r = roots_open(scratch_path(s, "main"), scratch_path(s, "later"), &warnings, &e);

    assert_non_null(r);
    assert_non_null(strstr(buf_str(&warnings), "later"));
    assert_string_equal(roots_real(r, 1), "");
    assert_int_equal(where(r, "r1"), 0);
    put_checkpoint(s, "later", "b", "r1", 1, NULL);
    assert_int_equal(where(r, "r1"), 2);
    buf_release(&warnings);
    roots_close(r);
}

static void relative_equal_and_nested_roots_stop_the_start(void **state)
{
    struct scratch *s = *state;

    put_dir(s, "main/inner");
    put_link(s, "alias", "main");
    refuses("relative", NULL, ERR_ARG, "absolute");
    refuses(scratch_path(s, "main"), "also/relative", ERR_ARG, "absolute");
    refuses(scratch_path(s, "main"), scratch_path(s, "main"), ERR_ARG, "nested");
    refuses(scratch_path(s, "main"), scratch_path(s, "alias"), ERR_ARG, "nested");
    refuses(scratch_path(s, "main"), scratch_path(s, "main/inner"), ERR_ARG, "nested");
    refuses(scratch_path(s, "main/inner"), scratch_path(s, "main"), ERR_ARG, "nested");
}

static void a_root_that_is_a_file_stops_the_start(void **state)
{
    struct scratch *s = *state;

    put_file(s, "plain", "x");
    refuses(scratch_path(s, "main"), scratch_path(s, "plain"), ERR_ARG, "not a directory");
}

static void names_that_only_begin_alike_are_separate_roots(void **state)
{
    struct scratch *s = *state;
    struct buf warnings = {0};
    struct err e = {0};
    struct roots *r;
    char list[400];

    put_dir(s, "main-2");
    put_dir(s, "read");
    snprintf(list, sizeof list, " %s , %s ,", scratch_path(s, "main-2"), scratch_path(s, "read"));
    r = roots_open(scratch_path(s, "main"), list, &warnings, &e);
    assert_non_null(r);
    assert_int_equal(roots_count(r), 3);
    roots_close(r);
}

static void a_second_server_on_the_same_root_is_refused_until_the_first_ends(void **state)
{
    struct scratch *s = *state;
    struct buf warnings = {0};
    struct err e = {0};
    struct roots *first = open_two(s);
    struct roots *reader;

    refuses(scratch_path(s, "main"), NULL, ERR_CONFLICT, "another server");
    reader = roots_open_unlocked(scratch_path(s, "main"), NULL, &warnings, &e);
    assert_non_null(reader);
    roots_close(reader);
    roots_close(first);
    roots_close(open_two(s));
}

static void a_run_counts_as_present_only_with_something_in_it(void **state)
{
    struct scratch *s = *state;
    struct roots *r = open_two(s);

    put_dir(s, "main/empty");
    put_dir(s, "main/half/.tmp-step-000001-0-0");
    put_file(s, "main/file", "x");
    put_dir(s, "outside/r9/step-000001");
    put_link(s, "main/leads-out", scratch_path(s, "outside/r9"));
    put_link(s, "main/dangling", "nowhere");
    put_checkpoint(s, "main", "b", "r1", 1, NULL);
    put_checkpoint(s, "read", "b", "r2", 1, NULL);
    put_checkpoint(s, "main", "b", "both", 1, NULL);
    put_checkpoint(s, "read", "b", "both", 2, NULL);
    put_link(s, "main/alias", "r1");
    assert_int_equal(where(r, "empty"), 0);
    assert_int_equal(where(r, "half"), 0);
    assert_int_equal(where(r, "file"), 0);
    assert_int_equal(where(r, "leads-out"), 0);
    assert_int_equal(where(r, "dangling"), 0);
    assert_int_equal(where(r, "none"), 0);
    assert_int_equal(where(r, "r1"), 1);
    assert_int_equal(where(r, "alias"), 1);
    assert_int_equal(where(r, "r2"), 2);
    assert_int_equal(where(r, "both"), 3);
    roots_close(r);
}

static void an_entry_of_any_kind_takes_a_step(void **state)
{
    struct scratch *s = *state;
    struct roots *r = open_two(s);
    struct err e = {0};
    bool there;

    put_dir(s, "main/r1/step-000001");
    put_file(s, "main/r1/step-000002", "x");
    put_link(s, "main/r1/step-000003", "nowhere");
    for (int64_t step = 1; step <= 3; step++) {
        assert_int_equal(roots_step_exists(r, "r1", step, &there, &e), 0);
        assert_true(there);
    }
    assert_int_equal(roots_step_exists(r, "r1", 4, &there, &e), 0);
    assert_false(there);
    assert_int_equal(roots_step_exists(r, "r2", 1, &there, &e), 0);
    assert_false(there);
    roots_close(r);
}

static void free_space_is_measured(void **state)
{
    struct roots *r = open_two(*state);
    struct err e = {0};
    int64_t n = -1;

    assert_int_equal(roots_free_bytes(r, &n, &e), 0);
    assert_true(n > 0);
    roots_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_missing_primary_root_is_created),
        SCRATCH_TEST(a_missing_read_root_is_a_warning_and_is_found_later),
        SCRATCH_TEST(relative_equal_and_nested_roots_stop_the_start),
        SCRATCH_TEST(a_root_that_is_a_file_stops_the_start),
        SCRATCH_TEST(names_that_only_begin_alike_are_separate_roots),
        SCRATCH_TEST(a_second_server_on_the_same_root_is_refused_until_the_first_ends),
        SCRATCH_TEST(a_run_counts_as_present_only_with_something_in_it),
        SCRATCH_TEST(an_entry_of_any_kind_takes_a_step),
        SCRATCH_TEST(free_space_is_measured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
