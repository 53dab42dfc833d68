/* The rows of the model catalogue. */
#include "store/scratch.h"

#include "db/db.h"
#include "store/catalogue.h"

static struct db *fresh(void)
{
    struct err e = {0};
    struct db *d = db_open(":memory:", &e);

    if (!d)
        fail_msg("%s", e.msg);
    return d;
}

/* Strings of a row that is only handed in are never freed by the catalogue. */
static struct model_row row_of(const char *name, const char *repo, const char *path)
{
    return (struct model_row){
        .name = (char *)(uintptr_t)name,
        .source = (char *)(uintptr_t)(repo ? "huggingface" : "local"),
        .repo_id = (char *)(uintptr_t)repo,
        .local_path = (char *)(uintptr_t)path,
        .quantization = (char *)(uintptr_t) "FP16",
        .disk_size_mb = -1,
        .estimated_memory_mb = -1,
        .download_progress = 100,
        .status = MODEL_READY,
    };
}

static int64_t add(struct db *d, const char *name, const char *repo, const char *path)
{
    struct model_row row = row_of(name, repo, path);
    struct err e = {0};

    if (catalogue_add(d, &row, NULL, NULL, &e) < 0)
        fail_msg("%s: %s", name, e.msg);
    return row.id;
}

static struct model_row get(struct db *d, int64_t id)
{
    struct model_row row;
    struct err e = {0};

    if (catalogue_get(d, id, &row, &e) < 0)
        fail_msg("%s", e.msg);
    return row;
}

static void a_row_comes_back_as_it_was_added(void **state)
{
    struct db *d = fresh();
    struct model_row in = row_of("m", "org/m", "/models/m");
    struct model_row out;
    struct err e = {0};

    (void)state;
    in.architecture = (char *)(uintptr_t) "LlamaForCausalLM";
    in.disk_size_mb = 270;
    in.trust_remote_code = true;
    assert_int_equal(catalogue_add(d, &in, NULL, NULL, &e), 0);
    assert_true(in.id >= 1 && in.created_ms > 0 && in.created_ms == in.updated_ms);
    out = get(d, in.id);
    assert_string_equal(out.name, "m");
    assert_string_equal(out.repo_id, "org/m");
    assert_string_equal(out.local_path, "/models/m");
    assert_string_equal(out.architecture, "LlamaForCausalLM");
    assert_null(out.params);
    assert_null(out.error_message);
    assert_int_equal(out.disk_size_mb, 270);
    assert_int_equal(out.estimated_memory_mb, -1);
    assert_int_equal(out.loaded_ms, 0);
    assert_int_equal(out.status, MODEL_READY);
    assert_true(out.trust_remote_code && !out.locked && !out.checkpoint);
    model_row_release(&out);
    db_close(d);
}

static void an_id_is_never_given_out_twice(void **state)
{
    struct db *d = fresh();
    struct err e = {0};
    int64_t first = add(d, "a", NULL, "/a");

    (void)state;
    assert_int_equal(catalogue_delete(d, first, &e), 0);
    assert_true(add(d, "a", NULL, "/a") > first);
    db_close(d);
}

static void a_row_that_is_in_use_is_not_deleted_as_an_idle_one(void **state)
{
    struct db *d = fresh();
    struct err e = {0};
    int64_t id = add(d, "a", NULL, "/a");
    struct model_row row;

    (void)state;
    assert_int_equal(catalogue_set_status(d, id, MODEL_LOADING, NULL, &e), 0);
    assert_int_equal(catalogue_delete_idle(d, id, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_int_equal(catalogue_set_status(d, id, MODEL_LOADED, NULL, &e), 0);
    assert_int_equal(catalogue_delete_idle(d, id, &e), -1);
    assert_int_equal(catalogue_set_status(d, id, MODEL_READY, NULL, &e), 0);
    assert_int_equal(catalogue_set_locked(d, id, true, &e), 0);
    assert_int_equal(catalogue_delete_idle(d, id, &e), -1);
    assert_int_equal(catalogue_set_locked(d, id, false, &e), 0);
    assert_int_equal(catalogue_delete_idle(d, id, &e), 0);
    assert_int_equal(catalogue_get(d, id, &row, &e), -1);
    db_close(d);
}

static void a_clash_says_with_which_row_and_why(void **state)
{
    static const struct {
        const char *name, *repo, *path;
        enum catalogue_clash clash;
    } rows[] = {
        {"other", "org/m", NULL, CATALOGUE_SAME_REPO},
        {"other", NULL, "/models/m", CATALOGUE_SAME_PATH},
        {"m", NULL, "/elsewhere", CATALOGUE_SAME_NAME},
        {"m", "org/m", "/models/m", CATALOGUE_SAME_REPO},
    };
    struct db *d = fresh();
    int64_t id = add(d, "m", "org/m", "/models/m");

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_row row = row_of(rows[i].name, rows[i].repo, rows[i].path);
        enum catalogue_clash clash;
        struct err e = {0};
        int64_t other;

        assert_int_equal(catalogue_add(d, &row, &clash, &other, &e), -1);
        assert_int_equal(e.code, ERR_CONFLICT);
        assert_int_equal(clash, rows[i].clash);
        assert_int_equal(other, id);
    }
    db_close(d);
}

static void an_unknown_row_is_not_found_by_any_call(void **state)
{
    struct db *d = fresh();
    struct model_row row;
    struct err e = {0};

    (void)state;
    assert_int_equal(catalogue_get(d, 7, &row, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_int_equal(catalogue_get_by_name(d, "none", &row, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_int_equal(catalogue_get_by_path(d, "/none", &row, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_int_equal(catalogue_delete(d, 7, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_int_equal(catalogue_set_status(d, 7, MODEL_READY, NULL, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_int_equal(catalogue_set_locked(d, 7, true, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    db_close(d);
}

static void the_newest_row_is_listed_first(void **state)
{
    struct db *d = fresh();
    struct model_row *rows;
    struct err e = {0};
    char name[16], path[16];
    int n;

    (void)state;
    assert_int_equal(catalogue_list(d, &rows, &n, &e), 0);
    assert_int_equal(n, 0);
    catalogue_list_release(rows, n);
    for (int i = 0; i < 9; i++) {
        snprintf(name, sizeof name, "m%d", i);
        snprintf(path, sizeof path, "/m%d", i);
        add(d, name, NULL, path);
    }
    assert_int_equal(catalogue_list(d, &rows, &n, &e), 0);
    assert_int_equal(n, 9);
    assert_string_equal(rows[0].name, "m8");
    assert_string_equal(rows[8].name, "m0");
    catalogue_list_release(rows, n);
    db_close(d);
}

static void a_load_stamps_its_time_and_an_error_its_message(void **state)
{
    struct db *d = fresh();
    struct err e = {0};
    int64_t id = add(d, "m", NULL, "/m");
    struct model_row row;

    (void)state;
    assert_int_equal(catalogue_set_status(d, id, MODEL_LOADED, NULL, &e), 0);
    row = get(d, id);
    assert_int_equal(row.status, MODEL_LOADED);
    assert_true(row.loaded_ms > 0);
    model_row_release(&row);
    assert_int_equal(catalogue_set_status(d, id, MODEL_ERROR, "it's broken", &e), 0);
    row = get(d, id);
    assert_string_equal(row.error_message, "it's broken");
    assert_true(row.loaded_ms > 0);
    model_row_release(&row);
    assert_int_equal(catalogue_set_status(d, id, MODEL_READY, NULL, &e), 0);
    row = get(d, id);
    assert_null(row.error_message);
    model_row_release(&row);
    db_close(d);
}

static void facts_and_locks_are_kept(void **state)
{
    struct db *d = fresh();
    struct err e = {0};
    struct model_row row = row_of("m", NULL, "/m");

    (void)state;
    assert_int_equal(catalogue_add(d, &row, NULL, NULL, &e), 0);
    row.params = (char *)(uintptr_t) "135M";
    row.estimated_memory_mb = 300;
    assert_int_equal(catalogue_set_facts(d, &row, &e), 0);
    assert_int_equal(catalogue_set_locked(d, row.id, true, &e), 0);
    row = get(d, row.id);
    assert_string_equal(row.params, "135M");
    assert_int_equal(row.estimated_memory_mb, 300);
    assert_int_equal(row.disk_size_mb, -1);
    assert_true(row.locked);
    model_row_release(&row);
    db_close(d);
}

static void a_carrier_row_is_reused_and_renamed(void **state)
{
    struct db *d = fresh();
    struct err e = {0};
    struct model_row row;
    int64_t id, again;
    bool ordinary;

    (void)state;
    assert_int_equal(
        catalogue_carrier(d, "b:r:step-1", "/c/r/step-000001", false, &id, &ordinary, &e), 0);
    assert_int_equal(
        catalogue_carrier(d, "b:r:step-1", "/c/r/step-000001", false, &again, &ordinary, &e), 0);
    assert_int_equal(id, again);
    assert_int_equal(
        catalogue_carrier(d, "c:r:step-1", "/c/r/step-000001", false, &again, &ordinary, &e), 0);
    assert_int_equal(id, again);
    row = get(d, id);
    assert_string_equal(row.name, "c:r:step-1");
    assert_true(row.checkpoint);
    assert_string_equal(row.source, "local");
    model_row_release(&row);
    db_close(d);
}

static void a_carrier_row_that_is_being_loaded_cannot_be_deleted(void **state)
{
    struct db *d = fresh();
    struct model_row row;
    struct err e = {0};
    int64_t id;
    bool ordinary;

    (void)state;
    for (int i = 0; i < 2; i++) { /* a new row, and one that was there */
        assert_int_equal(
            catalogue_carrier(d, "b:r:step-1", "/c/r/step-000001", true, &id, &ordinary, &e), 0);
        row = get(d, id);
        assert_int_equal(row.status, MODEL_LOADING);
        assert_null(row.error_message);
        model_row_release(&row);
        assert_int_equal(catalogue_delete_idle(d, id, &e), -1);
        assert_int_equal(e.code, ERR_NOT_FOUND);
        assert_int_equal(catalogue_set_status(d, id, MODEL_ERROR, "why", &e), 0);
    }
    assert_int_equal(catalogue_delete_idle(d, id, &e), 0);
    db_close(d);
}

static void a_directory_of_an_ordinary_model_takes_no_carrier(void **state)
{
    struct db *d = fresh();
    struct err e = {0};
    int64_t id = add(d, "mine", NULL, "/c/r/step-000001"), found;
    bool ordinary;

    (void)state;
    assert_int_equal(
        catalogue_carrier(d, "b:r:step-1", "/c/r/step-000001", false, &found, &ordinary, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_true(ordinary);
    assert_int_equal(found, id);
    assert_int_equal(catalogue_carrier(d, "mine", "/c/r/step-000002", false, &found, &ordinary, &e),
                     -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_false(ordinary);
    assert_int_equal(found, id);
    db_close(d);
}

static void a_carrier_row_follows_a_directory_that_moved(void **state)
{
    struct scratch *s = *state;
    struct db *d = fresh();
    struct model_row row;
    struct err e = {0};
    int64_t id, again;
    bool ordinary;

    put_dir(s, "here");
    assert_int_equal(
        catalogue_carrier(d, "b:r:step-1", "/gone/r/step-000001", false, &id, &ordinary, &e), 0);
    assert_int_equal(catalogue_start(d, &e), 0);
    assert_int_equal(
        catalogue_carrier(d, "b:r:step-1", scratch_path(s, "here"), false, &again, &ordinary, &e),
        0);
    assert_int_equal(again, id);
    assert_int_equal(catalogue_get(d, id, &row, &e), 0);
    assert_string_equal(row.local_path, scratch_path(s, "here"));
    assert_int_equal(row.status, MODEL_READY);
    assert_null(row.error_message);
    model_row_release(&row);
    assert_int_equal(
        catalogue_carrier(d, "b:r:step-1", "/copy/r/step-000001", false, &again, &ordinary, &e),
        -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(again, id);
    db_close(d);
}

static void a_carrier_row_is_ready_again_with_its_directory(void **state)
{
    static const enum model_status expected[] = {MODEL_ERROR, MODEL_READY};
    struct scratch *s = *state;
    struct db *d = fresh();
    struct model_row row;
    struct err e = {0};
    bool ordinary;
    int64_t id;

    assert_int_equal(
        catalogue_carrier(d, "b:r:step-1", scratch_path(s, "mounted"), false, &id, &ordinary, &e),
        0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(catalogue_start(d, &e), 0);
        assert_int_equal(catalogue_get(d, id, &row, &e), 0);
        assert_int_equal(row.status, expected[i]);
        assert_int_equal(row.error_message == NULL, i);
        model_row_release(&row);
        put_dir(s, "mounted");
    }
    db_close(d);
}

static void a_start_settles_what_a_stop_left_open(void **state)
{
    struct scratch *s = *state;
    struct db *d = fresh();
    struct err e = {0};
    int64_t id[6];
    bool ordinary;
    static const enum model_status before[] = {MODEL_DOWNLOADING, MODEL_LOADING, MODEL_LOADED,
                                               MODEL_ERROR};
    static const enum model_status after[] = {MODEL_ERROR, MODEL_READY, MODEL_READY,
                                              MODEL_ERROR, MODEL_READY, MODEL_ERROR};
    char name[16], path[16];

    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "m%d", i);
        snprintf(path, sizeof path, "/m%d", i);
        id[i] = add(d, name, NULL, path);
        assert_int_equal(catalogue_set_status(d, id[i], before[i], "old", &e), 0);
    }
    put_dir(s, "there");
    assert_int_equal(
        catalogue_carrier(d, "b:r:step-1", scratch_path(s, "there"), false, &id[4], &ordinary, &e),
        0);
    assert_int_equal(
        catalogue_carrier(d, "b:r:step-2", scratch_path(s, "gone"), false, &id[5], &ordinary, &e),
        0);
    assert_int_equal(catalogue_start(d, &e), 0);
    for (int i = 0; i < 6; i++) {
        struct model_row row = get(d, id[i]);

        assert_int_equal(row.status, after[i]);
        assert_true((row.status == MODEL_ERROR) == (row.error_message != NULL));
        model_row_release(&row);
    }
    db_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_comes_back_as_it_was_added),
        cmocka_unit_test(an_id_is_never_given_out_twice),
        cmocka_unit_test(a_row_that_is_in_use_is_not_deleted_as_an_idle_one),
        cmocka_unit_test(a_clash_says_with_which_row_and_why),
        cmocka_unit_test(an_unknown_row_is_not_found_by_any_call),
        cmocka_unit_test(the_newest_row_is_listed_first),
        cmocka_unit_test(a_load_stamps_its_time_and_an_error_its_message),
        cmocka_unit_test(facts_and_locks_are_kept),
        cmocka_unit_test(a_carrier_row_is_reused_and_renamed),
        cmocka_unit_test(a_carrier_row_that_is_being_loaded_cannot_be_deleted),
        cmocka_unit_test(a_directory_of_an_ordinary_model_takes_no_carrier),
        SCRATCH_TEST(a_carrier_row_follows_a_directory_that_moved),
        SCRATCH_TEST(a_carrier_row_is_ready_again_with_its_directory),
        SCRATCH_TEST(a_start_settles_what_a_stop_left_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
