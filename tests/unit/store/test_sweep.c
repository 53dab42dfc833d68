/* Start-up cleanup of the primary root. */
#include "store/scratch.h"

#include "base/buf.h"
#include "store/roots.h"
#include "store/sweep.h"

static struct sweep_report sweep(const struct scratch *s)
{
    struct buf warnings = {0};
    struct err e = {0};
    struct sweep_report report;
    struct roots *r = roots_open(scratch_path(s, "main"), scratch_path(s, "read"), &warnings, &e);

    assert_non_null(r);
    assert_int_equal(sweep_primary(r, &report, &e), 0);
    roots_close(r);
    buf_release(&warnings);
    return report;
}

static void leftovers_go_and_checkpoints_stay(void **state)
{
    struct scratch *s = *state;
    struct sweep_report report;

    put_checkpoint(s, "main", "b", "r1", 1, NULL);
    put_link(s, "main/r1/latest", "step-000001");
    put_dir(s, "main/r1/.tmp-step-000002-0-0/deep/er");
    put_file(s, "main/r1/.tmp-step-000002-0-0/model.safetensors", "half");
    put_link(s, "main/r1/.tmp-latest-0-0", "step-000002");
    put_dir(s, "main/r2/.tmp-step-000001-0-0");
    put_dir(s, "main/r3");
    report = sweep(s);
    assert_int_equal(report.removed, 3);
    assert_int_equal(report.emptied, 2);
    assert_int_equal(report.failed, 0);
    assert_int_equal(count_entries(s, "main/r1"), 2);
    assert_true(exists(s, "main/r1/step-000001/manifest.json"));
    assert_false(exists(s, "main/r2"));
    assert_false(exists(s, "main/r3"));
}

static void nothing_but_temporary_names_one_level_down_is_touched(void **state)
{
    struct scratch *s = *state;
    struct sweep_report report;

    put_dir(s, "main/.tmp-top");
    put_dir(s, "main/r1/step-000001/.tmp-inner");
    put_dir(s, "main/r1/other");
    put_file(s, "main/r1/notes", "x");
    put_file(s, "main/file", "x");
    put_dir(s, "main/.hidden");
    report = sweep(s);
    assert_int_equal(report.removed, 0);
    assert_int_equal(report.emptied, 0);
    assert_true(exists(s, "main/.tmp-top"));
    assert_true(exists(s, "main/.hidden"));
    assert_true(exists(s, "main/r1/step-000001/.tmp-inner"));
    assert_int_equal(count_entries(s, "main/r1"), 3);
}

static void no_link_is_followed_and_no_read_root_is_touched(void **state)
{
    struct scratch *s = *state;
    struct sweep_report report;

    put_dir(s, "read/r1/.tmp-step-000001-0-0");
    put_dir(s, "outside/.tmp-x");
    put_file(s, "outside/keep", "x");
    put_dir(s, "main/r1");
    put_link(s, "main/linked", scratch_path(s, "outside"));
    put_link(s, "main/r1/.tmp-link", scratch_path(s, "outside"));
    report = sweep(s);
    assert_int_equal(report.removed, 1);
    assert_true(exists(s, "read/r1/.tmp-step-000001-0-0"));
    assert_true(exists(s, "outside/.tmp-x"));
    assert_true(exists(s, "outside/keep"));
    assert_true(exists(s, "main/linked"));
}

static void what_cannot_be_removed_is_left_and_reported(void **state)
{
    struct scratch *s = *state;
    struct sweep_report report;
    char deep[500] = "main/r1/.tmp-deep";

    for (int i = 0; i < 80; i++)
        strcat(deep, "/d");
    put_dir(s, deep);
    report = sweep(s);
    assert_int_equal(report.removed, 0);
    assert_int_equal(report.failed, 1);
    assert_non_null(strstr(report.why, "too deep"));
    assert_true(exists(s, "main/r1"));
    for (int i = 0; i < 80; i++) { /* so that the scratch directory can go */
        assert_int_equal(unlinkat(s->fd, deep, AT_REMOVEDIR), 0);
        *strrchr(deep, '/') = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(leftovers_go_and_checkpoints_stay),
        SCRATCH_TEST(nothing_but_temporary_names_one_level_down_is_touched),
        SCRATCH_TEST(no_link_is_followed_and_no_read_root_is_touched),
        SCRATCH_TEST(what_cannot_be_removed_is_left_and_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
