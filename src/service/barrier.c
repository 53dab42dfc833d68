/* service/barrier.c - heartbeat, quiesce, commit-begin, commit-end, resume: the steps of an
 * attached trainer.
 *
 * Each is one message to the engine thread: the refusals and the change are decided together
 * between two steps. Only quiesce takes two, with the wait for running requests between them. */
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "engine/snapshot.h"
#include "service/memory.h"
#include "service/op.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weights.h"
#include "tensor/weights.h"

struct barrier_op {
    struct op op;    /* first: the checks take a struct op */
    uint64_t serial; /* of the attachment that quiesces */
    bool drained;
    double drain_ms;
    json_t *data;
};

static const struct refusal_rule request_rules[] = {
    {"token", check_token},
    {"body", check_empty},
    {0},
};

/* ---- checks of this file ---- */

static int check_quiesced(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;

    if (w->hold.on)
        return 0;
    return refuse_with(r, REFUSAL_NOT_QUIESCED,
                       json_pack("{s:s}", "weights_state", condition_name(w->condition)),
                       "Serving is not quiesced (a hold ends after WEIGHTS_QUIESCE_MAX_HOLD_S); "
                       "quiesce first.");
}

static int check_not_quiesced(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;

    if (!w->hold.on)
        return 0;
    return refuse_with(r, REFUSAL_ALREADY_QUIESCED,
                       json_pack("{s:o}", "hold_expires_at", json_time(w->hold.expires_ms)),
                       "Serving is quiesced already.");
}

/* Another barrier is at work: a load or an adapter, which may have taken over the hold, or a
 * quiesce that is still draining. */
static int check_no_pause(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;
    bool held = w->owner == OWNER_QUIESCE && w->hold.on; /* ALREADY_QUIESCED says so */

    return w->owner == OWNER_NONE || held ? 0 : refuse_paused(w->owner, r);
}

static int check_commit_open(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;
    bool ours = w->commit.kind == COMMIT_TRAINER && w->commit.attachment == w->attachment.serial;

    if (ours && w->condition != WEIGHTS_CLEAN)
        return 0;
    return refuse_with(r, REFUSAL_COMMIT_NOT_OPEN,
                       json_pack("{s:s, s:b}", "weights_state", condition_name(w->condition),
                                 "opened_by_this_attachment", 0),
                       "This attachment has no open commit; commit-begin first.");
}

/* ---- heartbeat ---- */

static const struct refusal_rule heartbeat_rules[] = {
    {"NOT_ATTACHED", check_attached},
    {"NOT_ATTACHMENT_HOLDER", check_holder},
    {0},
};

static int answer_heartbeat(struct op *op, struct refusal *r)
{
    struct barrier_op *b = (struct barrier_op *)op;

    (void)r;
    b->data = json_pack("{s:s, s:f, s:s, s:b}", "attachment", "live", "timeout_s",
                        op->s->settings->heartbeat_timeout_s, "weights_state",
                        condition_name(op->w->condition), "quiesced", op->w->hold.on);
    return 0;
}

/* ---- quiesce ---- */

static const struct refusal_rule quiesce_rules[] = {
    {"NOT_ATTACHED", check_attached},
    {"NOT_ATTACHMENT_HOLDER", check_holder},
    {"BARRIER_UNAVAILABLE", check_barrier},
    {"PAUSE_IN_PROGRESS", check_no_pause},
    {"WEIGHTS_NOT_CLEAN", check_clean},
    {"ALREADY_QUIESCED", check_not_quiesced},
    {0},
};

static int begin_drain(struct op *op, struct refusal *r)
{
    struct weights_state *w = op->s->weights;

    (void)r;
    ((struct barrier_op *)op)->serial = w->attachment.serial;
    w->owner = OWNER_QUIESCE;
    w->draining = true;
    return 0;
}

static int end_drain(struct op *op, struct refusal *r)
{
    struct barrier_op *b = (struct barrier_op *)op;
    struct weights_state *w = op->s->weights;

    w->draining = false;
    w->owner = OWNER_NONE;
    if (w->attachment.serial != b->serial || w->attachment.leaving)
        return check_attached(op, r) < 0 ? -1 : check_holder(op, r);
    if (check_client(op, r) < 0) /* nobody would commit or resume */
        return -1;
    if (!b->drained)
        return refuse_drain(op->s, op->s->settings->drain_timeout_s, r);
    state_hold_begin(op->s, w->attachment.identity);
    b->data = json_pack("{s:b, s:i, s:s, s:o, s:o}", "quiesced", 1, "requests_held",
                        engine_waiting(op->s->engine), "weights_state",
                        condition_name(w->condition), "drain_ms", json_ms(b->drain_ms),
                        "hold_expires_at", json_time(w->hold.expires_ms));
    return 0;
}

static int quiesce(struct barrier_op *b, struct refusal *r)
{
    int64_t start = clock_mono_ns();

    if (op_on_engine(&b->op, quiesce_rules, begin_drain, r) < 0)
        return -1;
    b->drained = op_wait_drained(&b->op, b->serial);
    b->drain_ms = clock_ms_since(start);
    return op_on_engine(&b->op, NULL, end_drain, r);
}

/* ---- resume ---- */

static const struct refusal_rule resume_rules[] = {
    {"NOT_ATTACHED", check_attached},
    {"NOT_ATTACHMENT_HOLDER", check_holder},
    {"WEIGHTS_NOT_CLEAN", check_clean},
    {"NOT_QUIESCED", check_quiesced},
    {0},
};

static int end_hold(struct op *op, struct refusal *r)
{
    struct barrier_op *b = (struct barrier_op *)op;

    (void)r;
    state_hold_end(op->s);
    b->data =
        json_pack("{s:b, s:i, s:s}", "resumed", 1, "requests_released",
                  engine_waiting(op->s->engine), "weights_state", condition_name(op->w->condition));
    return 0;
}

/* ---- commit-begin ---- */

static const struct refusal_rule commit_begin_rules[] = {
    {"NOT_ATTACHED", check_attached},          {"NOT_ATTACHMENT_HOLDER", check_holder},
    {"WEIGHTS_NOT_CLEAN", check_clean},        {"NOT_QUIESCED", check_quiesced},
    {"PAUSE_IN_PROGRESS", check_load_barrier}, {0},
};

static void note_commit(struct weights_state *w, double watchdog_s)
{
    w->commit = (struct commit){.kind = COMMIT_TRAINER,
                                .attachment = w->attachment.serial,
                                .started_ms = clock_wall_ms(),
                                .started_ns = clock_mono_ns()};
    w->commit.watchdog_ms = w->commit.started_ms + (int64_t)(watchdog_s * 1e3);
    w->commit.watchdog_ns = w->commit.started_ns + (int64_t)(watchdog_s * 1e9);
    memcpy(w->commit.identity, w->attachment.identity, sizeof w->commit.identity);
}

static int begin_commit(struct op *op, struct refusal *r)
{
    struct barrier_op *b = (struct barrier_op *)op;
    struct weights_state *w = op->s->weights;
    struct err e = {0};

    if (snapshot_detach_all(op->s->engine, op->image, &e) < 0)
        return memory_refuse_failed(op->image->weights->bytes, &e, r);
    w->condition = WEIGHTS_WRITING;
    note_commit(w, op->s->settings->commit_watchdog_s);
    state_hold_suspend(op->s);
    b->data = json_pack("{s:s, s:o, s:o}", "weights_state", condition_name(w->condition),
                        "commit_started_at", json_time(w->commit.started_ms), "watchdog_expires_at",
                        json_time(w->commit.watchdog_ms));
    return 0;
}

/* ---- commit-end ---- */

static const struct refusal_rule commit_end_rules[] = {
    {"NOT_ATTACHED", check_attached},
    {"NOT_ATTACHMENT_HOLDER", check_holder},
    {"COMMIT_NOT_OPEN", check_commit_open},
    {0},
};

static void note_overrun(struct service *s, double commit_ms)
{
    s->weights->last_overrun =
        (struct overrun){.any = true, .commit_ms = commit_ms, .at_ms = clock_wall_ms()};
    log_ev(LOG_WARNING, "weights_commit_overrun", "identity=%s commit_ms=%.1f watchdog_s=%g",
           s->weights->commit.identity, commit_ms, s->settings->commit_watchdog_s);
}

static int end_commit(struct op *op, struct refusal *r)
{
    struct barrier_op *b = (struct barrier_op *)op;
    struct weights_state *w = op->s->weights;
    struct served *next = served_new(op->served);
    double commit_ms = clock_ms_since(w->commit.started_ns);
    bool overran =
        w->condition == WEIGHTS_TORN || commit_ms >= op->s->settings->commit_watchdog_s * 1e3;

    if (!next)
        return refuse(r, REFUSAL_INTERNAL_ERROR, "Out of memory; the commit is still open.");
    next->commits++;
    if (overran)
        note_overrun(op->s, commit_ms);
    engine_set_served(op->s->engine, next);
    w->steps_since_load++;
    w->commits_ever++;
    w->condition = WEIGHTS_CLEAN;
    w->commit = (struct commit){0};
    state_hold_restart(op->s);
    b->data =
        json_pack("{s:s, s:I, s:I, s:o, s:b}", "weights_state", condition_name(w->condition),
                  "steps_since_load", (json_int_t)w->steps_since_load, "commits",
                  (json_int_t)next->commits, "commit_ms", json_ms(commit_ms), "overran", overran);
    return 0;
}

/* ---- the routes ---- */

static int route(struct barrier_op *b, const struct refusal_rule *rules, op_change_fn *change,
                 struct refusal *r)
{
    if (refusal_walk(request_rules, b, r) < 0)
        return -1;
    return change ? op_on_engine(&b->op, rules, change, r) : quiesce(b, r);
}

static int run(struct service *s, const struct weights_req *req, const char *operation,
               const struct refusal_rule *rules, op_change_fn *change, json_t **data,
               struct refusal *r)
{
    struct barrier_op b = {0};
    int rc;

    op_begin(&b.op, s, req, operation);
    rc = route(&b, rules, change, r);
    *data = b.data;
    return op_end(&b.op, 200, rc, r);
}

int weights_heartbeat(struct service *s, const struct weights_req *req, json_t **data,
                      struct refusal *r)
{
    return run(s, req, NULL, heartbeat_rules, answer_heartbeat, data, r);
}

int weights_quiesce(struct service *s, const struct weights_req *req, json_t **data,
                    struct refusal *r)
{
    return run(s, req, "weights_quiesce", NULL, NULL, data, r);
}

int weights_resume(struct service *s, const struct weights_req *req, json_t **data,
                   struct refusal *r)
{
    return run(s, req, "weights_resume", resume_rules, end_hold, data, r);
}

int weights_commit_begin(struct service *s, const struct weights_req *req, json_t **data,
                         struct refusal *r)
{
    return run(s, req, "weights_commit_begin", commit_begin_rules, begin_commit, data, r);
}

int weights_commit_end(struct service *s, const struct weights_req *req, json_t **data,
                       struct refusal *r)
{
    return run(s, req, "weights_commit_end", commit_end_rules, end_commit, data, r);
}
