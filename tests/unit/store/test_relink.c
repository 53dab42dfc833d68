/* Start-up gives a run its `latest` when a crash took it. */
#include "store/scratch.h"

#include <time.h>

#include "base/buf.h"
#include "store/relink.h"
#include "store/roots.h"
#include "store/schema.h"

static struct relink_report relink_with(const struct scratch *s, const char *schema_file)
{
    struct buf warnings = {0};
    struct err e = {0};
    struct relink_report report;
    struct roots *r = roots_open(scratch_path(s, "main"), scratch_path(s, "read"), &warnings, &e);
    struct schema *schema = schema_load(schema_file, &e);

    assert_non_null(r);
    assert_non_null(schema);
    assert_int_equal(relink_primary(r, schema, &report, &e), 0);
    schema_free(schema);
    roots_close(r);
    buf_release(&warnings);
    return report;
}

static struct relink_report relink(const struct scratch *s)
{
    return relink_with(s, NULL);
}

static void check_link(const struct scratch *s, const char *link, const char *target)
{
    char text[64] = "";

    assert_int_equal(readlinkat(s->fd, link, text, sizeof text - 1), strlen(target));
    assert_string_equal(text, target);
}

static void written(const struct scratch *s, const char *manifest, time_t when)
{
    struct timespec times[2] = {{.tv_sec = when}, {.tv_sec = when}};

    assert_int_equal(utimensat(s->fd, manifest, times, 0), 0);
}

static void a_run_without_latest_names_the_checkpoint_that_was_saved_last(void **state)
{
    struct scratch *s = *state;
    struct relink_report report;

    put_checkpoint(s, "main", "b", "r1", 1, NULL);
    put_checkpoint(s, "main", "b", "r2", 50, NULL);
    put_checkpoint(s, "main", "b", "r2", 900, NULL);
    put_checkpoint(s, "main", "b", "r2", 1000000, NULL);
    written(s, "main/r2/step-000050/manifest.json", 3000);
    written(s, "main/r2/step-000900/manifest.json", 1000);
    written(s, "main/r2/step-1000000/manifest.json", 2000);
    report = relink(s);
    assert_int_equal(report.made, 2);
    assert_int_equal(report.failed, 0);
    check_link(s, "main/r1/latest", "step-000001");
    check_link(s, "main/r2/latest", "step-000050");
    assert_int_equal(relink(s).made, 0);
}

static void of_equal_times_the_larger_step_is_named(void **state)
{
    struct scratch *s = *state;

    put_checkpoint(s, "main", "b", "r1", 999999, NULL);
    put_checkpoint(s, "main", "b", "r1", 1000000, NULL);
    written(s, "main/r1/step-999999/manifest.json", 1000);
    written(s, "main/r1/step-1000000/manifest.json", 1000);
    assert_int_equal(relink(s).made, 1);
    check_link(s, "main/r1/latest", "step-1000000");
}

static void a_latest_of_any_kind_stays_as_it_is(void **state)
{
    struct scratch *s = *state;

    put_checkpoint(s, "main", "b", "r1", 1, NULL);
    put_checkpoint(s, "main", "b", "r1", 2, NULL);
    put_link(s, "main/r1/latest", "step-000001");
    put_checkpoint(s, "main", "b", "r2", 1, NULL);
    put_link(s, "main/r2/latest", "step-000007");
    put_checkpoint(s, "main", "b", "r3", 1, NULL);
    put_file(s, "main/r3/latest", "mine");
    assert_int_equal(relink(s).made, 0);
    check_link(s, "main/r1/latest", "step-000001");
    check_link(s, "main/r2/latest", "step-000007");
}

static void what_is_no_whole_checkpoint_is_not_named(void **state)
{
    struct scratch *s = *state;

    put_dir(s, "main/r1/step-000001");
    put_file(s, "main/r1/step-000001/model.safetensors", "");
    put_checkpoint(s, "main", "b", "r2", 1, NULL);
    assert_int_equal(unlinkat(s->fd, "main/r2/step-000001/model.safetensors", 0), 0);
    put_checkpoint(s, "main", "b", "r3", 1, NULL); /* the manifest of another place */
    assert_int_equal(renameat(s->fd, "main/r3/step-000001", s->fd, "main/r3/step-000002"), 0);
    put_dir(s, "main/r4/.tmp-step-000001-0-0");
    assert_int_equal(relink(s).made, 0);
    put_checkpoint(s, "main", "b", "r3", 1, NULL);
    assert_int_equal(relink(s).made, 1);
    check_link(s, "main/r3/latest", "step-000001");
}

static void links_hidden_directories_and_read_roots_are_left_alone(void **state)
{
    struct scratch *s = *state;

    put_checkpoint(s, "read", "b", "r1", 1, NULL);
    put_checkpoint(s, "outside", "b", "r2", 1, NULL);
    put_dir(s, "main");
    put_link(s, "main/r2", scratch_path(s, "outside/r2"));
    put_checkpoint(s, "main", "b", ".r3", 1, NULL);
    put_checkpoint(s, "outside", "b", "r4", 1, NULL);
    put_dir(s, "main/r4");
    put_link(s, "main/r4/step-000001", scratch_path(s, "outside/r4/step-000001"));
    assert_int_equal(relink(s).made, 0);
    assert_false(exists(s, "read/r1/latest"));
    assert_false(exists(s, "outside/r2/latest"));
    assert_false(exists(s, "main/.r3/latest"));
    assert_false(exists(s, "main/r4/latest"));
}

static void without_a_usable_schema_nothing_is_judged(void **state)
{
    struct scratch *s = *state;

    put_checkpoint(s, "main", "b", "r1", 1, NULL);
    assert_int_equal(relink_with(s, scratch_path(s, "no-such-schema")).made, 0);
    assert_false(exists(s, "main/r1/latest"));
    assert_int_equal(relink(s).made, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_run_without_latest_names_the_checkpoint_that_was_saved_last),
        SCRATCH_TEST(of_equal_times_the_larger_step_is_named),
        SCRATCH_TEST(a_latest_of_any_kind_stays_as_it_is),
        SCRATCH_TEST(what_is_no_whole_checkpoint_is_not_named),
        SCRATCH_TEST(links_hidden_directories_and_read_roots_are_left_alone),
        SCRATCH_TEST(without_a_usable_schema_nothing_is_judged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
