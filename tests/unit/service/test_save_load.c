/* Save, load, names and lineage over a tiny model. */
#include "service_test.h"

static void digest_of_file(const struct fixture *f, const char *path, char out[SHA256_HEX])
{
    struct buf bytes = {0};
    struct err e = {0};
    int fd = fs_open_dir(f->dir, &e);

    assert_int_equal(fs_read_file(fd, path, FS_LINKS_INSIDE, 64 << 20, &bytes, &e), 0);
    sha256_hex_of(bytes.data, bytes.len, out);
    buf_release(&bytes);
    close(fd);
}

static bool in_store(const struct fixture *f, const char *path)
{
    char full[512];

    snprintf(full, sizeof full, "%s/%s", f->dir, path);
    return access(full, F_OK) == 0;
}

static int load_path(struct fixture *f, const char *token, const char *attachment, const char *path)
{
    return call(f, weights_load, token, attachment, json_pack("{s:s}", "path", path));
}

static void a_save_writes_what_is_served_and_renames_the_resident(void **state)
{
    struct fixture *f = *state;
    char served[SHA256_HEX], file[SHA256_HEX], name[SERVED_NAME_MAX];

    load_model(f, TINY);
    attach(f);
    commit(f, 0x08);
    weights_digest(f, served);
    GRANTED(f, save(f, "run", 500, NULL));
    assert_string_equal(text(f, "name"), "tiny-llama:run:step-500");
    assert_string_equal(text(f, "path"), "run/step-000500");
    assert_string_equal(text(f, "parent_check"), "match");
    digest_of_file(f, "run/latest/model.safetensors", file);
    assert_string_equal(text(f, "weights_sha256"), file);
    assert_string_equal(served, file); /* the image is the file */
    served_name(f, name);
    assert_string_equal(name, "tiny-llama:run:step-500");
    GRANTED(f, save(f, "run", 501, "tiny-llama:run:step-400"));
    assert_string_equal(text(f, "parent_check"), "mismatch");
    assert_string_equal(text(f, "weights_sha256"), file);
}

static void refusals_of_a_save_leave_nothing_behind(void **state)
{
    struct fixture *f = *state;
    json_t *body;

    load_model(f, TINY);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    REFUSED(f, save(f, "run", 1, NULL), CHECKPOINT_EXISTS);
    REFUSED(f, save(f, "bad/run", 1, NULL), INVALID_RUN_ID);
    assert_string_equal(detail(f, "reason"), "pattern");
    REFUSED(f, save(f, "run2", -1, NULL), INVALID_MANIFEST);
    body = manifest("run2", 1, NULL);
    json_object_set_new(json_object_get(body, "manifest"), "name", json_string("x"));
    REFUSED(f, call(f, weights_save, TRAINER, f->attachment, body), MANIFEST_FIELD_NOT_CALLERS);
    REFUSED(f, call(f, weights_save, TRAINER, f->attachment, json_object()), VALIDATION_ERROR);
    REFUSED(f, call(f, weights_save, TRAINER, NULL, manifest("run2", 1, NULL)),
            NOT_ATTACHMENT_HOLDER);
    f->set.save_free_space_factor = 1e12;
    REFUSED(f, save(f, "run2", 1, NULL), INSUFFICIENT_STORAGE);
    assert_false(in_store(f, "run2"));
}

static void a_load_in_place_gives_the_holder_the_saved_bytes_at_the_same_address(void **state)
{
    struct fixture *f = *state;
    char first[SHA256_HEX], now[SHA256_HEX];
    struct image *before, *after;

    load_model(f, TINY);
    attach(f);
    commit(f, 0x08);
    weights_digest(f, first);
    GRANTED(f, save(f, "run", 1, NULL));
    commit(f, 0x20);
    weights_digest(f, now);
    assert_string_not_equal(now, first);
    before = engine_peek_image(f->engine);
    GRANTED(f, load_path(f, TRAINER, f->attachment, "run/latest"));
    assert_string_equal(text(f, "mode"), "in_place");
    after = engine_peek_image(f->engine);
    assert_ptr_equal(before->weights->base, after->weights->base);
    weights_digest(f, now);
    assert_string_equal(now, first);
    REFUSED(f, load_path(f, TRAINER, NULL, "run/latest"), ALREADY_ATTACHED);
    REFUSED(f, load_path(f, OPERATOR, NULL, "run/latest"), ALREADY_ATTACHED);
    REFUSED(f, call(f, weights_load, TRAINER, f->attachment, json_pack("{s:i}", "model_id", 1)),
            ALREADY_ATTACHED);
    image_unref(before);
    image_unref(after);
}

static void not_attached_a_load_swaps_and_old_readers_keep_their_image(void **state)
{
    struct fixture *f = *state;
    char first[SHA256_HEX], reader[SHA256_HEX], now[SHA256_HEX];
    struct image *held;

    load_model(f, TINY);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    weights_digest(f, first);
    commit(f, 0x40);
    GRANTED(f, hold(f, weights_detach));
    held = engine_peek_image(f->engine);
    sha256_hex_of(held->weights->base, held->weights->bytes, reader);
    GRANTED(f, load_path(f, TRAINER, NULL, "run/step-000001"));
    assert_string_equal(text(f, "mode"), "in_place");
    weights_digest(f, now);
    assert_string_equal(now, first);
    sha256_hex_of(held->weights->base, held->weights->bytes, now);
    assert_string_equal(now, reader);
    image_unref(held);
}

/* Two images take turns while somebody reads each: none is made a second time. */
static void a_load_whose_image_is_still_read_takes_that_one_and_makes_none(void **state)
{
    struct fixture *f = *state;
    char first[SHA256_HEX], now[SHA256_HEX];
    struct image *one, *two, *again;

    load_model(f, TINY);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    weights_digest(f, first);
    commit(f, 0x40);
    GRANTED(f, save(f, "run", 2, NULL));
    GRANTED(f, hold(f, weights_detach));
    GRANTED(f, load_path(f, TRAINER, NULL, "run/step-000001"));
    one = engine_peek_image(f->engine);
    GRANTED(f, load_path(f, TRAINER, NULL, "run/step-000002"));
    two = engine_peek_image(f->engine);
    assert_ptr_not_equal(one, two);
    GRANTED(f, load_path(f, TRAINER, NULL, "run/step-000001"));
    again = engine_peek_image(f->engine);
    assert_ptr_equal(again, one);
    assert_int_equal(image_bank_alive(engine_bank(f->engine)), 2);
    weights_digest(f, now);
    assert_string_equal(now, first);
    image_unref(again);
    /* The resident itself is read anew: that is the way to mend it. */
    GRANTED(f, load_path(f, TRAINER, NULL, "run/step-000001"));
    again = engine_peek_image(f->engine);
    assert_ptr_not_equal(again, one);
    image_unref(again);
    image_unref(one);
    image_unref(two);
    assert_int_equal(image_bank_alive(engine_bank(f->engine)), 1);
}

/* What a trainer has written into is no longer the file it came from. */
static void an_image_that_was_written_is_not_taken_for_its_file(void **state)
{
    struct fixture *f = *state;
    char first[SHA256_HEX], now[SHA256_HEX];
    struct image *held, *other;

    load_model(f, TINY);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    weights_digest(f, first);
    GRANTED(f, load_path(f, TRAINER, f->attachment, "run/step-000001"));
    commit(f, 0x40);
    GRANTED(f, save(f, "run", 2, NULL));
    GRANTED(f, hold(f, weights_detach));
    held = engine_peek_image(f->engine); /* the commit, by another way */
    GRANTED(f, load_path(f, TRAINER, NULL, "run/step-000001"));
    other = engine_peek_image(f->engine);
    assert_ptr_not_equal(other, held);
    weights_digest(f, now);
    assert_string_equal(now, first);
    f->set.load_prefetch = false; /* the file goes into the resident's own memory */
    GRANTED(f, load_path(f, TRAINER, NULL, "run/step-000002"));
    f->set.load_prefetch = true;
    GRANTED(f, load_path(f, TRAINER, NULL, "run/step-000002"));
    GRANTED(f, load_path(f, TRAINER, NULL, "run/step-000001"));
    weights_digest(f, now);
    assert_string_equal(now, first);
    image_unref(held);
    image_unref(other);
}

static void another_shape_is_a_full_reload_under_a_row_of_its_own(void **state)
{
    struct fixture *f = *state;
    int64_t row = load_model(f, TINY), other;
    struct identity_match m;
    json_t *rows = NULL;
    char name[SERVED_NAME_MAX];

    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    GRANTED(f, hold(f, weights_detach));
    other = load_model(f, TINY_OTHER);
    assert_int_not_equal(other, row);
    GRANTED(f, load_path(f, TRAINER, NULL, "run/latest"));
    assert_string_equal(text(f, "mode"), "full_reload");
    served_name(f, name);
    assert_string_equal(name, "tiny-llama:run:step-1");
    GRANTED(f, models_list(f->s, &rows, &f->r));
    assert_int_equal(json_array_size(rows), 3);
    assert_true(json_is_true(json_object_get(json_array_get(rows, 0), "checkpoint")));
    json_decref(rows);
    /* The way back: the row's own files, under the row's name. */
    GRANTED(f,
            call(f, weights_load, TRAINER, NULL, json_pack("{s:I}", "model_id", (json_int_t)row)));
    assert_string_equal(text(f, "name"), "tiny-llama");
    assert_true(json_is_null(json_object_get(f->data, "weights_sha256")));
    GRANTED(f, identity_find(f->s, "tiny-llama", &m, &f->r));
    assert_true(m.resident);
}

static struct image *reload_between(struct fixture *f, int64_t other)
{
    GRANTED(
        f, call(f, weights_load, TRAINER, NULL, json_pack("{s:I}", "model_id", (json_int_t)other)));
    GRANTED(f, load_path(f, TRAINER, NULL, "run/latest"));
    assert_string_equal(text(f, "mode"), "full_reload");
    return engine_peek_image(f->engine);
}

static void a_full_reload_takes_the_image_that_is_still_read_if_its_files_are_the_same(void **state)
{
    struct fixture *f = *state;
    struct image *one, *again;
    char path[512];
    int64_t other;
    FILE *file;

    load_model(f, TINY);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    GRANTED(f, hold(f, weights_detach));
    other = load_model(f, TINY_OTHER);
    one = reload_between(f, other);
    again = reload_between(f, other);
    assert_ptr_equal(again, one);
    assert_int_equal(image_bank_alive(engine_bank(f->engine)), 1);
    image_unref(again);
    snprintf(path, sizeof path, "%s/run/step-000001/generation_config.json", f->dir);
    assert_non_null(file = fopen(path, "a"));
    assert_int_equal(fputs("\n", file), 1);
    assert_int_equal(fclose(file), 0);
    again = reload_between(f, other);
    assert_ptr_not_equal(again, one);
    image_unref(again);
    image_unref(one);
}

static void a_file_that_is_not_the_hashed_one_is_refused_and_nothing_changes(void **state)
{
    struct fixture *f = *state;
    char before[SHA256_HEX], now[SHA256_HEX], path[512];
    int fd;

    load_model(f, TINY);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    commit(f, 0x01);
    weights_digest(f, before);
    snprintf(path, sizeof path, "%s/run/step-000001/model.safetensors", f->dir);
    fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, 100000), 1);
    close(fd);
    REFUSED(f, load_path(f, TRAINER, f->attachment, "run/latest"), CHECKPOINT_HASH_MISMATCH);
    assert_int_equal(strlen(detail(f, "actual")), 64);
    weights_digest(f, now);
    assert_string_equal(now, before);
    assert_string_equal(condition_now(f), "clean");
}

static void names_follow_the_saved_weights(void **state)
{
    struct fixture *f = *state;
    struct identity_match m;
    struct identity_pin pin;
    int64_t row = load_model(f, TINY);
    json_t *data = NULL;
    char real[PATH_MAX];
    json_t *body;

    assert_non_null(realpath(TINY_OTHER, real));
    body = json_pack("{s:s, s:s}", "source", "local", "local_path", real);
    GRANTED(f, models_register(f->s, body, NULL, &data, &f->r));
    json_decref(body);
    json_decref(data);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    REFUSED(f, identity_find(f->s, "tiny-llama", &m, &f->r), model_not_found);
    assert_non_null(strstr(f->r.message, "tiny-llama:run:step-1"));
    assert_non_null(strstr(f->r.message, "\"model_id\": 1"));
    assert_string_equal(f->r.param, "model");
    REFUSED(f, identity_find(f->s, "nobody", &m, &f->r), model_not_found);
    GRANTED(f, identity_find(f->s, "tiny-llama:run:step-1", &m, &f->r));
    assert_true(m.resident);
    assert_int_equal(m.row_id, row);
    GRANTED(f, identity_find(f->s, "tiny-qwen2", &m, &f->r));
    REFUSED(f, identity_take(f->s, &m, LOAD_POLICY_REFUSE, NULL, &pin, &f->r), model_not_resident);
    REFUSED(f, identity_take(f->s, &m, LOAD_POLICY_AUTO, NULL, &pin, &f->r), already_attached);
    commit(f, 0x02);
    REFUSED(f, identity_take(f->s, &m, LOAD_POLICY_AUTO, NULL, &pin, &f->r), weights_unsaved);
    GRANTED(f, save(f, "run", 2, "tiny-llama:run:step-1"));
    GRANTED(f, hold(f, weights_detach));
    refusal_clear(&f->r);
    GRANTED(f, identity_take(f->s, &m, LOAD_POLICY_AUTO, NULL, &pin, &f->r));
    assert_string_equal(pin.served->name, "tiny-qwen2");
    identity_release(&pin);
}

static void the_header_quotes_names_and_counts_commits(void **state)
{
    struct served served = {.commits = 3, .checkpoint = true};
    struct buf b = {0};

    (void)state;
    strcpy(served.name, "a \"b\"%\\\xc3\xa9:r:step-1");
    identity_header(&served, &b);
    assert_string_equal(buf_str(&b),
                        "\"a %22b%22%25%5C%C3%A9:r:step-1\";origin=checkpoint;commits=3");
    buf_release(&b);
}

/* Owned. */
static json_t *lineage(struct fixture *f)
{
    struct buf text = {0};
    struct err e = {0};
    json_t *data;

    GRANTED(f, weights_lineage(f->s, &text, &f->r));
    data = json_parse(buf_str(&text), text.len, &e);
    assert_non_null(data);
    buf_release(&text);
    return data;
}

static void lineage_follows_the_parents(void **state)
{
    struct fixture *f = *state;
    const json_t *chain;
    struct buf text = {0};
    json_t *data;

    REFUSED(f, weights_lineage(f->s, &text, &f->r), MODEL_NOT_LOADED);
    load_model(f, TINY);
    data = lineage(f);
    assert_int_equal(json_array_size(json_object_get(data, "chain")), 0);
    assert_true(json_is_true(json_object_get(data, "complete")));
    json_decref(data);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    GRANTED(f, save(f, "run", 2, "tiny-llama:run:step-1"));
    data = lineage(f);
    chain = json_object_get(data, "chain");
    assert_int_equal(json_array_size(chain), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(chain, 1), "path")),
                        "run/step-000001");
    json_decref(data);
    GRANTED(f, save(f, "run", 3, "somebody:else:step-9"));
    data = lineage(f);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(data, "break"), "reason")),
        "manifest_missing");
    json_decref(data);
}

static void management_leaves_attached_weights_alone(void **state)
{
    struct fixture *f = *state;
    int64_t row = load_model(f, TINY);
    json_t *data = NULL, *none = json_object();

    REFUSED(f, models_load(f->s, row, NULL, none, NULL, &data, &f->r), MODEL_ALREADY_LOADED);
    REFUSED(f, models_delete(f->s, row, &data, &f->r), MODEL_BUSY);
    attach(f);
    REFUSED(f, models_unload(f->s, row, NULL, &data, &f->r), ALREADY_ATTACHED);
    GRANTED(f, hold(f, weights_detach));
    GRANTED(f, models_unload(f->s, row, NULL, &data, &f->r));
    assert_string_equal(json_string_value(json_object_get(data, "status")), "ready");
    json_decref(data);
    REFUSED(f, models_unload(f->s, row, NULL, &data, &f->r), MODEL_NOT_LOADED);
    GRANTED(f, models_delete(f->s, row, &data, &f->r));
    json_decref(data);
    REFUSED(f, models_get(f->s, row, &data, &f->r), MODEL_NOT_FOUND);
    json_decref(none);
}

static void without_prefetch_the_file_is_read_inside_the_barrier(void **state)
{
    struct fixture *f = *state;
    char first[SHA256_HEX], now[SHA256_HEX];

    f->set.load_prefetch = false;
    load_model(f, TINY);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    weights_digest(f, first);
    commit(f, 0x04);
    GRANTED(f, load_path(f, TRAINER, f->attachment, "run/latest"));
    weights_digest(f, now);
    assert_string_equal(now, first);
    GRANTED(f, hold(f, weights_detach));
    load_model(f, TINY_OTHER);
    GRANTED(f, load_path(f, TRAINER, NULL, "run/latest"));
    assert_string_equal(text(f, "mode"), "full_reload");
    weights_digest(f, now);
    assert_string_equal(now, first);
}

#ifdef CAIRN_FAULTS
static int setup_fault(void **state)
{
    setenv("WEIGHTS_TEST_FAIL", "load_after_bytes:1000", 1);
    *state = fixture_new(NULL);
    ((struct fixture *)*state)->set.load_prefetch = false;
    unsetenv("WEIGHTS_TEST_FAIL");
    return 0;
}

static void a_load_that_fails_after_the_first_write_tears_and_the_next_one_mends(void **state)
{
    struct fixture *f = *state;

    load_model(f, TINY);
    attach(f);
    GRANTED(f, save(f, "run", 1, NULL));
    REFUSED(f, load_path(f, TRAINER, f->attachment, "run/latest"), WEIGHTS_LOAD_FAILED);
    assert_string_equal(detail(f, "weights_state"), "torn");
    assert_string_equal(condition_now(f), "torn");
    REFUSED(f, hold(f, weights_commit_end), COMMIT_NOT_OPEN);
    GRANTED(f, load_path(f, OPERATOR, NULL, "run/latest"));
    assert_string_equal(condition_now(f), "clean");
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(a_save_writes_what_is_served_and_renames_the_resident),
        SERVICE_TEST(refusals_of_a_save_leave_nothing_behind),
        SERVICE_TEST(a_load_in_place_gives_the_holder_the_saved_bytes_at_the_same_address),
        SERVICE_TEST(not_attached_a_load_swaps_and_old_readers_keep_their_image),
        SERVICE_TEST(a_load_whose_image_is_still_read_takes_that_one_and_makes_none),
        SERVICE_TEST(an_image_that_was_written_is_not_taken_for_its_file),
        SERVICE_TEST(another_shape_is_a_full_reload_under_a_row_of_its_own),
        SERVICE_TEST(a_full_reload_takes_the_image_that_is_still_read_if_its_files_are_the_same),
        SERVICE_TEST(a_file_that_is_not_the_hashed_one_is_refused_and_nothing_changes),
        SERVICE_TEST(names_follow_the_saved_weights),
        cmocka_unit_test(the_header_quotes_names_and_counts_commits),
        SERVICE_TEST(lineage_follows_the_parents),
        SERVICE_TEST(management_leaves_attached_weights_alone),
        SERVICE_TEST(without_prefetch_the_file_is_read_inside_the_barrier),
#ifdef CAIRN_FAULTS
        cmocka_unit_test_setup_teardown(
            a_load_that_fails_after_the_first_write_tears_and_the_next_one_mends, setup_fault,
            teardown),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
