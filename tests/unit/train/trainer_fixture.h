/* tests/unit/train/trainer_fixture.h - a run: a model, a pass, a trainer, and the second image that
 * steps of full fine-tuning write. */
#ifndef TESTS_TRAIN_TRAINER_FIXTURE_H
#define TESTS_TRAIN_TRAINER_FIXTURE_H

#include "train/pass_fixture.h"

#include "model/adapter_make.h"
#include "train/trainer.h"

struct rig {
    struct fixture fx; /* weights, model: the present ones */
    struct weights *other;
    struct model *other_model;
    struct pass *pass;
    struct trainer *t;
    enum train_mode mode;
    int64_t slice_ns; /* 0: operations run to their end; else one call of trainer_run each */
};

static const struct adam plain_adam = {1e-3, 0.9, 0.95, 1e-8, 0.01, 0};

static inline void rig_make_trainer(struct rig *r, enum train_mode mode, bool master_forward,
                                    const struct lora_settings *lora)
{
    struct err e = {0};
    struct trainer_config c = {
        .mode = mode, .master_forward = master_forward, .pool = r->fx.pool, .pass = r->pass};

    r->mode = mode;
    if (lora)
        c.lora = *lora;
    r->t = trainer_new(&c, r->fx.weights, r->fx.model, &e);
    must(r->t ? 0 : -1, &e);
}

/* Consumes a. */
static inline void rig_load_adapter(struct rig *r, struct adapter *a)
{
    struct err e = {0};

    must(trainer_set_adapter(r->t, &a, &e), &e);
    adapter_unref(a); /* what the run had before */
}

static inline void rig_start(struct rig *r, int threads)
{
    struct err e = {0};
    const char *reason;

    fixture_start(&r->fx, kernels_pick(false), threads, 64 << 20);
    r->pass = pass_new(&r->fx.config, kernels_pick(false), r->fx.pool, BUDGET, &e);
    must(r->pass ? 0 : -1, &e);
    r->other = weights_new(&r->fx.weights->index, NULL, 0, &e);
    must(r->other ? 0 : -1, &e);
    r->other_model = model_bind(&r->fx.config, r->other, &reason, &e);
    must(r->other_model ? 0 : -1, &e);
}

/* A run without a trainer yet: rig_make_trainer. */
static inline void rig_open_dir(struct rig *r, const char *dir, int threads)
{
    *r = (struct rig){0};
    fixture_load(&r->fx, dir);
    rig_start(r, threads);
}

static inline void rig_open(struct rig *r, const char *model, int threads)
{
    char dir[256];

    snprintf(dir, sizeof dir, MODELS "%s", model);
    rig_open_dir(r, dir, threads);
}

static inline void rig_close(struct rig *r)
{
    trainer_free(r->t);
    pass_free(r->pass);
    model_free(r->other_model);
    weights_free(r->other);
    fixture_close(&r->fx);
}

/* ---- operations ---- */

static inline enum train_state run_operation(struct rig *r, struct err *e)
{
    enum train_state s;

    do {
        int64_t deadline = r->slice_ns ? 1 : 0; /* long past: one slice a call */

        s = trainer_run(r->t, deadline, e);
    } while (s == TRAIN_MORE);
    return s;
}

/* One slice at a time, as long as n lasts; true when the operation ended before. */
static inline bool run_slices(struct rig *r, int n)
{
    struct err e = {0};

    while (n-- > 0)
        if (trainer_run(r->t, 1, &e) != TRAIN_MORE)
            return true;
    return false;
}

/* Weights -coef: the recorded batch as cross-entropy. */
struct data {
    struct train_datum datum[8];
    float weights[1024];
    int n;
};

static inline void data_of(struct data *d, const struct batch *b)
{
    int at = 0;

    *d = (struct data){.n = b->n};
    for (int i = 0; i < b->rows; i++)
        d->weights[i] = b->coef[i] == 0 ? 0 : -b->coef[i];
    for (int i = 0; i < b->n; at += b->sequences[i++].n)
        d->datum[i] = (struct train_datum){.tokens = b->sequences[i].tokens,
                                           .loss = {.n = b->sequences[i].n,
                                                    .targets = b->sequences[i].targets,
                                                    .weights = d->weights + at}};
}

static inline struct loss_config sum_of_cross_entropy(void)
{
    struct loss_config c = loss_defaults(LOSS_CROSS_ENTROPY);

    c.sum = true;
    return c;
}

/* The loss; gradients are added when asked for. */
static inline double take_pass(struct rig *r, const struct data *d, bool backward)
{
    struct loss_config c = sum_of_cross_entropy();
    struct err e = {0};

    must(trainer_begin_pass(r->t, &c, 1, d->datum, d->n, backward, &e), &e);
    must(run_operation(r, &e) == TRAIN_DONE ? 0 : -1, &e);
    double loss = trainer_loss(r->t)->loss;

    trainer_end(r->t);
    return loss;
}

/* The image that was written becomes the present one. */
static inline void rig_flip(struct rig *r)
{
    struct weights *w = r->fx.weights;
    struct model *m = r->fx.model;

    r->fx.weights = r->other;
    r->fx.model = r->other_model;
    r->other = w;
    r->other_model = m;
    trainer_set_weights(r->t, r->fx.weights, r->fx.model);
}

static inline struct step_result take_step(struct rig *r, const struct adam *a)
{
    struct err e = {0};

    must(trainer_begin_step(r->t, a, r->other, &e), &e);
    must(run_operation(r, &e) == TRAIN_DONE ? 0 : -1, &e);
    struct step_result result = *trainer_step_result(r->t);

    trainer_end(r->t);
    if (!result.skipped && r->mode == TRAIN_FULL)
        rig_flip(r);
    return result;
}

/* ---- the optimizer's files ---- */

/* The files one after the other. */
struct bytes {
    char *data;
    size_t n;
    size_t first; /* bytes of the first */
};

static inline void read_rest(struct trainer_frozen *f, struct bytes *b, size_t from, size_t chunk)
{
    struct frozen_file file[FROZEN_FILES];
    struct err e = {0};
    size_t len;

    frozen_files(f, file);
    for (size_t at = from; at < b->n; at += len) {
        int i = at >= b->first;
        size_t base = i ? b->first : 0, end = base + (size_t)file[i].bytes;

        end = end < b->n ? end : b->n;
        len = end - at < chunk ? end - at : chunk;
        must(frozen_read(&file[i], b->data + at, at - base, len, &e), &e);
    }
}

static inline struct bytes room_for(struct trainer_frozen *f)
{
    struct frozen_file file[FROZEN_FILES];
    struct bytes b = {0};

    for (int i = frozen_files(f, file) - 1; i >= 0; i--) {
        b.n += (size_t)file[i].bytes;
        b.first = (size_t)file[i].bytes;
    }
    b.data = malloc(b.n);
    assert_non_null(b.data);
    return b;
}

/* The whole operation; NULL with *e. */
static inline struct trainer_frozen *frozen_now(struct trainer *t, struct err *e)
{
    struct trainer_frozen *f = NULL;

    if (trainer_begin_freeze(t, e) < 0)
        return NULL;
    if (trainer_run(t, 0, e) == TRAIN_DONE)
        f = trainer_take_frozen(t);
    trainer_end(t);
    return f;
}

/* The files of this moment; free data. */
static inline struct bytes optimizer_file(struct trainer *t)
{
    struct err e = {0};
    struct trainer_frozen *f = frozen_now(t, &e);

    must(f ? 0 : -1, &e);
    struct bytes b = room_for(f);

    read_rest(f, &b, 0, 4 << 20);
    trainer_thaw(f);
    return b;
}

/* An unlinked file with these bytes. */
static inline int file_with(const char *data, size_t n)
{
    char path[] = "/tmp/cairn-optim-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(pwrite(fd, data, n, 0), n);
    return fd;
}

/* The files, opened; how many. */
static inline int open_files(const struct bytes *b, int fds[FROZEN_FILES])
{
    int n = 0;

    fds[n++] = file_with(b->data, b->first);
    if (b->n > b->first)
        fds[n++] = file_with(b->data + b->first, b->n - b->first);
    return n;
}

static inline void close_files(const int *fds, int n)
{
    while (n > 0)
        close(fds[--n]);
}

static inline struct trainer_state *read_saved(struct trainer *t, const struct bytes *b,
                                               int64_t step, struct err *e)
{
    int fds[FROZEN_FILES], n = open_files(b, fds);
    struct trainer_state *s = trainer_state_read(t, fds, n, step, NULL, e);

    close_files(fds, n);
    return s;
}

/* Index of the first or second file; release it. */
static inline void index_of(const struct bytes *b, int file, struct st_index *ix)
{
    struct err e = {0};
    size_t at = file ? b->first : 0, n = file ? b->n - b->first : b->first;

    must(st_index_parse(ix, b->data + at, n, n, &e), &e);
}

/* A tensor's values in whichever file has it; NULL: in none. */
static inline const float *saved_tensor(const struct bytes *b, const char *name)
{
    const float *found = NULL;

    for (int i = 0; i < FROZEN_FILES && !found && (i == 0 || b->n > b->first); i++) {
        struct st_index ix = {0};

        index_of(b, i, &ix);
        const struct st_tensor *t = st_index_find(&ix, name);

        if (t)
            found = (const float *)(const void *)(b->data + (i ? b->first : 0) + ix.data_start +
                                                  t->offset);
        st_index_release(&ix);
    }
    return found;
}

static inline void same_bytes(const struct bytes *a, const struct bytes *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->data, b->data, a->n);
}
#endif
