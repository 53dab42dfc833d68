/* From the name or path of a request to a step directory. */
#include "store/scratch.h"

#include "base/buf.h"
#include "store/resolve.h"
#include "store/roots.h"

struct world {
    struct scratch *scratch;
    struct roots *roots;
};

static struct world open_world(void **state)
{
    struct world w = {.scratch = *state};
    struct buf warnings = {0};
    struct err e = {0};

    put_dir(w.scratch, "read");
    put_dir(w.scratch, "main");
    w.roots =
        roots_open(scratch_path(w.scratch, "main"), scratch_path(w.scratch, "read"), &warnings, &e);
    assert_non_null(w.roots);
    put_checkpoint(w.scratch, "main", "org/m", "r1", 500, NULL);
    put_checkpoint(w.scratch, "main", "org/m", "r1", 1000000, NULL);
    put_checkpoint(w.scratch, "read", "org/m", "r2", 7, NULL);
    return w;
}

static enum resolve_outcome by_path(const struct world *w, const char *text, struct resolved *out)
{
    struct err e = {0};

    return resolve_path(w->roots, text, strlen(text), out, &e);
}

static enum resolve_outcome by_name(const struct world *w, const char *text, struct resolved *out)
{
    struct err e = {0};

    return resolve_name(w->roots, text, strlen(text), out, &e);
}

static void path_gives(const struct world *w, const char *text, enum resolve_outcome expected)
{
    struct resolved r;
    enum resolve_outcome o = by_path(w, text, &r);

    if (o != expected || r.outcome != expected)
        fail_msg("%s gave %d, not %d", text, o, expected);
    assert_true((r.dir_fd >= 0) == (expected == RESOLVE_OK));
    resolved_release(&r);
}

static void name_gives(const struct world *w, const char *text, enum resolve_outcome expected)
{
    struct resolved r;
    enum resolve_outcome o = by_name(w, text, &r);

    if (o != expected)
        fail_msg("%s gave %d, not %d", text, o, expected);
    resolved_release(&r);
}

static void a_name_leads_to_its_directory_under_any_root(void **state)
{
    struct world w = open_world(state);
    struct resolved r;

    assert_int_equal(by_name(&w, "org/m:r1:step-500", &r), RESOLVE_OK);
    assert_int_equal(r.root, 0);
    assert_string_equal(r.path, "r1/step-000500");
    assert_int_equal(r.base_len, 5);
    resolved_release(&r);
    assert_int_equal(by_name(&w, "org/m:r2:step-7", &r), RESOLVE_OK);
    assert_int_equal(r.root, 1);
    resolved_release(&r);
    name_gives(&w, "org/m:r1:step-1000000", RESOLVE_OK);
    name_gives(&w, "nonsense", RESOLVE_BAD_NAME);
    name_gives(&w, "org/m:r1:step-0500", RESOLVE_BAD_NAME);
    roots_close(w.roots);
}

static void a_path_is_relative_to_a_root_or_absolute_under_one(void **state)
{
    struct world w = open_world(state);
    struct resolved r;

    assert_int_equal(by_path(&w, "r1/step-000500", &r), RESOLVE_OK);
    assert_string_equal(r.run_id, "r1");
    assert_int_equal(r.step, 500);
    assert_int_equal(r.base_len, 0);
    resolved_release(&r);
    path_gives(&w, scratch_path(w.scratch, "main/r1/step-000500"), RESOLVE_OK);
    path_gives(&w, scratch_path(w.scratch, "read/r2/step-000007"), RESOLVE_OK);
    path_gives(&w, scratch_path(w.scratch, "read/r1/step-000500"), RESOLVE_NOT_FOUND);
    path_gives(&w, scratch_path(w.scratch, "other/r1/step-000500"), RESOLVE_OUTSIDE);
    path_gives(&w, scratch_path(w.scratch, "main-2/r1/step-000500"), RESOLVE_OUTSIDE);
    path_gives(&w, "/etc/passwd", RESOLVE_OUTSIDE);
    path_gives(&w, scratch_path(w.scratch, "main"), RESOLVE_SHAPE); /* the root itself */
    roots_close(w.roots);
}

static void a_configured_root_that_is_a_link_is_known_by_both_paths(void **state)
{
    struct scratch *s = *state;
    struct buf warnings = {0};
    struct err e = {0};
    struct world w = {.scratch = s};

    put_checkpoint(s, "real", "b", "r1", 1, NULL);
    put_link(s, "alias", "real");
    w.roots = roots_open(scratch_path(s, "alias"), NULL, &warnings, &e);
    assert_non_null(w.roots);
    path_gives(&w, scratch_path(s, "alias/r1/step-000001"), RESOLVE_OK);
    path_gives(&w, scratch_path(s, "real/r1/step-000001"), RESOLVE_OK);
    roots_close(w.roots);
}

static void anything_but_two_components_is_no_path(void **state)
{
    static const char *const bad[] = {
        "",
        "r1",
        "r1/",
        "/",
        "r1//step-000500",
        "./r1",
        "../r1",
        "../main",
        "r1/..",
        "r1/../r1/step-000500",
        "r1/.",
        "../step-000500",
        "r1/step-500",
        "r1/step-0000500",
        "r1/step-000500/",
        "r1/step-000500/manifest.json",
        "r1/newest",
        "../../etc/passwd",
    };
    struct world w = open_world(state);
    struct resolved r;
    struct err e = {0};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        path_gives(&w, bad[i], strcmp(bad[i], "/") == 0 ? RESOLVE_OUTSIDE : RESOLVE_SHAPE);
    path_gives(&w, scratch_path(w.scratch, "main/../main/r1/step-000500"), RESOLVE_SHAPE);
    assert_int_equal(resolve_path(w.roots, "r1/step-000500\0x", 16, &r, &e), RESOLVE_SHAPE);
    assert_string_equal(resolve_reason(RESOLVE_SHAPE), "shape");
    roots_close(w.roots);
}

static void a_colon_in_the_run_is_a_bad_run_id(void **state)
{
    struct world w = open_world(state);

    path_gives(&w, "a:b/step-000001", RESOLVE_BAD_RUN_ID);
    roots_close(w.roots);
}

static void a_run_under_two_roots_is_ambiguous_except_by_absolute_path(void **state)
{
    struct world w = open_world(state);
    struct resolved r;

    put_checkpoint(w.scratch, "read", "org/m", "r1", 9, NULL);
    assert_int_equal(by_path(&w, "r1/step-000500", &r), RESOLVE_AMBIGUOUS);
    assert_int_equal(r.roots_mask, 3);
    assert_string_equal(r.run_id, "r1");
    name_gives(&w, "org/m:r1:step-500", RESOLVE_AMBIGUOUS);
    name_gives(&w, "org/m:r1:step-12345", RESOLVE_AMBIGUOUS);
    path_gives(&w, "r1/latest", RESOLVE_AMBIGUOUS);
    path_gives(&w, scratch_path(w.scratch, "main/r1/step-000500"), RESOLVE_OK);
    path_gives(&w, scratch_path(w.scratch, "read/r1/step-000009"), RESOLVE_OK);
    roots_close(w.roots);
}

static void what_is_not_there_is_not_found_and_says_where_it_looked(void **state)
{
    struct world w = open_world(state);
    struct resolved r;

    assert_int_equal(by_name(&w, "org/m:r1:step-501", &r), RESOLVE_NOT_FOUND);
    assert_string_equal(r.searched, "r1/step-000501");
    path_gives(&w, "none/step-000001", RESOLVE_NOT_FOUND);
    path_gives(&w, "none/latest", RESOLVE_NOT_FOUND);
    put_file(w.scratch, "main/r1/step-000002", "a file");
    path_gives(&w, "r1/step-000002", RESOLVE_NOT_FOUND);
    roots_close(w.roots);
}

static void latest_leads_to_the_step_it_names(void **state)
{
    struct world w = open_world(state);
    struct resolved r;

    path_gives(&w, "r1/latest", RESOLVE_NOT_FOUND);
    put_link(w.scratch, "main/r1/latest", "step-000500");
    assert_int_equal(by_path(&w, "r1/latest", &r), RESOLVE_OK);
    assert_int_equal(r.step, 500);
    assert_string_equal(r.path, "r1/step-000500");
    resolved_release(&r);
    path_gives(&w, scratch_path(w.scratch, "main/r1/latest"), RESOLVE_OK);
    roots_close(w.roots);
}

static void latest_that_leaves_its_run_or_is_no_link_is_refused(void **state)
{
    static const struct {
        const char *target;
        enum resolve_outcome outcome;
    } rows[] = {
        {"step-000501", RESOLVE_NOT_FOUND},
        {"../r3/step-000001", RESOLVE_LATEST},
        {"../../read/r2/step-000007", RESOLVE_LATEST},
        {"/etc", RESOLVE_LATEST},
        {"latest", RESOLVE_LATEST},
        {"other", RESOLVE_LATEST},
        {".", RESOLVE_LATEST},
        {"plain", RESOLVE_LATEST},
    };
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "b", "r3", 1, NULL);
    put_dir(w.scratch, "main/r1/other");
    put_file(w.scratch, "main/r1/plain", "x");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put_link(w.scratch, "main/r1/latest", rows[i].target);
        path_gives(&w, "r1/latest", rows[i].outcome);
        unlinkat(w.scratch->fd, "main/r1/latest", 0);
    }
    put_dir(w.scratch, "main/r1/latest");
    path_gives(&w, "r1/latest", RESOLVE_LATEST);
    roots_close(w.roots);
}

static void a_link_inside_the_root_is_fine_and_one_that_leads_out_is_refused(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "outside", "b", "r9", 1, NULL);
    put_link(w.scratch, "main/inner", "r1");
    put_link(w.scratch, "main/out-run", scratch_path(w.scratch, "outside/r9"));
    put_link(w.scratch, "main/up-run", "../outside/r9");
    put_link(w.scratch, "main/r1/step-000777", "../../outside/r9/step-000001");
    path_gives(&w, "inner/step-000500", RESOLVE_OK);
    path_gives(&w, "out-run/step-000001", RESOLVE_OUTSIDE);
    path_gives(&w, "up-run/step-000001", RESOLVE_OUTSIDE);
    path_gives(&w, "r1/step-000777", RESOLVE_OUTSIDE);
    name_gives(&w, "b:out-run:step-1", RESOLVE_OUTSIDE);
    roots_close(w.roots);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_name_leads_to_its_directory_under_any_root),
        SCRATCH_TEST(a_path_is_relative_to_a_root_or_absolute_under_one),
        SCRATCH_TEST(a_configured_root_that_is_a_link_is_known_by_both_paths),
        SCRATCH_TEST(anything_but_two_components_is_no_path),
        SCRATCH_TEST(a_colon_in_the_run_is_a_bad_run_id),
        SCRATCH_TEST(a_run_under_two_roots_is_ambiguous_except_by_absolute_path),
        SCRATCH_TEST(what_is_not_there_is_not_found_and_says_where_it_looked),
        SCRATCH_TEST(latest_leads_to_the_step_it_names),
        SCRATCH_TEST(latest_that_leaves_its_run_or_is_no_link_is_refused),
        SCRATCH_TEST(a_link_inside_the_root_is_fine_and_one_that_leads_out_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
