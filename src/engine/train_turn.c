/* engine/train_turn.c - what runs do between the steps of requests. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "engine/engine_impl.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "engine/run_impl.h"
#include "model/adapter.h"

/* A slice delays every stream's next token, so it is short beside requests; without them only
 * messages wait. */
static const int64_t slice_busy_ns = 4500000;
static const int64_t slice_idle_ns = 20000000;
/* Shorter ones cost more in cuts than they give. */
static const int64_t slice_least_ns = 1000000;

/* ---- ending an operation ---- */

/* The handler may free the operation. */
static void end_op(struct run *r, struct run_op *op, enum run_outcome outcome, const struct err *e)
{
    if (r->op == op) {
        r->op = NULL;
        r->engine->train_active = NULL;
    }
    op->done(op, outcome, r->trainer, e);
}

static struct run_op *unlink_op(struct run *r)
{
    pthread_mutex_lock(&r->engine->lock);
    struct run_op *op = r->queue;

    if (op)
        r->queue = op->next;
    pthread_mutex_unlock(&r->engine->lock);
    return op;
}

static void drop_filling(struct run *r)
{
    if (!r->filling)
        return;
    image_unref(r->other);
    r->other = r->filling;
    r->filling = NULL;
}

void run_cancel_all(struct run *r)
{
    struct run_op *op = r->op;

    if (op) {
        trainer_end(r->trainer);
        drop_filling(r);
        end_op(r, op, RUN_CANCELLED, NULL);
    }
    while ((op = unlink_op(r)) != NULL)
        end_op(r, op, RUN_CANCELLED, NULL);
}

/* ---- beginning one ---- */

/* Memory for the weights after this step: the other image, unless somebody still reads it. */
static struct image *take_blank(struct run *r, struct err *e)
{
    struct image *im = r->other;

    r->other = NULL;
    if (im && atomic_load_explicit(&im->refs, memory_order_acquire) == 1) {
        im->epoch = image_bank_next_epoch(im->bank); /* other weights: no cache may know them */
        return im;
    }
    image_unref(im);
    return run_blank_image(r->image, e);
}

static int begin_step(struct run *r, const struct run_op *op, struct err *e)
{
    if (r->settings.mode == TRAIN_LORA)
        return trainer_begin_step(r->trainer, &op->adam, NULL, e);
    r->filling = take_blank(r, e);
    if (!r->filling)
        return -1;
    if (trainer_begin_step(r->trainer, &op->adam, r->filling->weights, e) == 0)
        return 0;
    drop_filling(r);
    return -1;
}

static void take_view(struct run *r, struct run_op *op)
{
    op->view = (struct run_view){
        .image = image_ref(r->image),
        .adapter = trainer_adapter(r->trainer),
        .optimizer = trainer_take_frozen(r->trainer),
        .step = trainer_step(r->trainer),
        .has_gradients = trainer_has_gradients(r->trainer),
    };
}

/* Everything was read and checked before it came here. Nothing is given back here either: what the
 * run had leaves with the operation. */
static int load(struct run *r, struct run_op *op, struct err *e)
{
    if (r->settings.mode == TRAIN_LORA) {
        if (trainer_set_adapter(r->trainer, &op->adapter, e) < 0)
            return -1;
    } else {
        struct image *spare = r->other;

        r->other = r->image;
        r->image = op->image;
        op->image = spare;
        trainer_set_weights(r->trainer, r->image->weights, r->image->model);
        if (!op->state)
            trainer_reset(r->trainer);
    }
    if (op->state)
        trainer_adopt(r->trainer, op->state);
    return 0;
}

/* 1: it is done already. 0: trainer_run does the rest. -1: *e. */
static int begin(struct run *r, struct run_op *op, struct err *e)
{
    switch (op->kind) {
    case RUN_FORWARD:
    case RUN_FORWARD_BACKWARD:
        return trainer_begin_pass(r->trainer, &op->loss, op->temperature, op->data, op->n_data,
                                  op->kind == RUN_FORWARD_BACKWARD, e);
    case RUN_STEP:
        return begin_step(r, op, e);
    case RUN_VIEW:
        if (op->with_optimizer)
            return trainer_begin_freeze(r->trainer, e);
        take_view(r, op);
        return 1;
    case RUN_LOAD:
        return load(r, op, e) < 0 ? -1 : 1;
    }
    return err_set(e, ERR_ARG, "operation %d of a run is unknown", (int)op->kind);
}

/* The run after the last one that has something to do. */
static struct run *next_run(struct engine *en)
{
    struct run *after = NULL, *first = NULL;
    bool passed = false;

    pthread_mutex_lock(&en->lock);
    for (struct run *r = en->runs; r; r = r->next) {
        if (r->queue && !first)
            first = r;
        if (r->queue && passed && !after)
            after = r;
        passed = passed || r == en->train_last;
    }
    pthread_mutex_unlock(&en->lock);
    return after ? after : first;
}

/* False: no run has anything to do. */
static bool begin_next(struct engine *en)
{
    struct run *r = next_run(en);
    struct run_op *op = r ? unlink_op(r) : NULL;
    struct err e = {0};

    if (!op)
        return false;
    en->train_last = r;
    en->train_active = r;
    r->op = op;
    switch (begin(r, op, &e)) {
    case 0:
        break;
    case 1:
        end_op(r, op, RUN_OK, NULL);
        break;
    default:
        end_op(r, op, RUN_FAILED, &e);
    }
    return true;
}

/* ---- working ---- */

/* A step of full fine-tuning is through: what it wrote is the present from now on. */
static void flip(struct run *r)
{
    if (!r->filling)
        return;
    if (trainer_step_result(r->trainer)->skipped) {
        drop_filling(r);
        return;
    }
    r->other = r->image; /* it was taken for what is filled */
    r->image = r->filling;
    r->filling = NULL;
    trainer_set_weights(r->trainer, r->image->weights, r->image->model);
}

static void work(struct run *r, struct run_op *op, int64_t deadline_ns)
{
    struct err e = {0};

    switch (trainer_run(r->trainer, deadline_ns, &e)) {
    case TRAIN_MORE:
        return;
    case TRAIN_DONE:
        flip(r);
        if (op->kind == RUN_VIEW)
            take_view(r, op);
        end_op(r, op, RUN_OK, NULL); /* the handler reads the results */
        trainer_end(r->trainer);
        return;
    case TRAIN_FAILED:
        trainer_end(r->trainer);
        drop_filling(r);
        end_op(r, op, RUN_FAILED, &e);
    }
}

/* How long training may work now: its share of the time that requests take, in slices. */
static int64_t slice_ns(struct engine *en, bool busy, int64_t step_ns)
{
    int share = en->config.train_share;

    if (!busy) {
        en->train_credit = 0;
        return slice_idle_ns;
    }
    en->train_credit += step_ns * share / (share < 100 ? 100 - share : 1);
    if (en->train_credit > slice_busy_ns)
        en->train_credit = slice_busy_ns;
    return en->train_credit >= slice_least_ns ? en->train_credit : 0;
}

bool train_turn(struct engine *en, bool busy, int64_t step_ns)
{
    if (!en->train_active && !begin_next(en))
        return false;
    int64_t slice = slice_ns(en, busy, step_ns);
    struct run *r = en->train_active;

    if (slice == 0 || !r || !r->op)
        return true;
    int64_t start = clock_mono_ns();

    work(r, r->op, start + slice);
    en->train_credit -= clock_mono_ns() - start;
    return true;
}
