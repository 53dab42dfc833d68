/* service/weaver/training.c - passes and optimizer steps: from the body to the queue, from the
 * engine's numbers to the answer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/nomem.h"
#include "service/service.h"
#include "service/weaver/gap.h"
#include "service/weaver/impl.h"
#include "service/weaver/models.h"
#include "service/weaver/runs.h"
#include "service/weaver/steps.h"
#include "service/weaver/tensors.h"

/* ---- the payload ---- */

struct payload {
    const json_t *object;
    int64_t seq_id;
};

static int read_payload(const struct weaver_call *c, const struct w_run *run, struct payload *p,
                        struct refusal *r)
{
    const char *model = NULL;

    p->object = json_object_get(c->body, "payload");
    if (!json_is_object(p->object))
        return w_bad(r, "The body must have an object payload.");
    if (w_str(p->object, "model_id", &model, r) < 0 ||
        w_int(p->object, "seq_id", 1, INT64_MAX >> 1, &p->seq_id, r) < 0)
        return -1;
    if (model && strcmp(model, run->id) != 0)
        return w_bad(r, "payload.model_id is not the model of the address.");
    return 0;
}

static void keep_metadata(struct train_op *t, const json_t *payload)
{
    json_t *metadata = json_object_get(payload, "metadata");

    if (json_is_object(metadata))
        t->op.metadata = json_incref(metadata);
}

/* ---- passes ---- */

/* Of the text of an answer, at most: once the gradient is there, the answer has to be. */
static size_t answer_bytes(const struct w_batch *b)
{
    enum { NUMBER = 17, VECTORS = 2, DATUM = 192, METRICS = 1024, ESCAPED = 6 };
    size_t bytes = 4 * METRICS + (size_t)b->rows * VECTORS * NUMBER + (size_t)b->n * DATUM;

    for (int i = 0; i < b->n; i++)
        bytes += b->ids[i] ? ESCAPED * strlen(b->ids[i]) : 0;
    return bytes;
}

static int take_room(struct train_op *t, struct refusal *r)
{
    size_t n = (size_t)t->batch.rows;

    t->logprobs = malloc(n * sizeof *t->logprobs);
    t->elementwise = malloc(n * sizeof *t->elementwise);
    if (t->logprobs && t->elementwise && buf_reserve(&t->op.response, answer_bytes(&t->batch)))
        return 0;
    return w_refuse_memory(r);
}

static int read_pass(struct train_op *t, const struct weaver_call *c, const char *input,
                     bool backward, struct refusal *r)
{
    size_t most = (size_t)t->w->s->settings->max_pack_mb << 20;
    struct payload p = {0};
    struct w_pack pack = {0};
    int rc = read_payload(c, t->run, &p, r);

    t->seq_id = p.seq_id;
    if (rc == 0)
        rc = w_pack_open(&pack, json_object_get(c->body, "tensor_pack"), c->pack, c->pack_bytes,
                         most, r);
    if (rc == 0)
        rc = w_batch_read(&t->batch, json_object_get(p.object, input), &pack, &t->run->limits,
                          backward, r);
    w_pack_release(&pack);
    if (rc < 0 || take_room(t, r) < 0 ||
        (backward && step_log_pass(t, json_object_get(p.object, input), r) < 0))
        return -1;
    keep_metadata(t, p.object);
    t->engine = (struct run_op){.kind = backward ? RUN_FORWARD_BACKWARD : RUN_FORWARD,
                                .loss = t->batch.loss,
                                .temperature = t->batch.temperature,
                                .data = t->batch.data,
                                .n_data = t->batch.n};
    return 0;
}

static int submit_pass(struct weaver *w, struct weaver_call *c, const char *type, const char *input,
                       bool backward, struct refusal *r)
{
    struct w_run *run = w_run_take(w, c->key, r);
    struct train_op *t = run ? train_op_new(w, run, type, c->owner, r) : NULL;
    int rc = -1;

    if (t && read_pass(t, c, input, backward, r) == 0)
        rc = w_run_submit(w, t, c, r);
    else
        w_run_drop(w, t);
    w_run_unref(run);
    return rc;
}

int weaver_forward(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    return submit_pass(w, c, "forward", "forward_input", false, r);
}

int weaver_forward_backward(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    return submit_pass(w, c, "forward_backward", "forward_backward_input", true, r);
}

/* ---- optimizer steps ---- */

static int read_adam(const json_t *params, struct adam *a, struct refusal *r)
{
    *a = (struct adam){
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01, .clip = 1.0};
    if (params && !json_is_null(params) && !json_is_object(params))
        return w_bad(r, "adam_params must be an object.");
    if (w_num(params, "learning_rate", &a->lr, r) < 0 || w_num(params, "beta1", &a->beta1, r) < 0 ||
        w_num(params, "beta2", &a->beta2, r) < 0 || w_num(params, "eps", &a->eps, r) < 0 ||
        w_num(params, "weight_decay", &a->weight_decay, r) < 0 ||
        w_num(params, "grad_clip_norm", &a->clip, r) < 0)
        return -1;
    if (a->beta1 < 0 || a->beta1 >= 1 || a->beta2 < 0 || a->beta2 >= 1)
        return w_bad(r, "adam_params: beta1 and beta2 must be at least 0 and below 1.");
    if (a->lr < 0 || a->weight_decay < 0)
        return w_bad(r, "adam_params: learning_rate and weight_decay must not be negative.");
    if (!((float)a->eps > 0) || !isfinite((float)a->eps))
        return w_bad(r, "adam_params: eps must be above 0 in single precision.");
    if (!adam_fits(a))
        return w_bad(r, "adam_params: learning_rate / (1 - beta1) and learning_rate * weight_decay "
                        "must fit single precision.");
    return 0;
}

int weaver_optimizer_step(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_run *run = w_run_take(w, c->key, r);
    struct train_op *t = run ? train_op_new(w, run, "optim_step", c->owner, r) : NULL;
    struct payload p = {0};
    int rc = t ? read_payload(c, run, &p, r) : -1;

    if (t)
        t->seq_id = p.seq_id;
    if (rc == 0)
        rc = read_adam(json_object_get(p.object, "adam_params"), &t->engine.adam, r);
    if (rc == 0)
        rc = step_log_step(t, r);
    if (rc == 0) {
        t->engine.kind = RUN_STEP;
        keep_metadata(t, p.object);
        rc = w_run_submit(w, t, c, r);
    } else {
        w_run_drop(w, t);
    }
    w_run_unref(run);
    return rc;
}

/* ---- answers ---- */

/* -0 and numbers that JSON does not have are never written: a pass has checked its results. */
static void write_floats(struct buf *b, const char *key, const float *v, int n)
{
    buf_printf(b, "\"%s\":{\"data\":[", key);
    for (int i = 0; i < n; i++)
        buf_printf(b, i ? ",%.9g" : "%.9g", (double)v[i]);
    buf_printf(b, "],\"dtype\":\"float32\",\"shape\":[%d]}", n);
}

static void write_outputs(struct buf *b, const struct train_op *t)
{
    int64_t row = 0;

    for (int i = 0; i < t->batch.n; i++) {
        int n = t->batch.data[i].loss.n;

        buf_add_str(b, i ? ",{" : "{");
        write_floats(b, "logprobs", t->logprobs + row, n);
        buf_add_char(b, ',');
        write_floats(b, "elementwise_loss", t->elementwise + row, n);
        if (t->batch.ids[i]) {
            buf_add_str(b, ",\"datum_id\":");
            json_write_str(b, t->batch.ids[i], strlen(t->batch.ids[i]));
        }
        buf_add_char(b, '}');
        row += n;
    }
}

static void write_number(struct buf *b, const char *key, double v)
{
    buf_printf(b, ",\"%s\":", key);
    json_write_real(b, isfinite(v) ? v : 0);
}

static void write_metrics(struct buf *b, const struct train_op *t)
{
    const struct loss_result *l = &t->loss;

    buf_printf(b, "\"metrics\":{\"tokens\":%lld,\"num_datums\":%d", (long long)l->tokens,
               t->batch.n);
    write_number(b, "loss", l->loss);
    write_number(b, "loss:sum", l->sum);
    write_number(b, "weight:sum", l->weight_sum);
    if (loss_needs_old(t->batch.loss.kind)) {
        write_number(b, "ratio", l->ratio);
        write_number(b, "approx_kl", l->approx_kl);
        write_number(b, "clip_frac", l->clip_frac);
        write_number(b, "logprob_gap:max", l->gap);
    }
    if (loss_wants_entropy(&t->batch.loss))
        write_number(b, "entropy", l->entropy);
    buf_add_char(b, '}');
}

/* loss_fn_outputs stand in result only, the metrics in both places: known clients look there. */
static void answer_pass(struct weaver *w, struct train_op *t)
{
    struct buf b = t->op.response; /* with its room */

    t->op.response = (struct buf){0};
    if (t->batch.temperature == 1)
        gap_trained(w->gap, t->same_as, t->batch.data, t->batch.n, t->logprobs, w->s->metrics);
    buf_add_str(&b, "{\"result\":{\"loss_fn_outputs\":[");
    write_outputs(&b, t);
    buf_add_str(&b, "],");
    write_metrics(&b, t);
    buf_add_str(&b, "},");
    write_metrics(&b, t);
    buf_add_char(&b, '}');
    w_op_done(w, &t->op, &b);
}

static void answer_step(struct weaver *w, struct train_op *t)
{
    json_t *metrics =
        json_pack("{s:f, s:f, s:I, s:i}", "grad_norm", t->step.skipped ? 0.0 : t->step.grad_norm,
                  "learning_rate", t->engine.adam.lr, "step", (json_int_t)t->step.step, "skipped",
                  (int)t->step.skipped);

    w_op_done_json(w, &t->op,
                   json_pack("{s:o, s:I}", "metrics", metrics, "step", (json_int_t)t->step.step));
}

void w_train_outcome(const struct train_op *t, struct refusal *r)
{
    if (t->outcome == RUN_CANCELLED)
        w_run_refuse_ended(t->w, t->run, r);
    else if (t->err.code == ERR_NOMEM || t->err.code == ERR_SPACE)
        refuse(r, REFUSAL_W_OUT_OF_MEMORY, "%s", t->err.msg);
    else
        refuse(r, REFUSAL_W_TRAINING_FAILED, "%s", t->err.msg);
}

static void fail(struct weaver *w, struct train_op *t)
{
    struct refusal r = {0};

    w_train_outcome(t, &r);
    step_log_ended(t, refusal_wire_code(r.code));
    w_op_fail(w, &t->op, &r);
}

void w_train_ended(struct weaver *w, struct train_op *t)
{
    switch (t->engine.kind) {
    case RUN_VIEW:
        w_save_ended(w, t);
        return;
    case RUN_LOAD:
        w_load_ended(w, t);
        return;
    default:
        break;
    }
    if (t->outcome != RUN_OK) {
        fail(w, t);
    } else {
        step_log_ended(t, NULL);
        nomem_forget(); /* a line of the log is no part of the answer */
        if (t->engine.kind == RUN_STEP)
            answer_step(w, t);
        else
            answer_pass(w, t);
    }
    train_op_unref(t);
}

void w_train_refused(struct weaver *w, struct train_op *t, struct refusal *r)
{
    if (t->engine.kind == RUN_VIEW)
        w_ckpt_drop(w, t->ckpt.id);
    if (t->pinned)
        w_ckpt_unpin(w, t->ckpt.id);
    w_op_fail(w, &t->op, r);
    train_op_unref(t);
}
