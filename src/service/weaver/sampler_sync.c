/* service/weaver/sampler_sync.c - weights of a sampling session that are large and not in memory
 * are read by an operation, so that no request waits for them. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "service/jobs.h"
#include "service/service.h"
#include "service/weaver/impl.h"
#include "service/weaver/operations.h"
#include "service/weaver/samplers.h"

struct sync_op {
    struct w_op op; /* first */
    struct weaver *w;
    struct w_sampler *sampler; /* counted */
    struct refusal why;        /* of a failure; read after the end */
};

static void destroy(struct w_op *op)
{
    struct sync_op *x = (struct sync_op *)op;

    refusal_clear(&x->why);
    w_sampler_unref(x->sampler);
    free(x);
}

static struct sync_op *new_op(struct weaver *w, struct w_sampler *s, const char *owner,
                              struct refusal *r)
{
    struct sync_op *x = calloc(1, sizeof *x);

    if (!x) {
        w_refuse_memory(r);
        return NULL;
    }
    w_op_init(&x->op, "sync_weights", owner, destroy);
    str_copy(x->op.model_id, sizeof x->op.model_id, s->model_id);
    str_copy(x->op.target, sizeof x->op.target, s->id);
    x->w = w;
    x->sampler = s;
    atomic_fetch_add(&s->refs, 1);
    return x;
}

/* Who waits for the answer gets the refusal itself, and no session. Who got the session with a 202
 * deletes it. */
static void fail(struct sync_op *x, struct refusal *r)
{
    x->why = *r;
    json_incref(x->why.details);
    w_op_fail(x->w, &x->op, r);
}

static void read_job(void *arg)
{
    struct sync_op *x = arg;
    struct refusal r = {0};

    w_op_running(x->w, &x->op);
    if (sampler_read(x->w, x->sampler, &r) < 0 || sampler_keep(x->w, x->sampler, &r) < 0)
        fail(x, &r);
    else
        w_op_done_json(x->w, &x->op, json_pack("{s:s}", "sampling_session_id", x->sampler->id));
    w_op_unref(&x->op);
}

/* Begins the operation; the job has a reference of its own. */
static int start(struct sync_op *x, struct refusal *r)
{
    struct err e = {0};

    if (w_op_begin(x->w, &x->op, r) < 0)
        return -1;
    w_op_ref(&x->op);
    if (jobs_start(x->w->s->jobs, read_job, x, &e) == 0)
        return 0;
    w_refuse_err(&x->why, &e);
    w_op_fail(x->w, &x->op, &x->why);
    w_op_unref(&x->op);
    return w_refuse_err(r, &e);
}

static void answer_both(struct weaver *w, struct sync_op *x, struct weaver_call *c)
{
    json_t *session = sampler_object(x->sampler);
    struct buf envelope;

    w_op_answer(w, &x->op, c);
    envelope = c->text;
    c->text = (struct buf){0};
    c->status = 202;
    *c->ended = '\0'; /* the text is more than the envelope */
    buf_add_str(&c->text, "{\"sampling_session\":");
    json_write(&c->text, session);
    buf_add_str(&c->text, ",\"sync_operation\":");
    buf_add(&c->text, buf_str(&envelope), envelope.len);
    buf_add_char(&c->text, '}');
    c->text.failed |= envelope.failed || !session;
    buf_release(&envelope);
    json_decref(session);
}

static enum w_status status_of(struct weaver *w, const struct sync_op *x)
{
    enum w_status status;

    pthread_mutex_lock(&w->lock);
    status = x->op.status;
    pthread_mutex_unlock(&w->lock);
    return status;
}

int sampler_sync(struct weaver *w, struct w_sampler *s, struct weaver_call *c, struct refusal *r)
{
    struct sync_op *x = new_op(w, s, c->owner, r);
    struct err ignored = {0};
    int rc = x ? start(x, r) : -1;

    if (rc == 0) {
        w_op_hold(w, &x->op, WEAVER_HOLD_POST_MS, c->gone);
        switch (status_of(w, x)) {
        case W_DONE:
            c->data = sampler_object(s);
            break;
        case W_ERROR:
            *r = x->why;
            x->why = (struct refusal){0};
            rc = -1;
            break;
        default:
            answer_both(w, x, c);
        }
    }
    if (rc < 0)
        sampler_delete_row(w, s->id, &ignored);
    if (x)
        w_op_unref(&x->op);
    return rc;
}
