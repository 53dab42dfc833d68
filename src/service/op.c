#include "service/op.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/nomem.h"
#include "base/str.h"
#include "engine/engine.h"
#include "service/body.h"
#include "service/leases.h"
#include "service/metrics.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weights.h"

/* ---- the way of a call ---- */

static void note_resident(struct op *op)
{
    if (op->served)
        str_copy(op->audit.model, sizeof op->audit.model, op->served->name);
    memcpy(op->audit.attachment_ref, op->w->attachment.ref, sizeof op->audit.attachment_ref);
    op->audit.state_before = condition_name(op->w->condition);
}

void op_begin(struct op *op, struct service *s, const struct weights_req *req,
              const char *operation)
{
    *op = (struct op){.s = s, .req = req, .roles = ROLE_TRAINER | ROLE_OPERATOR};
    op->proof = attachment_proof(req->attachment);
    audit_begin(&op->audit, operation);
    op->audit.request_id = req->request_id;
    op->audit.client_addr = req->client_addr;
    op_look(op);
    note_resident(op);
}

void op_look(struct op *op)
{
    served_unref(op->seen_served);
    state_read(op->s, &op->seen, &op->seen_served);
    op->w = &op->seen;
    op->served = op->seen_served;
}

struct engine_errand {
    struct op *op;
    const struct refusal_rule *rules;
    op_change_fn *change;
    struct refusal *r;
    int rc;
    bool no_memory; /* for a part of what the change has said of itself */
};

static bool is_there(const struct op *op)
{
    return !op->req->gone || !atomic_load(op->req->gone);
}

/* Changes say on the engine's thread what they did. One without rules is the second step of what
 * has begun already: it is done in any case. */
static int run_change(struct engine_errand *x)
{
    bool ready;
    int rc;

    nomem_forget();
    ready = nomem_set_aside(NOMEM_ANSWER);
    if (x->rules && !ready)
        return refuse_no_memory(x->r);
    rc = x->change(x->op, x->r);
    x->no_memory = nomem_noted();
    nomem_let_go();
    return rc;
}

/* The end of a long call of a client that is gone is no sign of its life. */
static void run_errand(struct engine *en, void *arg)
{
    struct engine_errand *x = arg;
    struct op *op = x->op;

    op->w = op->s->weights;
    op->served = engine_served(en);
    op->image = engine_resident(en);
    if (is_there(op) && proof_matches(&op->w->attachment, &op->proof))
        state_sign_of_life(op->s);
    x->rc = x->rules ? refusal_walk(x->rules, op, x->r) : 0;
    if (x->rc == 0 && x->change)
        x->rc = run_change(x);
    state_changed(op->s);
}

int op_on_engine(struct op *op, const struct refusal_rule *rules, op_change_fn *change,
                 struct refusal *r)
{
    struct engine_errand x = {.op = op, .rules = rules, .change = change, .r = r};

    engine_call(op->s->engine, run_errand, &x);
    if (x.no_memory)
        nomem_note();
    op->image = NULL;
    op_look(op);
    return x.rc;
}

static bool is_attached(struct op *op, uint64_t serial)
{
    op_look(op);
    return op->w->attachment.serial == serial && !op->w->attachment.leaving;
}

bool op_wait_drained(struct op *op, uint64_t serial)
{
    enum { LOOK_MS = 100 };
    int64_t left_ms = (int64_t)(op->s->settings->drain_timeout_s * 1000);

    while (left_ms > LOOK_MS && !engine_wait_drained(op->s->engine, LOOK_MS)) {
        if (!is_there(op) || (serial && !is_attached(op, serial)))
            return false;
        left_ms -= LOOK_MS;
    }
    return engine_wait_drained(op->s->engine, left_ms);
}

int op_end(struct op *op, int status, int rc, const struct refusal *r)
{
    op_look(op);
    if (op->w->attachment.present)
        memcpy(op->audit.attachment_ref, op->w->attachment.ref, sizeof op->audit.attachment_ref);
    op->audit.state_after = condition_name(op->w->condition);
    op->audit.owner = op->owner;
    if (rc < 0)
        status = refusal_status(r->code);
    if (op->audit.operation) {
        audit_write(&op->audit, status, rc < 0 ? r : NULL);
        metrics_operation(op->s->metrics, op->audit.operation, status, rc < 0 ? r : NULL);
    }
    served_unref(op->seen_served);
    op->seen_served = NULL;
    op->served = NULL;
    return rc;
}

/* Who calls, and may the caller? *r is left as it is for one who may. */
static int judge_token(struct op *op, struct refusal *r)
{
    const struct token_owner *owner;

    if (tokens_empty(op->s->tokens))
        return refuse(r, REFUSAL_WEIGHTS_DISABLED,
                      "This route is disabled: the server was started without WEIGHTS_TOKENS.");
    owner = tokens_find(op->s->tokens, op->req->authorization);
    if (!owner)
        return refuse(r, REFUSAL_UNAUTHORIZED,
                      "This route needs a valid token: Authorization: Bearer <token>.");
    op->owner = owner;
    if (op->roles & owner->role)
        return 0;
    return refuse_with(
        r, REFUSAL_FORBIDDEN,
        json_pack("{s:s, s:[s]}", "role", role_name(owner->role), "allowed_roles", "operator"),
        "A %s token may not do this; an operator token is needed.", role_name(owner->role));
}

void weights_judge_too_large(struct service *s, const struct weights_req *req, const char *path,
                             struct refusal *r)
{
    static const struct {
        const char *path, *operation;
    } routes[] = {
        {"/api/weights/save", "weights_save"},
        {"/api/weights/promote", "weights_promote"},
        {"/api/weights/load", "weights_load"},
        {"/api/weights/plan/save", "weights_plan_save"},
        {"/api/weights/plan/load", "weights_plan_load"},
        {"/api/weights/attach", "weights_attach"},
        {"/api/weights/detach", "weights_detach"},
        {"/api/weights/quiesce", "weights_quiesce"},
        {"/api/weights/resume", "weights_resume"},
        {"/api/weights/commit-begin", "weights_commit_begin"},
        {"/api/weights/commit-end", "weights_commit_end"},
        {"/api/weights/heartbeat", NULL}, /* not audited */
        {"/api/adapters/apply", "weights_adapter_apply"},
        {"/api/adapters/remove", "weights_adapter_remove"},
    };
    struct op op;

    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (strcmp(path, routes[i].path) == 0) {
            op_begin(&op, s, req, routes[i].operation);
            judge_token(&op, r);
            op_end(&op, 413, -1, r);
        }
}

/* ---- shared checks ---- */

int check_token(void *ctx, struct refusal *r)
{
    struct op *op = ctx;

    if (judge_token(op, r) < 0)
        return -1;
    if (proof_matches(&op->w->attachment, &op->proof))
        return op_on_engine(op, NULL, NULL, r); /* any call of the holder is a sign of life */
    return 0;
}

int check_client(void *ctx, struct refusal *r)
{
    return is_there(ctx) ? 0 : refuse_client_left(r);
}

int check_object(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;

    if (op->req->body)
        return 0;
    return refuse_with(r, REFUSAL_VALIDATION_ERROR,
                       json_pack("{s:O?}", "errors", (json_t *)op->req->body_errors),
                       "The request body must be one JSON object.");
}

int check_empty(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;
    struct body b = {.object = op->req->body};

    if (check_object(ctx, r) < 0)
        return -1;
    body_known_keys(&b, NULL, 0);
    return body_refuse(&b, r);
}

int check_attached(void *ctx, struct refusal *r)
{
    const struct attachment *a = &((const struct op *)ctx)->w->attachment;

    if (a->present && !a->leaving)
        return 0;
    return refuse(r, REFUSAL_NOT_ATTACHED,
                  "Nothing is attached to the weights; POST /api/weights/attach first.");
}

int check_holder(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;

    if (proof_matches(&op->w->attachment, &op->proof))
        return 0;
    return refuse_with(
        r, REFUSAL_NOT_ATTACHMENT_HOLDER,
        json_pack("{s:s}", "attached_identity", op->w->attachment.identity),
        "The weights are attached by '%s'; send that attachment's id in X-miLLM-Attachment.",
        op->w->attachment.identity);
}

int check_resident(void *ctx, struct refusal *r)
{
    if (((const struct op *)ctx)->served)
        return 0;
    return refuse(r, REFUSAL_MODEL_NOT_LOADED,
                  "No model is loaded; POST /api/models/{id}/load first.");
}

int check_barrier(void *ctx, struct refusal *r)
{
    const struct settings *set = ((const struct op *)ctx)->s->settings;
    const char *reason = NULL;

    if (set->barrier == BARRIER_SINGLE && set->continuous_batching)
        reason = "continuous_batching";
    else if (set->barrier == BARRIER_SINGLE && set->max_concurrent > 1)
        reason = "request_slots";
    if (!reason)
        return 0;
    return refuse_with(r, REFUSAL_BARRIER_UNAVAILABLE,
                       json_pack("{s:s, s:i}", "reason", reason, "slots", set->max_concurrent),
                       "WEIGHTS_BARRIER=single needs one request slot and continuous batching off; "
                       "this server has %d slots.",
                       set->max_concurrent);
}

int check_clean(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;

    return w->condition == WEIGHTS_CLEAN ? 0 : refuse_not_clean(w, r);
}

int check_loads(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;

    if (w->loading_row)
        return refuse_with(r, REFUSAL_MODEL_BUSY,
                           json_pack("{s:s, s:I}", "reason", "load_in_progress", "loading_model_id",
                                     (json_int_t)w->loading_row),
                           "Model %" PRId64 " is being loaded; try again when it is done.",
                           w->loading_row);
    if (w->unloading_row)
        return refuse_with(r, REFUSAL_MODEL_BUSY,
                           json_pack("{s:s, s:I}", "reason", "unload_in_progress",
                                     "unloading_model_id", (json_int_t)w->unloading_row),
                           "Model %" PRId64 " is being unloaded; try again when it is done.",
                           w->unloading_row);
    return 0;
}

int check_load_barrier(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;

    return w->owner == OWNER_LOAD || w->owner == OWNER_ADAPTER ? refuse_paused(w->owner, r) : 0;
}

/* ---- refusals with their facts ---- */

int refuse_leased(const struct op *op, const char *operation, int64_t target, struct refusal *r)
{
    const struct lease_ask ask = {.id = op->req->lease,
                                  .operation = operation,
                                  .target = target,
                                  .code = REFUSAL_MODEL_LEASED};

    return leases_refuse(op->s->leases, &ask, r);
}

int refuse_attached(const struct op *op, const char *mode, struct refusal *r)
{
    const struct attachment *a = &op->w->attachment;
    json_t *details = json_pack("{s:s, s:o, s:b}", "identity", a->identity, "attached_at",
                                json_time(a->attached_ms), "stale", a->stale);

    if (mode)
        json_object_set_new(details, "mode", json_string(mode));
    return refuse_with(r, REFUSAL_ALREADY_ATTACHED, details,
                       "The weights are attached by '%s'%s; it must detach first%s.", a->identity,
                       a->stale ? " (stale)" : "",
                       a->stale ? ", or an operator clears it with {\"force\": true}" : "");
}

int refuse_not_clean(const struct weights_state *w, struct refusal *r)
{
    bool open = w->commit.kind != COMMIT_NONE;
    json_t *details =
        json_pack("{s:s, s:o, s:o}", "weights_state", condition_name(w->condition),
                  "commit_started_at", open ? json_time(w->commit.started_ms) : json_null(),
                  "open_ms", open ? json_ms(clock_ms_since(w->commit.started_ns)) : json_null());

    if (w->condition == WEIGHTS_TORN)
        return refuse_with(r, REFUSAL_WEIGHTS_NOT_CLEAN, details,
                           "The weights are torn: a write began and did not finish. Load a "
                           "checkpoint, or end the late commit.");
    return refuse_with(r, REFUSAL_WEIGHTS_NOT_CLEAN, details,
                       "A %s by '%s' is open; it must end first.",
                       w->commit.kind == COMMIT_LOAD ? "load" : "commit", w->commit.identity);
}

int refuse_paused(enum barrier_owner owner, struct refusal *r)
{
    return refuse_with(r, REFUSAL_PAUSE_IN_PROGRESS,
                       json_pack("{s:s}", "held_by", barrier_owner_name(owner)),
                       "A change of the weights (%s) is in progress; try again when it is done.",
                       barrier_owner_name(owner));
}

int refuse_drain(struct service *s, double timeout_s, struct refusal *r)
{
    struct engine_stats stats;

    engine_get_stats(s->engine, &stats);
    return refuse_with(r, REFUSAL_MODEL_BUSY,
                       json_pack("{s:s, s:f, s:i}", "reason", "drain_timeout", "timeout_s",
                                 timeout_s, "in_flight", stats.running),
                       "Running requests did not end within %g s; nothing was changed.", timeout_s);
}
