/* service/weaver/load.c - a checkpoint becomes the weights of a run.
 *
 * Everything that can refuse is decided when it is submitted. When its turn in the run has come, a
 * job reads and verifies the files; what was verified is what the run gets. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/str.h"
#include "engine/image.h"
#include "model/adapter.h"
#include "service/jobs.h"
#include "service/service.h"
#include "service/weaver/bases.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/images.h"
#include "service/weaver/impl.h"
#include "service/weaver/models.h"
#include "service/weaver/runs.h"
#include "service/weaver/steps.h"
#include "tensor/weights.h"

/* ---- submitting ---- */

static int check_shape(const struct w_run *run, const struct w_ckpt *k, struct refusal *r)
{
    const struct w_shape *a = &run->shape, *b = &k->shape;
    const char *what = NULL;

    if (run->row_id != k->row_id)
        what = "base model";
    else if (a->full != b->full)
        what = "training mode";
    else if (!a->full && a->rank != b->rank)
        what = "rank";
    else if (!a->full && (a->attn != b->attn || a->mlp != b->mlp || a->unembed != b->unembed))
        what = "set of adapted modules";
    if (!what)
        return 0;
    return refuse_with(r, REFUSAL_W_CHECKPOINT_INCOMPATIBLE,
                       json_pack("{s:s, s:s}", "differs", what, "checkpoint_id", k->id),
                       "The checkpoint has another %s than this model.", what);
}

/* Optimizer state continues bit for bit only under the numerics that made it. */
static int check_numerics(struct weaver *w, const struct w_ckpt *k, struct refusal *r)
{
    struct err e = {0};
    int fd = ckpt_files_dir(w, k->model_id, k->id, &e), rc = 0;
    json_t *record = fd < 0 ? NULL : ckpt_files_record(fd, &e);
    const char *name = json_string_value(json_object_get(record, "numerics"));

    if (!record && e.code == ERR_NOMEM)
        rc = w_refuse_err(r, &e);
    else if (!record)
        rc = refuse(r, REFUSAL_W_CHECKPOINT_CORRUPT, "The checkpoint cannot be read: %s", e.msg);
    else if (name && strcmp(name, w_numerics(w)) != 0)
        rc = refuse_with(r, REFUSAL_W_CHECKPOINT_INCOMPATIBLE,
                         json_pack("{s:s, s:s, s:s}", "differs", "numerics", "checkpoint", name,
                                   "server", w_numerics(w)),
                         "The checkpoint was made under the numerics %s, this server runs %s: its "
                         "optimizer state would not continue exactly. Set CAIRN_NUMERICS, or load "
                         "the weights alone.",
                         name, w_numerics(w));
    json_decref(record);
    fs_close(fd);
    return rc;
}

static void begin_load(struct train_op *t);

static int read_body(struct weaver *w, const json_t *body, const struct w_run *run,
                     struct train_op *t, struct refusal *r)
{
    const char *ref = NULL;

    if (w_str(body, "path", &ref, r) < 0 ||
        w_flag(body, "include_optimizer", &t->include_optimizer, r) < 0)
        return -1;
    if (!ref || !*ref)
        return refuse(r, REFUSAL_W_CHECKPOINT_NOT_FOUND,
                      "path must be a weaver:// path or the id of a checkpoint.");
    if (w_ckpt_find(w, ref, &t->ckpt, r) < 0 || check_shape(run, &t->ckpt, r) < 0 ||
        w_base_fits(w, &t->ckpt, r) < 0)
        return -1;
    if (!t->include_optimizer)
        return 0;
    if (!t->ckpt.has_optimizer)
        return refuse(r, REFUSAL_W_OPTIMIZER_STATE_MISSING,
                      "The checkpoint has no optimizer state: save weight_and_optimizer, or load "
                      "the weights alone.");
    return check_numerics(w, &t->ckpt, r);
}

/* Its checkpoint is pinned. Consumes t. */
static int submit(struct weaver *w, struct train_op *t, struct weaver_call *c, struct refusal *r)
{
    char id[UUID_TEXT]; /* t is gone where its operation could not begin */

    str_copy(id, sizeof id, t->ckpt.id);
    t->pinned = true;
    t->engine.kind = RUN_LOAD;
    t->begin = begin_load;
    if (step_log_load(t, r) < 0)
        train_op_unref(t);
    else if (w_run_submit(w, t, c, r) == 0)
        return 0;
    w_ckpt_unpin(w, id);
    return -1;
}

int weaver_load(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_run *run = w_run_revive(w, c->key, r);
    struct train_op *t = run ? train_op_new(w, run, "load_checkpoint", c->owner, r) : NULL;
    int rc = -1;

    if (t && read_body(w, c->body, run, t, r) == 0 && w_ckpt_pin(w, t->ckpt.id, r) == 0)
        rc = submit(w, t, c, r);
    else
        train_op_unref(t);
    w_run_unref(run);
    return rc;
}

/* ---- reading ---- */

/* Verified and opened: the moments, and the masters where they have a file of their own. */
static int open_optimizer(const struct weaver *w, int dir_fd, const json_t *record,
                          int fds[FROZEN_FILES], int *n, struct err *e)
{
    static const char *const names[] = {TRAIN_MOMENTS_FILE, TRAIN_MASTERS_FILE};

    for (*n = 0; *n < FROZEN_FILES && (*n == 0 || ckpt_record_sha(record, names[*n])); ++*n) {
        if (ckpt_files_verify(dir_fd, record, names[*n], &w->s->stopping, e) < 0)
            return -1;
        fds[*n] = fs_open_beneath(dir_fd, names[*n], O_RDONLY, 0, FS_LINKS_NONE, e);
        if (fds[*n] < 0)
            return -1;
    }
    return 0;
}

static int read_optimizer(struct train_op *t, int dir_fd, const json_t *record, struct err *e)
{
    int64_t step = json_integer_value(json_object_get(record, "adam_step"));
    int fds[FROZEN_FILES], n = 0;

    if (!t->include_optimizer)
        return 0;
    if (open_optimizer(t->w, dir_fd, record, fds, &n, e) == 0)
        t->engine.state =
            trainer_state_read(run_trainer(t->run->run), fds, n, step, &t->w->s->stopping, e);
    while (n > 0)
        fs_close(fds[--n]);
    return t->engine.state ? 0 : -1;
}

static int read_weights(struct weaver *w, struct train_op *t, int dir_fd, const json_t *record,
                        struct err *e)
{
    const char *sha;

    if (!t->run->shape.full) {
        t->engine.adapter = ckpt_files_adapter(w, &t->ckpt, t->run->base->files->config, e);
        return t->engine.adapter ? 0 : -1;
    }
    sha = ckpt_record_sha(record, "model.safetensors");
    if (!sha)
        return err_set(e, ERR_FORMAT, "checkpoint.json does not name model.safetensors");
    t->engine.image = images_of_dir(w->images, t->ckpt.id, dir_fd, sha, e);
    if (!t->engine.image)
        return -1;
    /* A step writes the weights over those of the base: other files lie under its name now. */
    if (weights_same_layout(t->engine.image->weights, &t->run->base->weights->index))
        return 0;
    return err_set(e, ERR_CONFLICT,
                   "its tensors are not those of the base '%.200s' as it lies here",
                   t->ckpt.base_model);
}

static int read_files(struct weaver *w, struct train_op *t, struct refusal *r)
{
    struct err e = {0};
    int fd = ckpt_files_dir(w, t->ckpt.model_id, t->ckpt.id, &e), rc = -1;
    json_t *record = fd < 0 ? NULL : ckpt_files_record(fd, &e);

    if (record && read_weights(w, t, fd, record, &e) == 0)
        rc = read_optimizer(t, fd, record, &e);
    json_decref(record);
    fs_close(fd);
    if (rc == 0)
        return 0;
    if (e.code == ERR_NOMEM || e.code == ERR_SPACE || e.code == ERR_CANCELLED)
        return w_refuse_err(r, &e);
    if (e.code == ERR_CONFLICT)
        return refuse(r, REFUSAL_W_CHECKPOINT_INCOMPATIBLE, "The checkpoint does not fit: %s",
                      e.msg);
    return refuse(r, REFUSAL_W_CHECKPOINT_CORRUPT, "The checkpoint cannot be used: %s", e.msg);
}

static void readers(struct train_op *t, int change)
{
    pthread_mutex_lock(&t->w->lock);
    t->run->readers += change;
    pthread_cond_broadcast(&t->w->changed);
    pthread_mutex_unlock(&t->w->lock);
}

static bool closing(struct train_op *t)
{
    bool yes;

    pthread_mutex_lock(&t->w->lock);
    yes = t->run->closing;
    pthread_mutex_unlock(&t->w->lock);
    return yes;
}

/* The engine may be done with the operation before the job has let go of it. */
static void load_job(void *arg)
{
    struct train_op *t = arg;
    struct refusal r = {0};
    struct w_ckpt still;
    int rc = w_ckpt_find(t->w, t->ckpt.id, &still, &r);

    w_op_ref(&t->op);
    if (rc == 0)
        rc = read_files(t->w, t, &r);
    if (rc == 0 && closing(t))
        rc = w_run_refuse_ended(t->w, t->run, &r);
    if (rc == 0) {
        w_run_give_load(t);
        readers(t, -1);
        train_op_unref(t);
        return;
    }
    run_op_release(&t->engine);
    readers(t, -1);
    w_run_load_over(t);
    w_ckpt_unpin(t->w, t->ckpt.id);
    w_op_fail(t->w, &t->op, &r);
    train_op_unref(t); /* the queue's */
    train_op_unref(t);
}

/* w->lock held. */
static void begin_load(struct train_op *t)
{
    struct err e = {0};

    t->run->readers++;
    if (jobs_start(t->w->s->jobs, load_job, t, &e) == 0)
        return;
    t->run->readers--;
    t->outcome = RUN_FAILED;
    t->err = e;
    w_op_engine_done(t->w, &t->op);
}

/* ---- the end ---- */

static void remember_parent(struct weaver *w, struct train_op *t)
{
    struct buf path = {0};

    w_ckpt_path(&t->ckpt, &path);
    pthread_mutex_lock(&w->lock);
    str_copy(t->run->parent, sizeof t->run->parent, buf_str(&path));
    pthread_mutex_unlock(&w->lock);
    buf_release(&path);
}

static void let_go(void *arg)
{
    struct train_op *t = arg;

    run_op_release(&t->engine);
    train_op_unref(t);
}

/* What the run had before may be gigabytes: the finisher has others to answer. */
static void leave(struct weaver *w, struct train_op *t)
{
    struct err ignored = {0};

    if (jobs_start(w->s->jobs, let_go, t, &ignored) < 0)
        let_go(t);
}

void w_load_ended(struct weaver *w, struct train_op *t)
{
    struct refusal r = {0};
    struct buf path = {0};

    w_ckpt_unpin(w, t->ckpt.id);
    if (t->outcome != RUN_OK) {
        w_train_outcome(t, &r);
        step_log_ended(t, refusal_wire_code(r.code));
        w_op_fail(w, &t->op, &r);
    } else {
        step_log_ended(t, NULL);
        remember_parent(w, t);
        w_ckpt_path(&t->ckpt, &path);
        w_op_done_json(w, &t->op,
                       json_pack("{s:s, s:s, s:b, s:I}", "path", buf_str(&path), "checkpoint_id",
                                 t->ckpt.id, "include_optimizer", t->include_optimizer, "step",
                                 (json_int_t)t->step_now));
        buf_release(&path);
    }
    leave(w, t);
}
