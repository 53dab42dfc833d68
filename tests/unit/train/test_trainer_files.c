/* The optimizer's files: a view of one moment that no later step shows in, and what is read back;
 * and what an image holds beside the parameters. */
#include "train/trainer_fixture.h"

#include <pthread.h>

#include "base/buf.h"

static const struct lora_settings lora = {
    .rank = 4, .alpha = 32, .attn = true, .mlp = true, .unembed = true, .seed = 9};

static void make_data(struct data *d)
{
    static const int32_t tokens[12] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8},
                         targets[12] = {1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9};

    *d = (struct data){.n = 1};
    d->datum[0] = (struct train_datum){.tokens = tokens, .loss = {.n = 12, .targets = targets}};
}

static void train(struct rig *r, int steps)
{
    struct data d;

    make_data(&d);
    for (int i = 0; i < steps; i++) {
        take_pass(r, &d, true);
        take_step(r, &plain_adam);
    }
}

static struct trainer_frozen *freeze(struct rig *r)
{
    struct err e = {0};
    struct trainer_frozen *f = frozen_now(r->t, &e);

    must(f ? 0 : -1, &e);
    return f;
}

/* ---- views ---- */

/* Two views of one moment, read at other times: a step begins when `cut` bytes of the first have
 * been read, and the readers go on between its slices. */
static void check_overtaken(struct rig *r, size_t cut)
{
    struct bytes want = optimizer_file(r->t);
    struct trainer_frozen *early = freeze(r), *late = freeze(r);
    struct bytes a = room_for(early), b = room_for(late);
    struct err e = {0};
    struct data d;

    a.n = cut < a.n ? cut : a.n;
    read_rest(early, &a, 0, 5000);
    make_data(&d);
    take_pass(r, &d, true);
    must(trainer_begin_step(r->t, &plain_adam, r->mode == TRAIN_FULL ? r->other : NULL, &e), &e);
    for (size_t at = a.n, end; !run_slices(r, 1); at = end, a.n = end) {
        end = at + 7000 < want.n ? at + 7000 : want.n;
        a.n = end;
        read_rest(early, &a, at, 3001);
    }
    size_t at = a.n;

    trainer_end(r->t);
    if (r->mode == TRAIN_FULL)
        rig_flip(r);
    a.n = want.n;
    read_rest(early, &a, at, 4096);
    train(r, 1);
    read_rest(late, &b, 0, 1 << 16);
    same_bytes(&a, &want);
    same_bytes(&b, &want);
    struct bytes now = optimizer_file(r->t);

    assert_memory_not_equal(now.data, want.data, want.n);
    trainer_thaw(early);
    trainer_thaw(late);
    free(now.data);
    free(want.data);
    free(a.data);
    free(b.data);
}

static void steps_never_show_in_a_view_of_before(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        struct rig r;

        rig_open(&r, "tiny-llama", 2);
        rig_make_trainer(&r, mode ? TRAIN_FULL : TRAIN_LORA, false, &lora);
        check_overtaken(&r, 0); /* of a fresh run: moments are zero */
        struct trainer_frozen *f = freeze(&r);
        struct bytes b = room_for(f);
        size_t n = b.n;

        free(b.data);
        trainer_thaw(f);
        for (size_t cut = 0; cut <= n; cut += n / 7 + 1)
            check_overtaken(&r, cut);
        check_overtaken(&r, n);
        rig_close(&r);
    }
}

/* Masters of a run that has not stepped are made in slices, and a cancelled freeze may be begun
 * again. */
static void a_fresh_run_is_frozen_in_slices(void **state)
{
    struct rig r;
    struct err e = {0};

    (void)state;
    rig_open(&r, "tiny-lfm2", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    must(trainer_begin_freeze(r.t, &e), &e);
    assert_int_equal(trainer_begin_freeze(r.t, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(trainer_run(r.t, 1, &e), TRAIN_MORE);
    assert_null(trainer_take_frozen(r.t));
    trainer_end(r.t);
    must(trainer_begin_freeze(r.t, &e), &e);
    while (trainer_run(r.t, 1, &e) == TRAIN_MORE)
        ;
    struct trainer_frozen *f = trainer_take_frozen(r.t);

    trainer_end(r.t);
    assert_non_null(f);
    struct bytes b = room_for(f);

    read_rest(f, &b, 0, 1 << 16);
    const float *master = saved_tensor(&b, "master.model.embed_tokens.weight"),
                *moment = saved_tensor(&b, "exp_avg.model.embed_tokens.weight");
    const struct st_tensor *embed = weights_find(r.fx.weights, "model.embed_tokens.weight");
    const uint16_t *value = weights_data(r.fx.weights, embed);

    assert_true(master && moment);
    for (size_t i = 0; i < embed->bytes / 2; i++)
        assert_true(master[i] == dtype_bf16_to_f32(value[i]) && moment[i] == 0);
    trainer_thaw(f);
    free(b.data);
    rig_close(&r);
}

static void a_view_that_nobody_took_goes_with_its_operation(void **state)
{
    struct rig r;
    struct err e = {0};

    (void)state;
    rig_open(&r, "tiny-llama", 1);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    must(trainer_begin_freeze(r.t, &e), &e);
    assert_int_equal(trainer_run(r.t, 0, &e), TRAIN_DONE);
    trainer_end(r.t);
    assert_null(trainer_take_frozen(r.t));
    train(&r, 1);
    rig_close(&r);
}

struct reader {
    struct trainer_frozen *view;
    struct bytes into;
};

static void *read_slowly(void *arg)
{
    struct reader *rd = arg;

    read_rest(rd->view, &rd->into, 0, 2048);
    return NULL;
}

static void a_reading_thread_sees_one_moment_while_the_run_goes_on(void **state)
{
    struct rig r;

    (void)state;
    rig_open(&r, "tiny-lfm2", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    train(&r, 1);
    for (int i = 0; i < 8; i++) {
        struct bytes want = optimizer_file(r.t);
        struct reader rd = {.view = freeze(&r)};
        pthread_t thread;

        rd.into = room_for(rd.view);
        assert_int_equal(pthread_create(&thread, NULL, read_slowly, &rd), 0);
        train(&r, 2);
        pthread_join(thread, NULL);
        same_bytes(&rd.into, &want);
        trainer_thaw(rd.view);
        free(rd.into.data);
        free(want.data);
    }
    rig_close(&r);
}

static void a_view_outlives_reset_adoption_and_the_run(void **state)
{
    struct rig r;
    struct err e = {0};

    (void)state;
    rig_open(&r, "tiny-qwen3", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    train(&r, 2);
    struct bytes want = optimizer_file(r.t);
    struct trainer_frozen *views[3] = {freeze(&r), freeze(&r), freeze(&r)};

    trainer_reset(r.t);
    train(&r, 1);
    struct trainer_state *s = read_saved(r.t, &want, 2, &e);

    must(s ? 0 : -1, &e);
    struct bytes b = room_for(views[0]);

    read_rest(views[0], &b, 0, 9999);
    same_bytes(&b, &want);
    trainer_adopt(r.t, s);
    trainer_state_free(s);
    train(&r, 1);
    read_rest(views[1], &b, 0, 12345);
    same_bytes(&b, &want);
    rig_close(&r);
    read_rest(views[2], &b, 0, 1 << 20);
    same_bytes(&b, &want);
    for (int i = 0; i < 3; i++)
        trainer_thaw(views[i]);
    free(b.data);
    free(want.data);
}

/* ---- the file ---- */

static void check_names(const struct rig *r, const struct st_index *ix, int file)
{
    static const char *const prefixes[] = {"exp_avg.", "exp_avg_sq.", "master."};
    int n, first = file ? 2 : 0, end = file ? 3 : 2;
    const struct train_param *p = trainer_params(r->t, &n);

    assert_int_equal(ix->n, n * (end - first));
    for (int i = 0; i < n; i++)
        for (int s = first; s < end; s++) {
            char name[256];

            snprintf(name, sizeof name, "%s%s", prefixes[s], p[i].name);
            const struct st_tensor *t = st_index_find(ix, name);

            assert_non_null(t);
            assert_int_equal(t->dtype, DTYPE_F32);
            assert_int_equal(t->bytes, p[i].n * sizeof(float));
            assert_memory_equal(t->shape, p[i].dims, (size_t)t->ndim * sizeof *t->shape);
        }
}

/* Masters have a file of their own, where there are any. */
static void the_files_are_canonical_and_name_every_parameter(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++)
        for (int mode = 0; mode < 2; mode++) {
            struct rig r;

            rig_open(&r, tiny_models[i], 1);
            rig_make_trainer(&r, mode ? TRAIN_FULL : TRAIN_LORA, false, &lora);
            struct bytes b = optimizer_file(r.t);
            int n = mode && r.fx.model->dtype != KERN_F32 ? 2 : 1;

            assert_int_equal(b.n > b.first, n == 2);
            for (int file = 0; file < n; file++) {
                struct st_index ix = {0};

                index_of(&b, file, &ix);
                assert_true(ix.canonical);
                assert_int_equal(ix.data_start % ST_DATA_ALIGN, 0);
                check_names(&r, &ix, file);
                st_index_release(&ix);
            }
            free(b.data);
            rig_close(&r);
        }
}

/* Both files' tensors in one, as saves of earlier versions have them. */
static struct bytes in_one_file(const struct bytes *b)
{
    struct st_index part[2] = {0}, all = {0};
    struct bytes one = {0};
    struct buf header = {0};
    struct err e = {0};

    for (int i = 0; i < 2; i++) {
        index_of(b, i, &part[i]);
        for (size_t k = 0; k < part[i].n; k++) {
            const struct st_tensor *t = &part[i].tensors[k];

            must(st_index_add(&all, t->name, t->name_len, t->dtype, t->ndim, t->shape, &e), &e);
        }
    }
    must(st_index_plan(&all, &header, &e), &e);
    one.n = one.first = header.len + all.data_bytes;
    one.data = malloc(one.n);
    assert_non_null(one.data);
    memcpy(one.data, header.data, header.len);
    for (size_t k = 0; k < all.n; k++)
        memcpy(one.data + header.len + all.tensors[k].offset, saved_tensor(b, all.tensors[k].name),
               all.tensors[k].bytes);
    for (int i = 0; i < 2; i++)
        st_index_release(&part[i]);
    st_index_release(&all);
    buf_release(&header);
    return one;
}

static void a_save_in_one_file_is_read_too(void **state)
{
    struct rig r, fresh;
    struct err e = {0};

    (void)state;
    rig_open(&r, "tiny-qwen2", 1);
    rig_open(&fresh, "tiny-qwen2", 1);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    rig_make_trainer(&fresh, TRAIN_FULL, false, NULL);
    train(&r, 2);
    struct bytes b = optimizer_file(r.t), one = in_one_file(&b);
    struct trainer_state *s = read_saved(fresh.t, &one, 2, &e);

    must(s ? 0 : -1, &e);
    trainer_adopt(fresh.t, s);
    trainer_state_free(s);
    struct bytes got = optimizer_file(fresh.t);

    same_bytes(&got, &b);
    assert_int_equal(trainer_step(fresh.t), 2);
    free(got.data);
    free(one.data);
    free(b.data);
    rig_close(&r);
    rig_close(&fresh);
}

static void a_reading_that_is_cut_short_changes_nothing(void **state)
{
    struct rig r;
    struct err e = {0};
    atomic_bool stop = true;

    (void)state;
    rig_open(&r, "tiny-llama", 1);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    struct bytes b = optimizer_file(r.t);
    int fds[FROZEN_FILES], n = open_files(&b, fds);
    int64_t step = trainer_step(r.t);
    struct trainer_state *s;

    assert_null(trainer_state_read(r.t, fds, n, 7, &stop, &e));
    assert_int_equal(e.code, ERR_CANCELLED);
    assert_int_equal(trainer_step(r.t), step);
    stop = false;
    s = trainer_state_read(r.t, fds, n, 7, &stop, &e);
    assert_non_null(s);
    trainer_state_free(s);
    close_files(fds, n);
    free(b.data);
    rig_close(&r);
}

static void a_tensor_in_both_files_is_refused(void **state)
{
    struct rig r;
    struct err e = {0};

    (void)state;
    rig_open(&r, "tiny-llama", 1);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    struct bytes b = optimizer_file(r.t), one = in_one_file(&b);
    int fds[FROZEN_FILES] = {file_with(one.data, one.n),
                             file_with(b.data + b.first, b.n - b.first)};

    assert_null(trainer_state_read(r.t, fds, 2, 1, NULL, &e));
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "twice"));
    close_files(fds, 2);
    free(one.data);
    free(b.data);
    rig_close(&r);
}

/* A copy of the file in which one text is another of the same length. */
static struct bytes changed(const struct bytes *b, const char *from, const char *to)
{
    struct bytes c = {malloc(b->n), b->n, b->first};
    char *at;

    assert_int_equal(strlen(from), strlen(to));
    memcpy(c.data, b->data, b->n);
    at = memmem(c.data, c.n, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    return c;
}

static void refused(struct rig *r, const struct bytes *b, const char *names)
{
    struct err e = {0};

    assert_null(read_saved(r->t, b, 3, &e));
    assert_int_equal(e.code, ERR_FORMAT);
    if (!strstr(e.msg, names))
        fail_msg("\"%s\" does not name %s", e.msg, names);
}

static void a_file_of_another_run_is_refused_by_the_tensor(void **state)
{
    struct rig r, other;

    (void)state;
    rig_open(&r, "tiny-llama", 1);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    rig_open(&other, "tiny-qwen2", 1);
    rig_make_trainer(&other, TRAIN_FULL, false, NULL);
    struct bytes b = optimizer_file(r.t), theirs = optimizer_file(other.t);
    struct bytes renamed = changed(&b, "master.model.norm.weight", "master.model.nope.weight"),
                 shape = changed(&b, "\"shape\":[112,64]", "\"shape\":[64,112]"),
                 type = changed(&b, "\"dtype\":\"F32\"", "\"dtype\":\"I32\""),
                 cut = {b.data, b.n - 4, b.first}, moments = {b.data, b.first, b.first};
    struct err e = {0};

    refused(&r, &theirs, "exp_avg.");
    refused(&r, &renamed, "master.model.norm.weight");
    refused(&r, &shape, "exp_avg.model.layers.0.mlp.gate_proj.weight");
    refused(&r, &type, "I32");
    refused(&r, &cut, "");
    refused(&r, &moments, "master.");
    assert_null(read_saved(r.t, &b, -1, &e));
    struct trainer_state *s = read_saved(r.t, &b, 1, &e);

    must(s ? 0 : -1, &e);
    trainer_state_free(s);
    trainer_state_free(NULL);
    free(renamed.data);
    free(shape.data);
    free(type.data);
    free(b.data);
    free(theirs.data);
    rig_close(&r);
    rig_close(&other);
}

static void an_adapter_of_another_rank_is_refused(void **state)
{
    struct lora_settings wide = lora;
    struct err e = {0};
    struct rig r;

    (void)state;
    wide.rank = 5;
    rig_open(&r, "tiny-llama", 1);
    rig_make_trainer(&r, TRAIN_LORA, false, &lora);
    struct adapter *a = adapter_new(&r.fx.config, &wide, &e);

    assert_int_equal(trainer_set_adapter(r.t, &a, &e), -1);
    assert_int_equal(e.code, ERR_ARG);
    train(&r, 1);
    adapter_unref(a);
    rig_close(&r);
}

/* ---- images ---- */

static void a_stored_lm_head_stays_equal_to_the_tied_embedding(void **state)
{
    struct rig r;

    (void)state;
    rig_open_dir(&r, "tests/vectors/cases/dirs/tied_head_equal", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    const struct st_tensor *head = weights_find(r.fx.weights, "lm_head.weight"),
                           *embed = weights_find(r.fx.weights, "model.embed_tokens.weight");
    char *was = malloc(embed->bytes);

    assert_true(head && embed && head->bytes == embed->bytes);
    memcpy(was, weights_data(r.fx.weights, embed), embed->bytes);
    train(&r, 2);
    assert_memory_equal(weights_data(r.fx.weights, head), weights_data(r.fx.weights, embed),
                        embed->bytes);
    assert_memory_not_equal(weights_data(r.fx.weights, embed), was, embed->bytes);
    free(was);
    rig_close(&r);
}

/* Every tensor of the next image is written, whatever its memory held. */
static void a_step_leaves_nothing_of_the_memory_it_fills(void **state)
{
    struct rig a, b;

    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        rig_open(&a, tiny_models[i], 2);
        rig_open(&b, tiny_models[i], 2);
        rig_make_trainer(&a, TRAIN_FULL, false, NULL);
        rig_make_trainer(&b, TRAIN_FULL, false, NULL);
        memset(b.other->base + b.other->data_start, 0xa5, b.other->bytes - b.other->data_start);
        train(&a, 1);
        train(&b, 1);
        assert_memory_equal(a.fx.weights->base, b.fx.weights->base, a.fx.weights->bytes);
        rig_close(&a);
        rig_close(&b);
    }
}

static void the_memory_of_a_run_is_known_before(void **state)
{
    struct rig r;
    int n;

    (void)state;
    rig_open(&r, "tiny-llama", 1);
    size_t params = r.fx.model->n_parameters * sizeof(float);
    struct trainer_config full = {.mode = TRAIN_FULL}, small = {.mode = TRAIN_LORA, .lora = lora};

    assert_in_range(trainer_bytes(&full, r.fx.model), 4 * params, 4 * params + (64 << 10));
    rig_make_trainer(&r, TRAIN_LORA, false, &lora);
    const struct train_param *p = trainer_params(r.t, &n);

    params = 0;
    for (int i = 0; i < n; i++)
        params += p[i].n * sizeof(float);
    assert_in_range(trainer_bytes(&small, r.fx.model), 6 * params, 6 * params + (64 << 10));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_never_show_in_a_view_of_before),
        cmocka_unit_test(a_fresh_run_is_frozen_in_slices),
        cmocka_unit_test(a_view_that_nobody_took_goes_with_its_operation),
        cmocka_unit_test(a_save_in_one_file_is_read_too),
        cmocka_unit_test(a_reading_that_is_cut_short_changes_nothing),
        cmocka_unit_test(a_tensor_in_both_files_is_refused),
        cmocka_unit_test(a_reading_thread_sees_one_moment_while_the_run_goes_on),
        cmocka_unit_test(a_view_outlives_reset_adoption_and_the_run),
        cmocka_unit_test(the_files_are_canonical_and_name_every_parameter),
        cmocka_unit_test(a_file_of_another_run_is_refused_by_the_tensor),
        cmocka_unit_test(an_adapter_of_another_rank_is_refused),
        cmocka_unit_test(a_stored_lm_head_stays_equal_to_the_tied_embedding),
        cmocka_unit_test(a_step_leaves_nothing_of_the_memory_it_fills),
        cmocka_unit_test(the_memory_of_a_run_is_known_before),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
