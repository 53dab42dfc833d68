/* service/detach.c - the end of an attachment: by its holder, or by an operator when it is stale.
 *
 * The weights are copied back into private memory, and so is what a running save has not read yet:
 * who has detached is bound by nothing. Without memory for that nothing is changed. */
#include <stdio.h>

#include "base/err.h"
#include "base/faults.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "engine/snapshot.h"
#include "service/body.h"
#include "service/memory.h"
#include "service/op.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weights.h"
#include "tensor/weights.h"

struct detach_op {
    struct op op; /* first: the checks take a struct op */
    bool force;
    uint64_t serial;
    struct image *shared;  /* counted: the arena */
    struct image *private; /* counted: the copy that serves afterwards */
    json_t *data;
};

static int check_detach_body(void *ctx, struct refusal *r)
{
    static const char *const keys[] = {"force"};
    struct detach_op *d = ctx;
    struct body b = {.object = d->op.req->body};

    if (check_object(ctx, r) < 0)
        return -1;
    body_known_keys(&b, keys, 1);
    body_bool(&b, "force", &d->force);
    return body_refuse(&b, r);
}

static int check_force_role(void *ctx, struct refusal *r)
{
    struct detach_op *d = ctx;

    if (!d->force)
        return 0;
    d->op.roles = ROLE_OPERATOR;
    return check_token(&d->op, r);
}

static int check_stale(void *ctx, struct refusal *r)
{
    const struct attachment *a = &((const struct op *)ctx)->w->attachment;

    if (a->stale)
        return 0;
    return refuse_with(r, REFUSAL_ATTACHMENT_NOT_STALE,
                       json_pack("{s:s, s:o}", "identity", a->identity, "last_seen_at",
                                 json_time(a->last_seen_ms)),
                       "The attachment of '%s' is live; only a stale one can be cleared.",
                       a->identity);
}

/* A commit of the holder must end first; what is torn already may be left. */
static int check_no_commit(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;

    return w->condition == WEIGHTS_WRITING ? refuse_not_clean(w, r) : 0;
}

static int check_no_load(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;

    return w->condition == WEIGHTS_WRITING && w->commit.kind == COMMIT_LOAD ? refuse_not_clean(w, r)
                                                                            : 0;
}

/* The spare serves at once; fresh memory is asked for before the system ends who takes too much. */
static int check_detach_memory(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;
    size_t bytes = op->image ? op->image->weights->bytes : 0;

    if (image_bank_spare_bytes(engine_bank(op->s->engine)) >= bytes)
        return 0;
    return memory_refuse(op->s, bytes, false, r);
}

static const struct refusal_rule detach_request_rules[] = {
    {"token", check_token},
    {"body", check_detach_body},
    {"FORBIDDEN", check_force_role},
    {0},
};

static const struct refusal_rule detach_rules[] = {
    {"NOT_ATTACHED", check_attached},
    {"NOT_ATTACHMENT_HOLDER", check_holder},
    {"WEIGHTS_NOT_CLEAN", check_no_commit},
    {"INSUFFICIENT_MEMORY", check_detach_memory},
    {0},
};

static const struct refusal_rule force_rules[] = {
    {"NOT_ATTACHED", check_attached},
    {"ATTACHMENT_NOT_STALE", check_stale},
    {"WEIGHTS_NOT_CLEAN", check_no_load},
    {"INSUFFICIENT_MEMORY", check_detach_memory},
    {0},
};

static int refuse_to_leave(const struct image *im, const struct err *why, struct refusal *r)
{
    if (why->code != ERR_NOMEM)
        return refuse_internal(r, why);
    memory_refuse_failed(im->weights->bytes, why, r);
    snprintf(r->message, sizeof r->message,
             "There is no memory to take the weights back (%s). The attachment stays; detach again "
             "when a running save has ended or memory is free.",
             why->msg);
    return -1;
}

/* A save may still be reading the arena. */
static int keep_for_saves(struct service *s, const struct image *shared, struct err *e)
{
    if (faults_take(s->faults, "detach_save"))
        return err_nomem(e);
    return snapshot_detach_all(s->engine, shared, e);
}

static int begin_leaving(struct op *op, struct refusal *r)
{
    struct detach_op *d = (struct detach_op *)op;
    struct weights_state *w = op->s->weights;
    struct err e = {0};

    if (op->image && keep_for_saves(op->s, op->image, &e) < 0)
        return refuse_to_leave(op->image, &e, r);
    w->attachment.leaving = true;
    d->serial = w->attachment.serial;
    d->shared = op->image ? image_ref((struct image *)op->image) : NULL;
    return 0;
}

static void tear_open_commit(struct weights_state *w)
{
    if (w->condition != WEIGHTS_WRITING) /* forced, in the middle of the client's commit */
        return;
    w->condition = WEIGHTS_TORN;
    log_ev(LOG_ERROR, "weights_torn", "identity=%s why=detached_while_writing",
           w->attachment.identity);
}

static int finish_leaving(struct op *op, struct refusal *r)
{
    struct detach_op *d = (struct detach_op *)op;
    struct service *s = op->s;
    struct served *served = engine_served(s->engine);

    (void)r;
    tear_open_commit(s->weights);
    state_note_damage(s, d->shared); /* then the copy has holes */
    if (d->private && engine_resident(s->engine) == d->shared) {
        engine_set_resident(s->engine, d->private, served_ref(served));
        d->private = NULL;
    }
    state_attachment_end(s);
    d->data = json_pack("{s:b, s:s, s:I, s:I}", "detached", 1, "weights_state",
                        condition_name(s->weights->condition), "steps_since_load",
                        (json_int_t)s->weights->steps_since_load, "commits",
                        (json_int_t)(served ? served->commits : 0));
    return 0;
}

static int stay(struct op *op, struct refusal *r)
{
    (void)r;
    op->s->weights->attachment.leaving = false;
    return 0;
}

static int copy_back(struct detach_op *d, struct err *e)
{
    if (faults_take(d->op.s->faults, "detach_copy"))
        return err_nomem(e);
    d->private = image_copy_private(d->shared, e);
    return d->private ? 0 : -1;
}

static int detach(struct detach_op *d, struct refusal *r)
{
    struct err e = {0};

    if (refusal_walk(detach_request_rules, d, r) < 0 ||
        op_on_engine(&d->op, d->force ? force_rules : detach_rules, begin_leaving, r) < 0)
        return -1;
    if (d->shared && copy_back(d, &e) < 0) {
        op_on_engine(&d->op, NULL, stay, r);
        return refuse_to_leave(d->shared, &e, r);
    }
    return op_on_engine(&d->op, NULL, finish_leaving, r);
}

int weights_detach(struct service *s, const struct weights_req *req, json_t **data,
                   struct refusal *r)
{
    struct detach_op d = {0};
    int rc;

    op_begin(&d.op, s, req, "weights_detach");
    rc = detach(&d, r);
    image_unref(d.shared);
    image_unref(d.private);
    *data = d.data;
    return op_end(&d.op, 200, rc, r);
}
