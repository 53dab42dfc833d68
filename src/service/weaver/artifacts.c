/* service/weaver/artifacts.c - rows and routes of exports. What an export writes: export.c. */
#include "service/weaver/artifacts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "db/db.h"
#include "service/jobs.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weaver/artifact_rows.h"
#include "service/weaver/ckpt.h"
#include "service/weaver/export.h"
#include "service/weaver/impl.h"
#include "service/weaver/operations.h"

#define ARTIFACT_TTL_S (INT64_C(7) * 24 * 3600)

int w_export_read(const json_t *body, bool full, struct w_export *x, struct refusal *r)
{
    const char *format = "huggingface";

    *x = (struct w_export){.ttl_s = ARTIFACT_TTL_S};
    if (w_str(body, "format", &format, r) < 0 || w_flag(body, "merge_adapter", &x->merge, r) < 0 ||
        w_flag(body, "force", &x->force, r) < 0 || ckpt_read_ttl(body, &x->ttl_s, r) < 0)
        return -1;
    if (strcmp(format, "huggingface") != 0)
        return refuse(r, REFUSAL_W_UNSUPPORTED_OPTION, "format must be huggingface.");
    if (x->merge && full)
        return refuse(r, REFUSAL_W_MERGE_ADAPTER_UNSUPPORTED,
                      "A fully trained model has no adapter to merge: leave merge_adapter out.");
    return 0;
}

/* ---- making one ---- */

static const char *kind_of(const struct w_ckpt *c, const struct w_export *x)
{
    return c->shape.full || x->merge ? "hf_model" : "hf_adapter";
}

static void fill(struct w_artifact *a, const struct w_op *op, const struct w_ckpt *c,
                 const struct w_export *x)
{
    struct buf uri = {0};

    w_ckpt_path(c, &uri);
    buf_printf(&uri, "/artifacts/%s", kind_of(c, x));
    str_copy(a->uri, sizeof a->uri, buf_str(&uri));
    buf_release(&uri);
    str_copy(a->checkpoint_id, sizeof a->checkpoint_id, c->id);
    str_copy(a->model_id, sizeof a->model_id, c->model_id);
    str_copy(a->kind, sizeof a->kind, kind_of(c, x));
    snprintf(a->status, sizeof a->status, "pending");
    str_copy(a->owner, sizeof a->owner, op->owner);
    str_copy(a->operation_id, sizeof a->operation_id, op->id);
    a->created_ms = a->updated_ms = clock_wall_ms();
    a->ttl_s = x->ttl_s;
    a->expires_ms = x->ttl_s ? a->created_ms + 1000 * x->ttl_s : c->expires_ms;
}

static int bury(void *arg, const struct w_artifact *a)
{
    struct weaver *w = arg;
    struct w_artifact gone = *a;
    struct err e = {0};

    snprintf(gone.status, sizeof gone.status, "deleted");
    gone.updated_ms = clock_wall_ms();
    if (w_artifact_update(w, &gone, &e) < 0 || export_remove(w, a->id, &e) < 0)
        log_ev(LOG_WARNING, "weaver_artifact_ended", "id=%s cause=\"%s\"", a->id, e.msg);
    return 0;
}

struct newer {
    struct weaver *w;
    const struct w_artifact *artifact;
};

/* Of two that are made at once neither may take the other away. */
static int bury_older(void *arg, const struct w_artifact *a)
{
    const struct newer *n = arg;
    const struct w_artifact *b = n->artifact;
    bool older = a->created_ms < b->created_ms ||
                 (a->created_ms == b->created_ms && strcmp(a->id, b->id) < 0);

    return older && strcmp(a->kind, b->kind) == 0 ? bury(n->w, a) : 0;
}

/* A forced export takes the place of those of its kind that were begun before it. One of them that
 * is still being made stays beside it when it ends. */
static void replace_older(struct weaver *w, const struct w_artifact *a)
{
    struct newer n = {w, a};
    struct err e = {0};

    if (w_artifact_each(w, "checkpoint_id = ?1 AND status = 'completed'", a->checkpoint_id,
                        bury_older, &n, &e) < 0)
        log_ev(LOG_WARNING, "weaver_artifact", "id=%s cause=\"%s\"", a->id, e.msg);
}

void w_export_run(struct weaver *w, struct w_op *op, const struct w_ckpt *c,
                  const struct w_export *x)
{
    struct w_artifact a = {0};
    struct refusal r = {0};
    struct err e = {0};

    fill(&a, op, c, x);
    if (uuid_new(a.id, &e) < 0 || w_artifact_insert(w, &a, &e) < 0) {
        w_refuse_err(&r, &e);
        w_op_fail(w, op, &r);
        return;
    }
    if (w_ckpt_pin(w, c->id, &r) == 0) {
        a.manifest = export_write(w, c, x->merge, a.id, &a.size_bytes, &r);
        w_ckpt_unpin(w, c->id);
    }
    snprintf(a.status, sizeof a.status, "%s", a.manifest ? "completed" : "error");
    str_copy(a.error, sizeof a.error, r.message);
    a.updated_ms = clock_wall_ms();
    if (w_artifact_update(w, &a, &e) < 0 && a.manifest) {
        w_refuse_err(&r, &e);
        json_decref(a.manifest);
        a.manifest = NULL;
        export_remove(w, a.id, &e); /* what stays is swept at the next start */
    }
    if (a.manifest) {
        replace_older(w, &a);
        w_op_done_json(w, op, w_artifact_object(&a));
    } else {
        w_op_fail(w, op, &r);
    }
    json_decref(a.manifest);
}

/* ---- POST /checkpoints/{id}/export ---- */

struct export_op {
    struct w_op op; /* first */
    struct weaver *w;
    struct w_ckpt ckpt;
    struct w_export how;
};

static void destroy(struct w_op *op)
{
    free(op);
}

static void export_job(void *arg)
{
    struct export_op *x = arg;

    faults_write_delay(x->w->s->faults);
    w_op_running(x->w, &x->op);
    w_export_run(x->w, &x->op, &x->ckpt, &x->how);
    w_ckpt_unpin(x->w, x->ckpt.id);
    w_op_unref(&x->op);
}

/* Its checkpoint is pinned from here to the end of the job. Consumes x. */
static int start(struct weaver *w, struct export_op *x, struct weaver_call *c, struct refusal *r)
{
    struct err e = {0};
    struct refusal late = {0};

    if (w_ckpt_pin(w, x->ckpt.id, r) < 0) {
        w_op_unref(&x->op);
        return -1;
    }
    if (w_op_begin(w, &x->op, r) < 0) {
        w_ckpt_unpin(w, x->ckpt.id);
        w_op_unref(&x->op);
        return -1;
    }
    w_op_ref(&x->op);
    if (jobs_start(w->s->jobs, export_job, x, &e) < 0) {
        w_refuse_err(&late, &e);
        w_ckpt_unpin(w, x->ckpt.id);
        w_op_fail(w, &x->op, &late);
        w_op_unref(&x->op);
    }
    w_op_submitted(w, &x->op, c);
    return 0;
}

int weaver_export_checkpoint(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct export_op *x = calloc(1, sizeof *x);
    struct w_artifact have;
    int found;

    if (!x)
        return w_refuse_memory(r);
    w_op_init(&x->op, "export_hf", c->owner, destroy);
    x->w = w;
    if (w_ckpt_find(w, c->key, &x->ckpt, r) < 0 ||
        w_export_read(c->body, x->ckpt.shape.full, &x->how, r) < 0) {
        w_op_unref(&x->op);
        return -1;
    }
    found = x->how.force ? 0 : w_artifact_of(w, x->ckpt.id, kind_of(&x->ckpt, &x->how), &have);
    if (found) {
        c->data = w_artifact_object(&have);
        c->status = 200;
        json_decref(have.manifest);
        w_op_unref(&x->op);
        return 0;
    }
    str_copy(x->op.model_id, sizeof x->op.model_id, x->ckpt.model_id);
    str_copy(x->op.target, sizeof x->op.target, x->ckpt.id);
    return start(w, x, c, r);
}

/* ---- reading ---- */

int weaver_artifact_list(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct err e = {0};
    json_t *items = w_artifact_objects(w, c->key, &e);

    if (!items)
        return w_refuse_err(r, &e);
    c->data = json_pack("{s:o}", "items", items);
    return 0;
}

int weaver_artifact_get(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_artifact a;

    if (w_artifact_find(w, c->key, &a, r) < 0)
        return -1;
    c->data = w_artifact_object(&a);
    json_decref(a.manifest);
    return 0;
}

/* ---- the end of their time ---- */

void w_artifacts_sweep(struct weaver *w)
{
    struct err e = {0};

    if (w_artifact_each(w, "expires_ms <= ?3 AND status = 'completed'", NULL, bury, w, &e) < 0)
        log_ev(LOG_WARNING, "weaver_sweep", "cause=\"%s\"", e.msg);
}

static int drop(void *arg, const struct w_artifact *a)
{
    struct err e = {0};

    if (export_remove(arg, a->id, &e) < 0)
        log_ev(LOG_WARNING, "weaver_artifact", "id=%s cause=\"%s\"", a->id, e.msg);
    return 0;
}

/* What was being exported when the process ended is made again when it is asked for; of what was
 * deleted the files may still be there. */
int w_artifacts_restart(struct weaver *w, struct err *e)
{
    if (w_artifact_each(w, "status IN ('pending', 'deleted')", NULL, drop, w, e) < 0)
        return -1;
    return db_run(w->db, e, "DELETE FROM weaver_artifacts WHERE status IN ('pending', 'deleted')",
                  "");
}
