/* Rows of checkpoints from their directories. */
#include "store/scratch.h"

#include "base/buf.h"
#include "db/db.h"
#include "store/catalogue.h"
#include "store/reindex.h"
#include "store/roots.h"
#include "store/schema.h"

struct world {
    struct scratch *scratch;
    struct roots *roots;
    struct schema *schema;
    struct db *db;
};

static struct world open_world(void **state)
{
    struct world w = {.scratch = *state};
    struct buf warnings = {0};
    struct err e = {0};

    put_dir(w.scratch, "main");
    put_dir(w.scratch, "read");
    w.roots =
        roots_open(scratch_path(w.scratch, "main"), scratch_path(w.scratch, "read"), &warnings, &e);
    w.schema = schema_load(NULL, &e);
    w.db = db_open(":memory:", &e);
    assert_non_null(w.roots);
    assert_non_null(w.schema);
    assert_non_null(w.db);
    return w;
}

static void close_world(struct world *w)
{
    db_close(w->db);
    schema_free(w->schema);
    roots_close(w->roots);
}

static int add_line(void *arg, const struct reindex_entry *entry, struct err *e)
{
    (void)e;
    buf_printf(arg, "%s %s %s\n", reindex_outcome_name(entry->outcome), entry->path, entry->name);
    return 0;
}

static void expect(const struct world *w, bool verify, const char *lines)
{
    struct buf got = {0};
    struct reindex_req req = {.db = w->db,
                              .roots = w->roots,
                              .schema = w->schema,
                              .verify = verify,
                              .on_entry = add_line,
                              .arg = &got};
    struct err e = {0};

    if (reindex_checkpoints(&req, NULL, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(buf_str(&got), lines);
    buf_release(&got);
}

static void each_checkpoint_of_each_root_gets_a_row_by_rising_step(void **state)
{
    struct world w = open_world(state);
    struct model_row row = {0};
    struct err e = {0};

    put_checkpoint(w.scratch, "main", "org/m", "r2", 1000000, NULL);
    put_checkpoint(w.scratch, "main", "org/m", "r2", 900, NULL);
    put_checkpoint(w.scratch, "main", "org/m", "r1", 5, NULL);
    put_checkpoint(w.scratch, "read", "org/m", "r3", 7, NULL);
    expect(&w, true,
           "added r1/step-000005 org/m:r1:step-5\n"
           "added r2/step-000900 org/m:r2:step-900\n"
           "added r2/step-1000000 org/m:r2:step-1000000\n"
           "added r3/step-000007 org/m:r3:step-7\n");
    assert_int_equal(catalogue_get_by_name(w.db, "org/m:r2:step-900", &row, &e), 0);
    assert_true(row.checkpoint);
    assert_int_equal(row.status, MODEL_READY);
    assert_string_equal(row.local_path, scratch_path(w.scratch, "main/r2/step-000900"));
    model_row_release(&row);
    close_world(&w);
}

static void a_second_time_the_rows_keep_their_ids(void **state)
{
    struct world w = open_world(state);
    struct model_row first = {0}, second = {0};
    struct err e = {0};

    put_checkpoint(w.scratch, "main", "m", "r", 1, NULL);
    expect(&w, false, "added r/step-000001 m:r:step-1\n");
    assert_int_equal(catalogue_get_by_name(w.db, "m:r:step-1", &first, &e), 0);
    expect(&w, false, "kept r/step-000001 m:r:step-1\n");
    put_checkpoint(w.scratch, "main", "n", "r", 1, NULL);
    expect(&w, false, "renamed r/step-000001 n:r:step-1\n");
    assert_int_equal(catalogue_get_by_name(w.db, "n:r:step-1", &second, &e), 0);
    assert_int_equal(second.id, first.id);
    model_row_release(&first);
    model_row_release(&second);
    close_world(&w);
}

static void rows_follow_directories_that_were_moved(void **state)
{
    struct world w = open_world(state);
    struct model_row first = {0}, second = {0};
    struct err e = {0};
    char from[PATH_MAX];

    put_checkpoint(w.scratch, "main", "m", "r", 1, NULL);
    expect(&w, false, "added r/step-000001 m:r:step-1\n");
    assert_int_equal(catalogue_get_by_name(w.db, "m:r:step-1", &first, &e), 0);
    snprintf(from, sizeof from, "%s", scratch_path(w.scratch, "main/r"));
    assert_int_equal(rename(from, scratch_path(w.scratch, "read/r")), 0);
    expect(&w, false, "kept r/step-000001 m:r:step-1\n");
    assert_int_equal(catalogue_get_by_name(w.db, "m:r:step-1", &second, &e), 0);
    assert_int_equal(second.id, first.id);
    assert_string_equal(second.local_path, scratch_path(w.scratch, "read/r/step-000001"));
    model_row_release(&first);
    model_row_release(&second);
    close_world(&w);
}

static void what_is_no_whole_checkpoint_is_told_and_passed_over(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "r", 1, NULL);
    put_checkpoint(w.scratch, "main", "m", "r", 2, NULL);
    put_dir(w.scratch, "main/r/step-000003");
    put_dir(w.scratch, "main/r/.tmp-step-000004-00000000-00000000");
    put_dir(w.scratch, "main/r/step-5");
    put_file(w.scratch, "main/file", "");
    put_file(w.scratch, "main/r/step-000006", "");
    put_link(w.scratch, "main/r/latest", "step-000002");
    put_link(w.scratch, "main/out", "/etc");
    assert_int_equal(unlinkat(w.scratch->fd, "main/r/step-000002/model.safetensors", 0), 0);
    expect(&w, false,
           "added r/step-000001 m:r:step-1\n"
           "refused r/step-000002 m:r:step-2\n"
           "refused r/step-000003 \n"
           "refused r/step-000006 \n");
    close_world(&w);
}

static void a_file_of_another_hash_is_found_when_asked(void **state)
{
    struct world w = open_world(state);

    put_checkpoint(w.scratch, "main", "m", "r", 1, NULL);
    put_file(w.scratch, "main/r/step-000001/model.safetensors", "changed");
    expect(&w, true, "refused r/step-000001 m:r:step-1\n");
    expect(&w, false, "added r/step-000001 m:r:step-1\n");
    close_world(&w);
}

static void a_row_in_the_way_is_not_replaced(void **state)
{
    struct world w = open_world(state);
    char name[] = "m:r:step-1", source[] = "local", path[] = "/elsewhere", fp16[] = "FP16";
    struct model_row row = {.name = name,
                            .source = source,
                            .local_path = path,
                            .quantization = fp16,
                            .status = MODEL_READY};
    struct err e = {0};

    assert_int_equal(catalogue_add(w.db, &row, NULL, NULL, &e), 0);
    put_checkpoint(w.scratch, "main", "m", "r", 1, NULL);
    put_checkpoint(w.scratch, "main", "m", "r", 2, NULL);
    expect(&w, false,
           "refused r/step-000001 m:r:step-1\n"
           "added r/step-000002 m:r:step-2\n");
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(each_checkpoint_of_each_root_gets_a_row_by_rising_step),
        SCRATCH_TEST(a_second_time_the_rows_keep_their_ids),
        SCRATCH_TEST(rows_follow_directories_that_were_moved),
        SCRATCH_TEST(what_is_no_whole_checkpoint_is_told_and_passed_over),
        SCRATCH_TEST(a_file_of_another_hash_is_found_when_asked),
        SCRATCH_TEST(a_row_in_the_way_is_not_replaced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
