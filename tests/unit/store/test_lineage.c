/* The walk from a checkpoint back to its base. */
#include "store/scratch.h"

#include <sys/stat.h>

#include "base/buf.h"
#include "base/json.h"
#include "store/lineage.h"
#include "store/manifest.h"
#include "store/roots.h"
#include "store/schema.h"

struct world {
    struct scratch *scratch;
    struct roots *roots;
    struct roots *main_only; /* where manifests are opened in one step */
    struct schema *schema;
};

static struct world open_world(void **state)
{
    struct world w = {.scratch = *state};
    struct buf warnings = {0};
    struct err e = {0};

    put_dir(w.scratch, "read");
    w.roots =
        roots_open(scratch_path(w.scratch, "main"), scratch_path(w.scratch, "read"), &warnings, &e);
    w.main_only = roots_open_unlocked(scratch_path(w.scratch, "main"), NULL, &warnings, &e);
    w.schema = schema_load(NULL, &e);
    assert_non_null(w.roots);
    assert_non_null(w.main_only);
    assert_non_null(w.schema);
    return w;
}

static void close_world(struct world *w)
{
    roots_close(w->main_only);
    roots_close(w->roots);
    schema_free(w->schema);
}

static int add_line(void *arg, const struct lineage_entry *entry, struct err *e)
{
    (void)e;
    buf_printf(arg, "%s %s %s\n", entry->manifest->name, entry->path,
               strrchr(entry->root, '/') + 1);
    return 0;
}

static void expect_in(const struct world *w, const struct roots *roots, const char *name,
                      int max_depth, const char *lines, enum lineage_break reason, const char *at)
{
    struct lineage_end end;
    struct buf got = {0};
    struct err e = {0};

    if (lineage_walk(roots, w->schema, name, max_depth, add_line, &got, &end, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(buf_str(&got), lines);
    assert_int_equal(end.reason, reason);
    assert_string_equal(buf_str(&end.at), at);
    buf_release(&got);
    lineage_end_release(&end);
}

/* Nothing lies in the second root: with it and without it the walk is the same. */
static void expect(const struct world *w, const char *name, int max_depth, const char *lines,
                   enum lineage_break reason, const char *at)
{
    expect_in(w, w->roots, name, max_depth, lines, reason, at);
    expect_in(w, w->main_only, name, max_depth, lines, reason, at);
}

static void a_chain_is_followed_across_roots_to_its_beginning(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "org/m", "r2", 500, "org/m:r2:step-400");
    put_checkpoint(w.scratch, "main", "org/m", "r2", 400, "org/m:r1:step-7");
    put_checkpoint(w.scratch, "read", "org/m", "r1", 7, NULL);
    expect_in(&w, w.roots, "org/m:r2:step-500", 1000,
              "org/m:r2:step-500 r2/step-000500 main\n"
              "org/m:r2:step-400 r2/step-000400 main\n"
              "org/m:r1:step-7 r1/step-000007 read\n",
              LINEAGE_COMPLETE, "");
    close_world(&w);
}

static int write_entry(void *arg, const struct lineage_entry *entry, struct err *e)
{
    (void)e;
    lineage_write_entry(arg, entry);
    return 0;
}

static void entries_and_breaks_are_json(void **state)
{
    struct world w = open_world(state);
    struct lineage_end end;
    struct buf text = {0};
    struct err e = {0};
    json_t *entry, *broken;

    put_checkpoint(w.scratch, "main", "a \\\"b\\\"", "r", 2, "a \\\"b\\\":r:step-1");
    assert_int_equal(
        lineage_walk(w.roots, w.schema, "a \"b\":r:step-2", 10, write_entry, &text, &end, &e), 0);
    entry = json_parse(buf_str(&text), text.len, &e);
    assert_string_equal(json_string_value(json_object_get(entry, "name")), "a \"b\":r:step-2");
    assert_int_equal(json_integer_value(json_object_get(entry, "step")), 2);
    assert_string_equal(json_string_value(json_object_get(entry, "parent")), "a \"b\":r:step-1");
    assert_true(json_is_null(json_object_get(entry, "merged_adapter")));
    assert_int_equal(json_object_size(entry), 9);
    buf_reset(&text);
    lineage_write_break(&text, &end);
    broken = json_parse(buf_str(&text), text.len, &e);
    assert_string_equal(json_string_value(json_object_get(broken, "at")), "a \"b\":r:step-1");
    assert_string_equal(json_string_value(json_object_get(broken, "reason")), "manifest_missing");
    json_decref(broken);
    json_decref(entry);
    lineage_end_release(&end);
    buf_release(&text);
    close_world(&w);
}

static void a_missing_parent_breaks_the_chain_at_its_name(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "r", 2, "m:r:step-1");
    expect(&w, "m:r:step-2", 10, "m:r:step-2 r/step-000002 main\n", LINEAGE_MANIFEST_MISSING,
           "m:r:step-1");
    put_dir(w.scratch, "main/r/step-000001");
    expect(&w, "m:r:step-2", 10, "m:r:step-2 r/step-000002 main\n", LINEAGE_MANIFEST_MISSING,
           "m:r:step-1");
    expect(&w, "m:r:step-1", 10, "", LINEAGE_MANIFEST_MISSING, "m:r:step-1");
    close_world(&w);
}

static void a_broken_manifest_breaks_the_chain(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "r", 2, "m:r:step-1");
    put_dir(w.scratch, "main/r/step-000001");
    put_file(w.scratch, "main/r/step-000001/manifest.json", "{\"name\": 1}");
    expect(&w, "m:r:step-2", 10, "m:r:step-2 r/step-000002 main\n", LINEAGE_MANIFEST_INVALID,
           "m:r:step-1");
    close_world(&w);
}

static void a_manifest_that_is_a_link_or_a_pipe_is_invalid(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "r", 2, "m:r:step-1");
    put_checkpoint(w.scratch, "main", "m", "elsewhere", 1, NULL);
    put_dir(w.scratch, "main/r/step-000001");
    put_link(w.scratch, "main/r/step-000001/manifest.json",
             "../../elsewhere/step-000001/manifest.json");
    expect(&w, "m:r:step-2", 10, "m:r:step-2 r/step-000002 main\n", LINEAGE_MANIFEST_INVALID,
           "m:r:step-1");
    put_checkpoint(w.scratch, "main", "m", "r", 4, "m:r:step-3");
    put_dir(w.scratch, "main/r/step-000003");
    assert_int_equal(mkfifo(scratch_path(w.scratch, "main/r/step-000003/manifest.json"), 0600), 0);
    expect(&w, "m:r:step-4", 10, "m:r:step-4 r/step-000004 main\n", LINEAGE_MANIFEST_INVALID,
           "m:r:step-3");
    close_world(&w);
}

static void a_run_that_is_a_link_inside_its_root_is_followed(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "kept", 1, NULL);
    put_link(w.scratch, "main/r", "kept");
    expect(&w, "m:r:step-1", 10, "", LINEAGE_NAME_MISMATCH, "m:r:step-1");
    expect(&w, "m:kept:step-1", 10, "m:kept:step-1 kept/step-000001 main\n", LINEAGE_COMPLETE, "");
    close_world(&w);
}

static void a_parent_that_is_no_name_or_leads_out_is_invalid(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "r", 2, "not a name");
    expect(&w, "m:r:step-2", 10, "m:r:step-2 r/step-000002 main\n", LINEAGE_MANIFEST_INVALID,
           "not a name");
    put_checkpoint(w.scratch, "outside", "m", "out", 1, NULL);
    put_link(w.scratch, "main/out", scratch_path(w.scratch, "outside/out"));
    put_checkpoint(w.scratch, "main", "m", "r", 3, "m:out:step-1");
    expect(&w, "m:r:step-3", 10, "m:r:step-3 r/step-000003 main\n", LINEAGE_MANIFEST_INVALID,
           "m:out:step-1");
    put_checkpoint(w.scratch, "main", "m", "r", 4, "m:..:step-1");
    expect(&w, "m:r:step-4", 10, "m:r:step-4 r/step-000004 main\n", LINEAGE_MANIFEST_INVALID,
           "m:..:step-1");
    put_checkpoint(w.scratch, "main", "m", "r", 5, ""); /* a text, and not null */
    expect(&w, "m:r:step-5", 10, "m:r:step-5 r/step-000005 main\n", LINEAGE_MANIFEST_INVALID, "");
    close_world(&w);
}

static void another_name_at_the_place_is_a_mismatch(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "r", 2, "other:r:step-1");
    put_checkpoint(w.scratch, "main", "m", "r", 1, NULL);
    expect(&w, "m:r:step-2", 10, "m:r:step-2 r/step-000002 main\n", LINEAGE_NAME_MISMATCH,
           "other:r:step-1");
    close_world(&w);
}

static void a_cycle_ends_at_the_name_that_came_again(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "r", 1, "m:r:step-3");
    put_checkpoint(w.scratch, "main", "m", "r", 2, "m:r:step-1");
    put_checkpoint(w.scratch, "main", "m", "r", 3, "m:r:step-2");
    put_checkpoint(w.scratch, "main", "m", "self", 1, "m:self:step-1");
    expect(&w, "m:r:step-3", 10,
           "m:r:step-3 r/step-000003 main\nm:r:step-2 r/step-000002 main\n"
           "m:r:step-1 r/step-000001 main\n",
           LINEAGE_CYCLE, "m:r:step-3");
    expect(&w, "m:self:step-1", 10, "m:self:step-1 self/step-000001 main\n", LINEAGE_CYCLE,
           "m:self:step-1");
    close_world(&w);
}

static void a_run_under_two_roots_breaks_the_chain(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "r2", 2, "m:r:step-1");
    put_checkpoint(w.scratch, "main", "m", "r", 1, NULL);
    put_checkpoint(w.scratch, "read", "m", "r", 9, NULL);
    expect_in(&w, w.roots, "m:r2:step-2", 10, "m:r2:step-2 r2/step-000002 main\n",
              LINEAGE_AMBIGUOUS, "m:r:step-1");
    close_world(&w);
}

static void the_depth_limit_breaks_only_when_a_parent_remains(void **state)
{
    struct world w = open_world(state);
    struct lineage_end end;
    struct err e = {0};
    char parent[64];

    for (long i = 0; i < 200; i++) {
        snprintf(parent, sizeof parent, "m:r:step-%ld", i - 1);
        put_checkpoint(w.scratch, "main", "m", "r", i, i ? parent : NULL);
    }
    assert_int_equal(lineage_walk(w.roots, w.schema, "m:r:step-199", 200, NULL, NULL, &end, &e), 0);
    assert_int_equal(end.reason, LINEAGE_COMPLETE);
    assert_int_equal(end.depth, 200);
    lineage_end_release(&end);
    assert_int_equal(lineage_walk(w.roots, w.schema, "m:r:step-199", 199, NULL, NULL, &end, &e), 0);
    assert_int_equal(end.reason, LINEAGE_DEPTH_LIMIT);
    assert_int_equal(end.depth, 199);
    assert_string_equal(buf_str(&end.at), "m:r:step-0");
    lineage_end_release(&end);
    close_world(&w);
}

static int stop_here(void *arg, const struct lineage_entry *entry, struct err *e)
{
    (void)arg, (void)entry;
    return err_set(e, ERR_CANCELLED, "enough");
}

static void the_one_who_listens_may_end_the_walk(void **state)
{
    struct world w = open_world(state);
    struct lineage_end end;
    struct err e = {0};

    put_checkpoint(w.scratch, "main", "m", "r", 1, NULL);
    assert_int_equal(lineage_walk(w.roots, w.schema, "m:r:step-1", 10, stop_here, NULL, &end, &e),
                     -1);
    assert_int_equal(e.code, ERR_CANCELLED);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_chain_is_followed_across_roots_to_its_beginning),
        SCRATCH_TEST(entries_and_breaks_are_json),
        SCRATCH_TEST(a_missing_parent_breaks_the_chain_at_its_name),
        SCRATCH_TEST(a_broken_manifest_breaks_the_chain),
        SCRATCH_TEST(a_manifest_that_is_a_link_or_a_pipe_is_invalid),
        SCRATCH_TEST(a_run_that_is_a_link_inside_its_root_is_followed),
        SCRATCH_TEST(a_parent_that_is_no_name_or_leads_out_is_invalid),
        SCRATCH_TEST(another_name_at_the_place_is_a_mismatch),
        SCRATCH_TEST(a_cycle_ends_at_the_name_that_came_again),
        SCRATCH_TEST(a_run_under_two_roots_breaks_the_chain),
        SCRATCH_TEST(the_depth_limit_breaks_only_when_a_parent_remains),
        SCRATCH_TEST(the_one_who_listens_may_end_the_walk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
