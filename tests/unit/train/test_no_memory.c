/* Every allocation of a run fails once: each time one clean error, nothing leaked, and the run is
 * what it was. */
#include "train/trainer_fixture.h"

#include "base/buf.h"
#include "no_memory.h"

static const struct lora_settings lora = {
    .rank = 2, .alpha = 32, .attn = true, .mlp = true, .unembed = true, .seed = 1};

/* ---- attempts ---- */

struct world {
    struct rig r;
    struct data d;
    struct bytes file;            /* the optimizer's, */
    int fds[FROZEN_FILES], n_fds; /* opened */
};

typedef int attempt_fn(struct world *w, struct err *e);

static int make(struct world *w, struct err *e)
{
    struct trainer_config c = {
        .mode = w->r.mode, .lora = lora, .pool = w->r.fx.pool, .pass = w->r.pass};
    struct trainer *t = trainer_new(&c, w->r.fx.weights, w->r.fx.model, e);

    trainer_free(t);
    return t ? 0 : -1;
}

static int begin_pass(struct world *w, struct err *e)
{
    struct loss_config c = sum_of_cross_entropy();
    int rc = trainer_begin_pass(w->r.t, &c, 1, w->d.datum, w->d.n, true, e);

    if (rc == 0)
        trainer_end(w->r.t);
    return rc;
}

static int begin_step(struct world *w, struct err *e)
{
    int rc = trainer_begin_step(w->r.t, &plain_adam, w->r.other, e);

    if (rc == 0)
        trainer_end(w->r.t);
    return rc;
}

static int freeze(struct world *w, struct err *e)
{
    struct trainer_frozen *f = frozen_now(w->r.t, e);

    trainer_thaw(f);
    return f ? 0 : -1;
}

static int read_state(struct world *w, struct err *e)
{
    struct trainer_state *s = trainer_state_read(w->r.t, w->fds, w->n_fds, 1, NULL, e);

    trainer_state_free(s);
    return s ? 0 : -1;
}

static int write_adapter(struct world *w, struct err *e)
{
    struct adapter *a = trainer_adapter(w->r.t);
    struct adapter_file *f = a ? adapter_file_open(a, w->r.fx.model, e) : NULL;
    int rc = f || !a ? 0 : -1;

    adapter_file_close(f);
    adapter_unref(a);
    return rc;
}

/* ---- the walk ---- */

/* Lets the first, the second, ... allocation fail until the attempt gets through. */
static void walk(struct world *w, attempt_fn *attempt)
{
    bool reached = true;

    for (long n = 0; reached; n++) {
        struct err e = {0};

        until_failure = n;
        int rc = attempt(w, &e);

        reached = until_failure < 0;
        until_failure = -1;
        assert_true(rc == 0 ||
                    reached); /* a header is also read without the memory to compare it */
        assert_true(rc == 0 || e.code == ERR_NOMEM);
        assert_true(n < 10000);
        struct bytes now = optimizer_file(w->r.t);

        same_bytes(&now, &w->file);
        free(now.data);
        assert_true(trainer_has_gradients(w->r.t));
    }
}

static void world_open(struct world *w, enum train_mode mode)
{
    static const int32_t tokens[6] = {3, 1, 4, 1, 5, 9}, targets[6] = {1, 4, 1, 5, 9, 2};

    *w = (struct world){0};
    rig_open(&w->r, "tiny-qwen2", 1);
    rig_make_trainer(&w->r, mode, false, &lora);
    w->d.n = 1;
    w->d.datum[0] = (struct train_datum){.tokens = tokens, .loss = {.n = 6, .targets = targets}};
    for (int i = 0; i < 2; i++) {
        take_pass(&w->r, &w->d, true);
        if (i == 0)
            take_step(&w->r, &plain_adam);
    }
    w->file = optimizer_file(w->r.t);
    w->n_fds = open_files(&w->file, w->fds);
}

static void world_close(struct world *w)
{
    close_files(w->fds, w->n_fds);
    free(w->file.data);
    rig_close(&w->r);
}

static void a_failed_allocation_leaves_the_run_as_it_was(void **state)
{
    static attempt_fn *const attempts[] = {make,   begin_pass, begin_step,
                                           freeze, read_state, write_adapter};
    static struct world w;

    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        world_open(&w, mode ? TRAIN_FULL : TRAIN_LORA);
        for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
            walk(&w, attempts[i]);
        world_close(&w);
    }
}

/* The run goes on; the save that reads the view is told. */
static void a_view_that_cannot_be_kept_is_lost_and_says_so(void **state)
{
    static struct world w;
    struct err e = {0};

    (void)state;
    world_open(&w, TRAIN_FULL);
    struct trainer_frozen *f = frozen_now(w.r.t, &e);

    must(f ? 0 : -1, &e);
    must(trainer_begin_step(w.r.t, &plain_adam, w.r.other, &e), &e);
    until_failure = 0;
    assert_int_equal(trainer_run(w.r.t, 0, &e), TRAIN_DONE);
    until_failure = -1;
    trainer_end(w.r.t);
    assert_int_equal(trainer_step(w.r.t), 2);
    struct bytes b = room_for(f);

    struct frozen_file file[FROZEN_FILES];

    assert_int_equal(frozen_files(f, file), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(frozen_read(&file[i], b.data, 0, (size_t)file[i].bytes, &e), -1);
        assert_int_equal(e.code, ERR_NOMEM);
    }
    trainer_thaw(f);
    free(b.data);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_allocation_leaves_the_run_as_it_was),
        cmocka_unit_test(a_view_that_cannot_be_kept_is_lost_and_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
