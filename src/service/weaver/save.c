/* service/weaver/save.c - checkpoints and sampler exports of a run.
 *
 * The row is written first (pending), the engine takes a view in the order of the run's operations,
 * and a job writes the files from the view while the run goes on. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "service/jobs.h"
#include "service/service.h"
#include "service/weaver/artifacts.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/images.h"
#include "service/weaver/impl.h"
#include "service/weaver/models.h"
#include "service/weaver/runs.h"

enum { SAMPLING_TTL_S = 3600 };

/* ---- submitting ---- */

static int read_name(const json_t *body, const char *key, struct w_ckpt *k, struct refusal *r)
{
    const json_t *v = json_object_get(body, key);
    const char *name = NULL;

    if (json_holds_nul(v))
        return refuse(r, REFUSAL_W_INVALID_NAME, "A name has no control characters.");
    if (w_str(body, key, &name, r) < 0)
        return -1;
    if (!name)
        return 0;
    if (ckpt_check_name(name, r) < 0)
        return -1;
    k->has_name = true;
    str_copy(k->name, sizeof k->name, name);
    return 0;
}

static void fill_run(struct train_op *t)
{
    struct w_ckpt *k = &t->ckpt;

    str_copy(k->model_id, sizeof k->model_id, t->run->id);
    str_copy(k->owner, sizeof k->owner, t->op.owner);
    str_copy(k->base_model, sizeof k->base_model, t->run->base_model);
    k->row_id = t->run->row_id;
    k->shape = t->run->shape;
    k->has_optimizer = k->type == CKPT_WEIGHT_AND_OPTIMIZER;
    t->engine.kind = RUN_VIEW;
    t->engine.with_optimizer = k->has_optimizer;
}

/* The row carries the operation's id, so that a restart can end the operation with it. */
static int submit(struct weaver *w, struct train_op *t, struct weaver_call *c, struct refusal *r)
{
    struct err e = {0};

    fill_run(t);
    if (uuid_new(t->op.id, &e) < 0) {
        w_refuse_err(r, &e);
    } else {
        str_copy(t->ckpt.operation_id, sizeof t->ckpt.operation_id, t->op.id);
        if (w_ckpt_insert(w, &t->ckpt, t->exported, r) == 0) {
            char id[UUID_TEXT];

            str_copy(id, sizeof id, t->ckpt.id);
            if (w_run_submit(w, t, c, r) == 0)
                return 0;
            w_ckpt_drop(w, id);
            return -1;
        }
    }
    w_run_drop(w, t);
    return -1;
}

int weaver_save(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    const char *type = NULL;
    struct w_run *run = w_run_take(w, c->key, r);
    struct train_op *t = run ? train_op_new(w, run, "save_checkpoint", c->owner, r) : NULL;
    int kind;

    w_run_unref(run);
    if (!t)
        return -1;
    if (w_str(c->body, "type", &type, r) < 0 || read_name(c->body, "name", &t->ckpt, r) < 0)
        goto refused;
    kind = type ? ckpt_type_by_name(type) : -1;
    if (kind < 0) {
        refuse(r, REFUSAL_W_INVALID_CHECKPOINT_TYPE,
               "type must be weight, weight_and_optimizer or sampling.");
        goto refused;
    }
    t->ckpt.type = (enum ckpt_type)kind;
    t->ckpt.ttl_s = kind == CKPT_SAMPLING ? SAMPLING_TTL_S : 0;
    if (ckpt_read_ttl(c->body, &t->ckpt.ttl_s, r) < 0)
        goto refused;
    return submit(w, t, c, r);

refused:
    train_op_unref(t);
    return -1;
}

int weaver_export_sampler(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_run *run = w_run_take(w, c->key, r);
    struct train_op *t = run ? train_op_new(w, run, "export_sampler", c->owner, r) : NULL;

    w_run_unref(run);
    if (!t)
        return -1;
    t->exported = true;
    t->ckpt.type = CKPT_SAMPLING;
    if (w_int(c->body, "seq_id", 1, INT64_MAX >> 1, &t->seq_id, r) < 0 ||
        read_name(c->body, "path", &t->ckpt, r) < 0 ||
        ckpt_read_ttl(c->body, &t->ckpt.ttl_s, r) < 0) {
        w_run_drop(w, t);
        return -1;
    }
    return submit(w, t, c, r);
}

int weaver_export_model(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_run *run = w_run_take(w, c->key, r);
    struct train_op *t = run ? train_op_new(w, run, "export_hf", c->owner, r) : NULL;

    w_run_unref(run);
    if (!t)
        return -1;
    t->ckpt.type = CKPT_WEIGHT;
    t->export = calloc(1, sizeof *t->export);
    if (!t->export)
        w_refuse_memory(r);
    else if (w_export_read(c->body, t->run->shape.full, t->export, r) == 0)
        return submit(w, t, c, r);
    train_op_unref(t);
    return -1;
}

/* ---- writing ---- */

static int write_files(struct weaver *w, struct train_op *t, struct refusal *r)
{
    struct ckpt_facts_of_run f = {
        .view = &t->engine.view, .seed = t->run->seed, .numerics = w_numerics(w)};
    char sha[SHA256_HEX], parent[sizeof t->run->parent];
    struct err e = {0};

    images_row_sha256(w->images, t->run->row_id, sha);
    pthread_mutex_lock(&w->lock);
    memcpy(parent, t->run->parent, sizeof parent);
    pthread_mutex_unlock(&w->lock);
    f.base_sha256 = sha;
    f.parent = parent;
    t->ckpt.step = t->engine.view.step;
    if (ckpt_files_write(w, &t->ckpt, &f, &e) < 0 || w_ckpt_complete(w, &t->ckpt, &e) < 0) {
        ckpt_files_clear(w, &t->ckpt); /* behind the rename no row will name the directory */
        return w_refuse_err(r, &e);
    }
    log_ev(LOG_INFO, "weaver_checkpoint", "id=%s model=%s slug=%s type=%s step=%lld", t->ckpt.id,
           t->ckpt.model_id, t->ckpt.slug, ckpt_type_name(t->ckpt.type), (long long)t->ckpt.step);
    return 0;
}

static void write_job(void *arg)
{
    struct train_op *t = arg;
    struct weaver *w = t->w;
    struct refusal r = {0};

    if (write_files(w, t, &r) < 0) {
        w_ckpt_drop(w, t->ckpt.id);
        w_op_fail(w, &t->op, &r);
    } else if (t->export) {
        run_view_release(&t->engine.view);
        w_export_run(w, &t->op, &t->ckpt, t->export);
    } else {
        if (t->exported)
            w_exported_keep(w, t->ckpt.id, t->engine.view.adapter);
        w_op_done_json(w, &t->op, ckpt_result(&t->ckpt, t->exported));
    }
    train_op_unref(t);
}

void w_save_ended(struct weaver *w, struct train_op *t)
{
    struct refusal r = {0};
    struct err e = {0};

    if (t->outcome != RUN_OK)
        w_train_outcome(t, &r);
    else if (jobs_start(w->s->jobs, write_job, t, &e) == 0)
        return;
    else
        w_refuse_err(&r, &e);
    w_ckpt_drop(w, t->ckpt.id);
    w_op_fail(w, &t->op, &r);
    train_op_unref(t);
}
