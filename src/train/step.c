/* train/step.c - one optimizer step: the norm of all gradients, then one walk over the pieces that
 * reads gradients, moments and values once and writes them back, with the weights of the next image
 * (or adapter) beside. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/pool.h"
#include "model/model.h"
#include "tensor/weights.h"
#include "train/trainer_impl.h"

/* ---- where the values of a piece are ---- */

static size_t within(const struct trainer *t, const struct piece *p)
{
    return p->at - t->params.param[p->param].offset;
}

static float *in_adapter(struct adapter *a, const struct place *at)
{
    const struct lora *l = adapter_slot(a, at->slot);

    return (float *)(uintptr_t)(at->is_b ? l->b.w : l->a.w);
}

static char *in_image(const struct weights *w, int tensor, size_t element, enum kern_dtype dtype)
{
    return (char *)weights_data(w, &w->tensors[tensor]) + element * kern_dtype_bytes(dtype);
}

/* What the update starts from: the master, the adapter, or an F32 image. */
static const float *before(const struct trainer *t, const struct piece *p)
{
    const struct place *at = &t->params.place[p->param];

    if (trainer_has_masters(t))
        return optim_floats(t->optim, SECTION_MASTER) + p->at;
    if (t->adapter)
        return in_adapter(t->adapter, at) + within(t, p);
    return (const float *)(const void *)in_image(t->w, at->tensor, within(t, p), KERN_F32);
}

/* Where it goes, in f32. */
static float *after(const struct trainer *t, const struct piece *p)
{
    const struct place *at = &t->params.place[p->param];

    if (trainer_has_masters(t))
        return optim_floats(t->optim, SECTION_MASTER) + p->at;
    if (t->adapter)
        return in_adapter(t->op.next_adapter, at) + within(t, p);
    return (float *)(void *)in_image(t->op.next, at->tensor, within(t, p), KERN_F32);
}

/* ---- phases ---- */

static void norm_item(void *arg, int item, int worker)
{
    const struct piece_job *job = arg;
    struct trainer *t = job->t;
    const struct piece *p = &t->params.piece[job->base + item];

    (void)worker;
    t->partial[job->base + item] = adam_sum_squares(params_floats(t->grad_array) + p->at, p->n);
}

static const char *name_of(const struct trainer *t, int piece)
{
    return t->params.param[t->params.piece[piece].param].name;
}

/* Pieces in rising order: the norm does not depend on who computed which. */
static bool end_norm(struct trainer *t, struct err *e)
{
    double sum = 0;

    for (int i = 0; i < t->params.n_pieces; i++) {
        if (!isfinite(t->partial[i])) {
            t->grads_state = GRADS_BROKEN;
            t->phase = PHASE_FAILED;
            err_set(e, ERR_FORMAT,
                    "the gradient of %.160s is not finite; the gradients were dropped, nothing "
                    "else has changed",
                    name_of(t, i));
            return true;
        }
        sum += t->partial[i];
    }
    t->op.result.grad_norm = sqrt(sum);
    t->op.factors = adam_factors_of(&t->op.adam, t->step + 1, t->op.result.grad_norm);
    t->phase = t->config.mode == TRAIN_FULL && t->m->dtype == KERN_F16 ? STEP_CHECK : STEP_UPDATE;
    return true;
}

static void check_item(void *arg, int item, int worker)
{
    static const float zeros[PIECE];
    const struct piece_job *job = arg;
    struct trainer *t = job->t;
    const struct piece *p = &t->params.piece[job->base + item];
    bool fresh = t->optim->fresh;

    (void)worker;
    t->partial[job->base + item] = (double)adam_largest(
        &t->op.factors, before(t, p), fresh ? zeros : optim_floats(t->optim, SECTION_M) + p->at,
        fresh ? zeros : optim_floats(t->optim, SECTION_V) + p->at,
        params_floats(t->grad_array) + p->at, p->n);
}

static bool end_check(struct trainer *t, struct err *e)
{
    t->phase = STEP_UPDATE;
    for (int i = 0; i < t->params.n_pieces; i++)
        if (!(t->partial[i] < (double)ADAM_F16_OVERFLOW)) {
            t->phase = PHASE_FAILED;
            err_set(e, ERR_FORMAT,
                    "a value of %.160s would become %.6g, which F16 does not hold; nothing has "
                    "changed. Lower the learning rate or train a BF16 base",
                    name_of(t, i), t->partial[i]);
            break;
        }
    return true;
}

static void store(const struct trainer *t, const struct piece *p, const float *values)
{
    const struct place *at = &t->params.place[p->param];

    if (t->m->dtype != KERN_F32)
        adam_store(in_image(t->op.next, at->tensor, within(t, p), t->m->dtype), t->m->dtype, values,
                   p->n);
    if (at->twin >= 0)
        adam_store(in_image(t->op.next, at->twin, within(t, p), t->m->dtype), t->m->dtype, values,
                   p->n);
}

static void update_item(void *arg, int item, int worker)
{
    const struct piece_job *job = arg;
    struct trainer *t = job->t;
    const struct piece *p = &t->params.piece[job->base + item];
    float *m = optim_floats(t->optim, SECTION_M) + p->at,
          *v = optim_floats(t->optim, SECTION_V) + p->at, *to = after(t, p);
    const float *from = before(t, p);

    (void)worker;
    optim_keep(t->optim, job->base + item);
    if (t->optim->fresh) {
        memset(m, 0, p->n * sizeof *m);
        memset(v, 0, p->n * sizeof *v);
    }
    if (from != to)
        memcpy(to, from, p->n * sizeof *to);
    adam_update(&t->op.factors, to, m, v, params_floats(t->grad_array) + p->at, p->n);
    if (t->config.mode == TRAIN_FULL)
        store(t, p, to);
    else
        adam_store(t->op.next_adapter->rounded + (to - t->op.next_adapter->memory), KERN_BF16, to,
                   p->n);
}

/* What no parameter writes is taken over from the present image. */
static void copy_rest(struct trainer *t)
{
    for (int i = 0; i < t->params.n_copied; i++) {
        const struct st_tensor *from = &t->w->tensors[t->params.copied[i]];

        pool_memcpy(t->config.pool,
                    weights_data(t->op.next, &t->op.next->tensors[t->params.copied[i]]),
                    weights_data(t->w, from), from->bytes);
    }
}

/* An adapter that nobody else holds gives its memory to the next step. */
static void turn_adapters(struct trainer *t)
{
    if (atomic_load(&t->adapter->refs) == 1)
        t->spare = t->adapter;
    else
        adapter_unref(t->adapter);
    t->adapter = t->op.next_adapter;
    t->op.next_adapter = NULL;
}

static struct adapter *take_adapter(struct trainer *t, struct err *e)
{
    struct adapter *a = t->spare;

    t->spare = NULL;
    if (!a)
        return adapter_like(t->adapter, e);
    adapter_take_settings(a, t->adapter); /* a load may have come between */
    return a;
}

static bool end_update(struct trainer *t)
{
    if (t->config.mode == TRAIN_LORA) {
        turn_adapters(t);
    } else {
        copy_rest(t);
    }
    t->optim->fresh = false;
    t->grads_state = GRADS_NONE;
    t->op.result.step = ++t->step;
    t->phase = PHASE_DONE;
    return true;
}

bool step_advance(struct trainer *t, int64_t deadline_ns, struct err *e)
{
    switch (t->phase) {
    case STEP_MASTERS:
        if (!trainer_make_masters(t, deadline_ns))
            return false;
        t->phase = STEP_NORM;
        return true;
    case STEP_NORM:
        return trainer_pieces(t, norm_item, deadline_ns) && end_norm(t, e);
    case STEP_CHECK:
        return trainer_pieces(t, check_item, deadline_ns) && end_check(t, e);
    default:
        return trainer_pieces(t, update_item, deadline_ns) && end_update(t);
    }
}

/* ---- the operation ---- */

/* Without eps a value that never had a gradient would become 0 / 0. */
static int check_adam(const struct adam *a, struct err *e)
{
    if (!isfinite(a->lr) || a->lr < 0 || !isfinite(a->weight_decay) || a->weight_decay < 0)
        return err_set(e, ERR_ARG, "learning rate and weight decay must not be negative");
    if (!(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1))
        return err_set(e, ERR_ARG, "beta1 and beta2 must be at least 0 and below 1");
    if (!isfinite(a->eps) || !((float)a->eps > 0))
        return err_set(e, ERR_ARG, "eps must be above 0 in single precision");
    if (!adam_fits(a))
        return err_set(e, ERR_ARG, "learning rate and weight decay must fit single precision");
    return isnan(a->clip) ? err_set(e, ERR_ARG, "the norm to clip to is not a number") : 0;
}

int trainer_begin_step(struct trainer *t, const struct adam *a, struct weights *next, struct err *e)
{
    t->op = (struct step_op){.adam = *a, .next = next, .result = {.step = t->step}};
    if (check_adam(a, e) < 0)
        return -1;
    if (t->config.mode == TRAIN_FULL && (!next || !weights_same_layout(next, &t->w->index)))
        return err_set(e, ERR_ARG, "the memory for the next weights has another layout");
    if (t->grads_state != GRADS_PENDING) {
        t->op.result.skipped = true;
        t->phase = PHASE_DONE;
        return 0;
    }
    if (t->config.mode == TRAIN_LORA && !(t->op.next_adapter = take_adapter(t, e)))
        return -1;
    t->phase = STEP_MASTERS;
    return 0;
}

const struct step_result *trainer_step_result(const struct trainer *t)
{
    return &t->op.result;
}
