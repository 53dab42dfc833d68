/* train/trainer.c - making a trainer, its state, and forward and backward passes. */
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "tensor/weights.h"
#include "train/frozen.h"
#include "train/trainer_impl.h"

enum { PIECES_A_TURN = 16 }; /* a quarter of a millisecond of optimizer step on two cores */

/* ---- life ---- */

bool trainer_has_masters(const struct trainer *t)
{
    return t->config.mode == TRAIN_FULL && t->m->dtype != KERN_F32;
}

static int make_params(struct trainer *t, struct err *e)
{
    if (t->config.mode == TRAIN_FULL)
        return params_of_weights(&t->params, t->w, t->m, e);
    t->adapter = adapter_new(&t->m->config, &t->config.lora, e);
    return t->adapter ? params_of_adapter(&t->params, t->adapter, &t->m->config, e) : -1;
}

static int make_grads(struct trainer *t, struct err *e)
{
    t->grad_array = params_array(&t->params, e);
    if (!t->grad_array)
        return -1;
    if (t->config.mode == TRAIN_FULL)
        return grads_of_weights(&t->grads, t->grad_array, t->m, e);
    return grads_of_adapter(&t->grads, &t->params, params_floats(t->grad_array),
                            t->m->config.n_layers, e);
}

struct trainer *trainer_new(const struct trainer_config *c, const struct weights *w,
                            const struct model *m, struct err *e)
{
    struct trainer *t = calloc(1, sizeof *t);

    if (!t) {
        err_nomem(e);
        return NULL;
    }
    t->config = *c;
    t->w = w;
    t->m = m;
    if (make_params(t, e) < 0 || make_grads(t, e) < 0)
        goto fail;
    t->optim = optim_new(&t->params, trainer_has_masters(t), e);
    if (!t->optim)
        goto fail;
    t->partial = calloc((size_t)t->params.n_pieces + 1, sizeof *t->partial);
    if (!t->partial) {
        err_nomem(e);
        goto fail;
    }
    t->masters_old = trainer_has_masters(t);
    return t;

fail:
    trainer_free(t);
    return NULL;
}

static void drop_operation(struct trainer *t)
{
    adapter_unref(t->op.next_adapter);
    t->op.next_adapter = NULL;
    trainer_thaw(t->frozen);
    t->frozen = NULL;
    free(t->pass.sequences);
    free(t->pass.losses);
    free(t->pass.logprobs);
    free(t->pass.elementwise);
    free(t->pass.coef);
    free(t->pass.entropy_coef);
    t->pass = (struct pass_op){0};
    t->cursor = 0;
    t->phase = PHASE_NONE;
}

static bool holds_pass(const struct trainer *t)
{
    return t->phase >= PASS_MASTERS && t->phase <= PASS_BACKWARD;
}

void trainer_free(struct trainer *t)
{
    if (!t)
        return;
    if (holds_pass(t))
        pass_end(t->config.pass);
    drop_operation(t);
    model_free(t->master_model);
    optim_unref(t->optim);
    grads_release(&t->grads);
    weights_free(t->grad_array);
    params_release(&t->params);
    adapter_unref(t->adapter);
    adapter_unref(t->spare);
    free(t->partial);
    free(t);
}

size_t trainer_bytes(const struct trainer_config *c, const struct model *m)
{
    size_t floats = c->mode == TRAIN_FULL ? m->n_parameters : adapter_floats(&m->config, &c->lora);
    /* gradients, two moments; the masters, or two adapters, the present and the next one, each with
     * its rounded half */
    size_t arrays = c->mode == TRAIN_LORA ? 6 : m->dtype == KERN_F32 ? 3 : 4;

    return arrays * (floats * sizeof(float) + ST_DATA_ALIGN);
}

void trainer_set_pass(struct trainer *t, struct pass *pass)
{
    t->config.pass = pass;
}

void trainer_set_weights(struct trainer *t, const struct weights *w, const struct model *m)
{
    t->w = w;
    t->m = m;
}

struct adapter *trainer_adapter(struct trainer *t)
{
    return t->adapter ? adapter_ref(t->adapter) : NULL;
}

const struct train_param *trainer_params(const struct trainer *t, int *n)
{
    *n = t->params.n;
    return t->params.param;
}

/* ---- pieces ---- */

bool trainer_pieces(struct trainer *t, pool_fn *fn, int64_t deadline_ns)
{
    int n = t->params.n_pieces;

    while (t->cursor < n) {
        struct piece_job job = {.t = t, .base = t->cursor};
        int items = n - t->cursor < PIECES_A_TURN ? n - t->cursor : PIECES_A_TURN;

        pool_run(t->config.pool, fn, &job, items);
        t->cursor += items;
        if (deadline_ns && t->cursor < n && clock_mono_ns() >= deadline_ns)
            return false;
    }
    t->cursor = 0;
    return true;
}

/* ---- state ---- */

int64_t trainer_step(const struct trainer *t)
{
    return t->step;
}

bool trainer_has_gradients(const struct trainer *t)
{
    return t->grads_state == GRADS_PENDING;
}

static void drop_gradients(struct trainer *t)
{
    if (t->grads_state == GRADS_PENDING)
        t->grads_state = GRADS_BROKEN;
}

/* Masters are the weights, widened. */
static void master_item(void *arg, int item, int worker)
{
    const struct piece_job *job = arg;
    const struct trainer *t = job->t;
    const struct piece *p = &t->params.piece[job->base + item];
    const struct st_tensor *from = &t->w->tensors[t->params.place[p->param].tensor];
    const uint16_t *values = weights_data(t->w, from);

    (void)worker;
    optim_keep(t->optim, job->base + item);
    kernels_pick(false)->to_f32(optim_floats(t->optim, SECTION_MASTER) + p->at,
                                values + (p->at - t->params.param[p->param].offset), t->m->dtype,
                                p->n);
}

bool trainer_make_masters(struct trainer *t, int64_t deadline_ns)
{
    if (t->masters_old && !trainer_pieces(t, master_item, deadline_ns))
        return false;
    t->masters_old = false;
    return true;
}

void trainer_reset(struct trainer *t)
{
    drop_gradients(t);
    t->optim->fresh = true;
    t->step = 0;
    t->masters_old = trainer_has_masters(t);
}

int trainer_begin_freeze(struct trainer *t, struct err *e)
{
    if (t->phase != PHASE_NONE)
        return err_set(e, ERR_CONFLICT, "an operation of the run is under way");
    t->phase = FREEZE_MASTERS;
    return 0;
}

static bool freeze_advance(struct trainer *t, int64_t deadline_ns, struct err *e)
{
    if (!trainer_make_masters(t, deadline_ns))
        return false;
    t->frozen = frozen_new(t->optim, e);
    t->phase = t->frozen ? PHASE_DONE : PHASE_FAILED;
    return true;
}

struct trainer_frozen *trainer_take_frozen(struct trainer *t)
{
    struct trainer_frozen *f = t->frozen;

    t->frozen = NULL;
    return f;
}

struct trainer_state {
    struct optim *optim;
    struct model *master_model; /* of what the run had before, or NULL */
    int64_t step;
};

struct trainer_state *trainer_state_read(const struct trainer *t, const int *fds, int n,
                                         int64_t step, const atomic_bool *stop, struct err *e)
{
    struct trainer_state *s = calloc(1, sizeof *s);

    if (!s) {
        err_nomem(e);
        return NULL;
    }
    s->step = step;
    if (step < 0)
        err_set(e, ERR_FORMAT, "an optimizer step of %lld is impossible", (long long)step);
    else if ((s->optim = optim_new(&t->params, trainer_has_masters(t), e)) &&
             optim_read(s->optim, fds, n, stop, e) == 0)
        return s;
    trainer_state_free(s);
    return NULL;
}

void trainer_state_free(struct trainer_state *s)
{
    if (!s)
        return;
    model_free(s->master_model);
    optim_unref(s->optim);
    free(s);
}

void trainer_adopt(struct trainer *t, struct trainer_state *s)
{
    struct optim *was = t->optim;

    drop_gradients(t);
    t->optim = s->optim;
    t->step = s->step;
    t->masters_old = false;
    s->optim = was;
    s->master_model = t->master_model;
    t->master_model = NULL;
}

int trainer_set_adapter(struct trainer *t, struct adapter **a, struct err *e)
{
    struct adapter *was = t->adapter;

    if (!was || !adapter_same_shape(was, *a))
        return err_set(e, ERR_ARG, "the adapter has other modules or another rank than the run");
    t->adapter = *a;
    *a = was;
    trainer_reset(t);
    return 0;
}

/* ---- passes ---- */

static int check_datum(const struct loss_config *c, const struct train_datum *d, struct err *e)
{
    if (d->loss.n < 1 || !d->tokens || !d->loss.targets)
        return err_set(e, ERR_ARG, "a datum needs tokens and targets");
    if (loss_needs_old(c->kind) && (!d->loss.old_logprobs || !d->loss.advantages))
        return err_set(e, ERR_ARG, "this loss needs the old log-probabilities and advantages");
    if (c->kind == LOSS_SURROGATE && !d->loss.surrogate)
        return err_set(e, ERR_ARG, "the surrogate loss needs surrogate_weights");
    return 0;
}

static int take_memory(struct pass_op *op, const struct train_datum *data, int n, struct err *e)
{
    size_t rows = 0, count = (size_t)n;

    for (int i = 0; i < n; i++)
        rows += (size_t)data[i].loss.n;
    op->sequences = calloc(count, sizeof *op->sequences);
    op->losses = calloc(count, sizeof *op->losses);
    op->logprobs = malloc(rows * sizeof *op->logprobs);
    op->elementwise = malloc(rows * sizeof *op->elementwise);
    op->coef = malloc(rows * sizeof *op->coef);
    if (loss_wants_entropy(&op->loss))
        op->entropy_coef = malloc(rows * sizeof *op->entropy_coef);
    if (!op->sequences || !op->losses || !op->logprobs || !op->elementwise || !op->coef ||
        (loss_wants_entropy(&op->loss) && !op->entropy_coef))
        return err_nomem(e);
    for (int i = 0; i < n; i++) {
        op->sequences[i] = (struct pass_sequence){
            .tokens = data[i].tokens, .targets = data[i].loss.targets, .n = data[i].loss.n};
        op->losses[i] = data[i].loss;
    }
    return 0;
}

/* The model of a pass: over the weights that are served, or over the masters. */
static const struct model *pass_model(struct trainer *t, struct err *e)
{
    const char *reason;

    if (!trainer_has_masters(t) || !t->config.master_forward)
        return t->m;
    if (!t->master_model)
        t->master_model = model_bind(&t->m->config, t->optim->array[SECTION_MASTER], &reason, e);
    return t->master_model;
}

int trainer_begin_pass(struct trainer *t, const struct loss_config *loss, float temperature,
                       const struct train_datum *data, int n_data, bool backward, struct err *e)
{
    struct pass_job job = {.adapter = t->adapter,
                           .n_sequences = n_data,
                           .temperature = temperature,
                           .backward = backward,
                           .entropy = loss_wants_entropy(loss)};

    if (n_data < 1)
        return err_set(e, ERR_ARG, "a pass needs at least one datum");
    if (backward && loss->kind == LOSS_FORWARD_LOGPROB)
        return err_set(e, ERR_ARG, "forward_logprob has no gradient");
    for (int i = 0; i < n_data; i++)
        if (check_datum(loss, &data[i], e) < 0)
            return -1;
    t->pass = (struct pass_op){.loss = *loss, .data = data, .n_data = n_data, .backward = backward};
    if (take_memory(&t->pass, data, n_data, e) < 0)
        goto fail;
    job.sequences = t->pass.sequences;
    job.model = pass_model(t, e);
    if (!job.model || pass_begin(t->config.pass, &job, e) < 0)
        goto fail;
    t->phase = job.model == t->m ? PASS_FORWARD : PASS_MASTERS;
    return 0;

fail:
    drop_operation(t);
    return -1;
}

static bool all_finite(const float *x, int n)
{
    bool finite = true;

    for (int i = 0; i < n; i++)
        finite &= isfinite(x[i]) != 0;
    return finite;
}

static bool end_pass(struct trainer *t, enum phase outcome)
{
    pass_end(t->config.pass);
    t->phase = outcome;
    return true;
}

/* The log-probabilities are there: the loss, and whether a backward half follows. Without weight
 * there is no gradient to add. */
static bool end_forward(struct trainer *t, struct err *e)
{
    struct pass_op *op = &t->pass;
    int rows = pass_rows(t->config.pass);
    const struct loss_rows rows_of_loss = {op->logprobs, pass_entropies(t->config.pass),
                                           op->elementwise, op->coef, op->entropy_coef};

    memcpy(op->logprobs, pass_logprobs(t->config.pass), (size_t)rows * sizeof *op->logprobs);
    loss_run(&op->loss, op->losses, op->n_data, &rows_of_loss, &op->result);
    if (!pass_finite(t->config.pass) || !isfinite(op->result.loss) ||
        !all_finite(op->elementwise, rows) || !all_finite(op->coef, rows) ||
        (op->entropy_coef && !all_finite(op->entropy_coef, rows))) {
        err_set(e, ERR_FORMAT, "the loss is not finite: %s; nothing has changed",
                pass_finite(t->config.pass)
                    ? "a ratio, weight or advantage is too large"
                    : "the weights give log-probabilities that are not finite");
        return end_pass(t, PHASE_FAILED);
    }
    if (!op->backward || !op->result.counts)
        return end_pass(t, PHASE_DONE);
    t->phase = PASS_CLEAR;
    return true;
}

static void clear_item(void *arg, int item, int worker)
{
    const struct piece_job *job = arg;
    const struct piece *p = &job->t->params.piece[job->base + item];

    (void)worker;
    memset(params_floats(job->t->grad_array) + p->at, 0, p->n * sizeof(float));
}

/* Adding zeros is left out: the sum has the same bits. */
static bool begin_backward(struct trainer *t)
{
    const struct pass_op *op = &t->pass;
    int rows = pass_rows(t->config.pass), i = 0;

    t->grads_state = t->grads_state == GRADS_BROKEN ? GRADS_NONE : t->grads_state;
    while (i < rows && op->coef[i] == 0 && (!op->entropy_coef || op->entropy_coef[i] == 0))
        i++;
    if (i == rows) {
        t->grads_state = GRADS_PENDING;
        return end_pass(t, PHASE_DONE);
    }
    pass_back(t->config.pass, op->coef, op->entropy_coef, &t->grads);
    t->grads_state = GRADS_BROKEN;
    t->phase = PASS_BACKWARD;
    return true;
}

static bool pass_advance(struct trainer *t, int64_t deadline_ns, struct err *e)
{
    switch (t->phase) {
    case PASS_MASTERS:
        if (!trainer_make_masters(t, deadline_ns))
            return false;
        t->phase = PASS_FORWARD;
        return true;
    case PASS_FORWARD:
        return pass_run(t->config.pass, deadline_ns) == PASS_DONE && end_forward(t, e);
    case PASS_CLEAR:
        return (t->grads_state != GRADS_BROKEN || trainer_pieces(t, clear_item, deadline_ns)) &&
               begin_backward(t);
    default:
        if (pass_run(t->config.pass, deadline_ns) != PASS_DONE)
            return false;
        t->grads_state = GRADS_PENDING;
        return end_pass(t, PHASE_DONE);
    }
}

static bool advance(struct trainer *t, int64_t deadline_ns, struct err *e)
{
    if (holds_pass(t))
        return pass_advance(t, deadline_ns, e);
    return t->phase == FREEZE_MASTERS ? freeze_advance(t, deadline_ns, e)
                                      : step_advance(t, deadline_ns, e);
}

enum train_state trainer_run(struct trainer *t, int64_t deadline_ns, struct err *e)
{
    while (t->phase > PHASE_NONE && t->phase < PHASE_DONE) {
        if (!advance(t, deadline_ns, e))
            return TRAIN_MORE;
        if (t->phase < PHASE_DONE && deadline_ns && clock_mono_ns() >= deadline_ns)
            return TRAIN_MORE;
    }
    return t->phase == PHASE_FAILED ? TRAIN_FAILED : TRAIN_DONE;
}

void trainer_end(struct trainer *t)
{
    struct err e;

    if (holds_pass(t))
        pass_end(t->config.pass);
    else if (t->phase == STEP_UPDATE)
        trainer_run(t, 0, &e);
    drop_operation(t);
}

const float *trainer_logprobs(const struct trainer *t)
{
    return t->pass.logprobs;
}

const float *trainer_elementwise(const struct trainer *t)
{
    return t->pass.elementwise;
}

const struct loss_result *trainer_loss(const struct trainer *t)
{
    return &t->pass.result;
}
