#include "service/weaver/steps.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "service/service.h"
#include "service/weaver/impl.h"
#include "service/weaver/runs.h"

enum { FORMAT_VERSION = 1 };

struct step_log {
    int fd;
    bool with_data;
    pthread_mutex_t lock; /* a line that could not be written whole is taken back */
};

/* ---- lines ---- */

static int append(struct step_log *log, struct buf *line, struct err *e)
{
    off_t before;
    int rc;

    buf_add_char(line, '\n');
    if (line->failed)
        return err_nomem(e);
    pthread_mutex_lock(&log->lock);
    before = lseek(log->fd, 0, SEEK_END);
    rc = before < 0 ? err_io(e, "the step log")
                    : fs_write_at(log->fd, buf_str(line), line->len, before, e);
    if (rc < 0 && before >= 0 && ftruncate(log->fd, before) < 0)
        log_ev(LOG_WARNING, "weaver_step_log", "cause=\"a line is incomplete\"");
    pthread_mutex_unlock(&log->lock);
    return rc;
}

static int append_json(struct step_log *log, json_t *o, struct err *e)
{
    struct buf line = {0};
    int rc;

    if (o)
        json_write(&line, o);
    else
        line.failed = true;
    rc = append(log, &line, e);
    json_decref(o);
    buf_release(&line);
    return rc;
}

/* ---- the file ---- */

static json_t *header(const struct w_run *run)
{
    json_t *lora = json_null();

    if (!run->shape.full)
        lora = json_pack("{s:i, s:b, s:b, s:b, s:I}", "rank", run->shape.rank, "train_attn",
                         run->shape.attn, "train_mlp", run->shape.mlp, "train_unembed",
                         run->shape.unembed, "seed", (json_int_t)run->seed);
    return json_pack("{s:i, s:s, s:s, s:s, s:o, s:i}", "step_log", FORMAT_VERSION, "model_id",
                     run->id, "base_model", run->base_model, "training_mode",
                     run->shape.full ? "full_ft" : "lora", "lora_config", lora,
                     "training_max_sequence_length", run->limits.max_tokens);
}

static int open_file(struct weaver *w, const char *model_id, struct err *e)
{
    struct buf path = {0};
    int dir_fd, fd = -1;

    buf_printf(&path, "%s/steps", w->s->settings->state_dir);
    if (path.failed)
        return err_nomem(e);
    if (fs_make_dirs(buf_str(&path), 0700, e) == 0 &&
        (dir_fd = fs_open_dir(buf_str(&path), e)) >= 0) {
        buf_reset(&path);
        buf_printf(&path, "%s.jsonl", model_id);
        fd = fs_open_beneath(dir_fd, buf_str(&path), O_RDWR | O_CREAT, 0600, FS_LINKS_NONE, e);
        fs_close(dir_fd);
    }
    buf_release(&path);
    return fd;
}

/* A server that was killed in the middle of a line left its beginning behind: what comes next would
 * be on the same line. */
static int drop_half_line(int fd, struct err *e)
{
    int64_t end = lseek(fd, 0, SEEK_END), from = end;
    char block[4096];
    const char *newline = NULL;

    if (end < 0)
        return err_io(e, "measure it");
    while (from > 0 && !newline) {
        int64_t n = from < (int64_t)sizeof block ? from : (int64_t)sizeof block;

        from -= n;
        if (fs_read_at(fd, block, (size_t)n, from, e) < 0)
            return -1;
        newline = memrchr(block, '\n', (size_t)n);
    }
    if (newline)
        from += newline - block + 1;
    return from == end || ftruncate(fd, from) == 0 ? 0 : err_io(e, "cut a half line off");
}

struct step_log *step_log_open(struct weaver *w, const struct w_run *run, struct err *e)
{
    struct step_log *log = calloc(1, sizeof *log);

    if (!log) {
        err_nomem(e);
        return NULL;
    }
    pthread_mutex_init(&log->lock, NULL);
    log->with_data = w->s->settings->step_log;
    log->fd = open_file(w, run->id, e);
    if (log->fd >= 0 && drop_half_line(log->fd, e) == 0 &&
        (lseek(log->fd, 0, SEEK_END) > 0 || append_json(log, header(run), e) == 0))
        return log;
    err_wrap(e, "the step log");
    step_log_close(log);
    return NULL;
}

void step_log_close(struct step_log *log)
{
    if (!log)
        return;
    fs_close(log->fd);
    pthread_mutex_destroy(&log->lock);
    free(log);
}

/* ---- before ---- */

/* The members that each kind has. -1 with *r. */
static int begin_line(struct train_op *t, struct buf *line, struct refusal *r)
{
    char at[32];
    struct err e = {0};

    if (uuid_new(t->op.id, &e) < 0)
        return w_refuse_err(r, &e);
    clock_iso8601(t->op.created_ms, at);
    buf_printf(line, "{\"op\":\"%s\",\"type\":\"%s\",\"at\":\"%s\",\"seq_id\":", t->op.id,
               t->op.type, at);
    if (t->seq_id)
        buf_printf(line, "%lld", (long long)t->seq_id);
    else
        buf_add_str(line, "null");
    buf_printf(line, ",\"numerics\":\"%s\",\"forward\":\"%s\"", w_numerics(t->w),
               t->w->s->settings->master_forward ? "master" : "rounded");
    return 0;
}

static int end_line(struct train_op *t, struct buf *line, struct refusal *r)
{
    struct err e = {0};
    int rc;

    buf_add_char(line, '}');
    rc = append(t->run->log, line, &e);
    if (rc < 0)
        w_refuse_err(r, &e);
    else
        t->logged = true;
    buf_release(line);
    return rc;
}

static void add_member(struct buf *line, const char *key, const json_t *v)
{
    if (!v)
        return;
    buf_printf(line, ",\"%s\":", key);
    json_write(line, v);
}

/* The vectors of a datum by their names in a request; a missing one is NULL. */
enum { VECTORS = 5 };
static const char *const vector_names[VECTORS] = {"weights", "loss_mask", "logprobs", "advantages",
                                                  "surrogate_weights"};

static void vectors_of(const struct loss_datum *d, const float *out[VECTORS])
{
    out[0] = d->weights;
    out[1] = d->mask;
    out[2] = d->old_logprobs;
    out[3] = d->advantages;
    out[4] = d->surrogate;
}

/* Of every datum in order: length, tokens, targets (int32, little endian), then for each vector one
 * byte 0, or 1 and its floats. */
static int digest_data(const struct w_batch *b, char out[SHA256_HEX])
{
    struct sha256 *h = sha256_new();
    const float *vector[VECTORS];

    if (!h)
        return -1;
    for (int i = 0; i < b->n; i++) {
        const struct train_datum *d = &b->data[i];
        size_t n = (size_t)d->loss.n;
        int32_t length = d->loss.n;

        sha256_update(h, &length, sizeof length);
        sha256_update(h, d->tokens, n * sizeof *d->tokens);
        sha256_update(h, d->loss.targets, n * sizeof *d->loss.targets);
        vectors_of(&d->loss, vector);
        for (int k = 0; k < VECTORS; k++) {
            unsigned char there = vector[k] != NULL;

            sha256_update(h, &there, 1);
            if (there)
                sha256_update(h, vector[k], n * sizeof *vector[k]);
        }
    }
    sha256_hex(h, out);
    sha256_free(h);
    return 0;
}

static void add_ints(struct buf *line, const int32_t *v, int n)
{
    buf_add_char(line, '[');
    for (int i = 0; i < n; i++)
        buf_printf(line, i ? ",%d" : "%d", (int)v[i]);
    buf_add_char(line, ']');
}

/* The form of a request, so that it can be sent again; nine digits give the same float32. */
static void add_data(struct buf *line, const struct w_batch *b)
{
    const float *vector[VECTORS];

    for (int i = 0; i < b->n; i++) {
        const struct train_datum *d = &b->data[i];

        buf_printf(line, "%s{\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":",
                   i ? "," : "");
        add_ints(line, d->tokens, d->loss.n);
        buf_add_str(line, "}]},\"loss_fn_inputs\":{\"target_tokens\":{\"data\":");
        add_ints(line, d->loss.targets, d->loss.n);
        buf_add_str(line, ",\"dtype\":\"int64\"}");
        vectors_of(&d->loss, vector);
        for (int k = 0; k < VECTORS; k++) {
            if (!vector[k])
                continue;
            buf_printf(line, ",\"%s\":{\"data\":[", vector_names[k]);
            for (int j = 0; j < d->loss.n; j++)
                buf_printf(line, j ? ",%.9g" : "%.9g", (double)vector[k][j]);
            buf_add_str(line, "],\"dtype\":\"float32\"}");
        }
        buf_add_str(line, "}}");
    }
}

int step_log_pass(struct train_op *t, const json_t *input, struct refusal *r)
{
    struct buf line = {0};
    char sha[SHA256_HEX];

    if (begin_line(t, &line, r) < 0 || digest_data(&t->batch, sha) < 0) {
        buf_release(&line);
        return r->code ? -1 : w_refuse_memory(r);
    }
    add_member(&line, "loss_fn", json_object_get(input, "loss_fn"));
    add_member(&line, "loss_fn_config", json_object_get(input, "loss_fn_config"));
    buf_printf(&line, ",\"data_sha256\":\"%s\"", sha);
    if (t->run->log->with_data) {
        buf_add_str(&line, ",\"data\":[");
        add_data(&line, &t->batch);
        buf_add_char(&line, ']');
    }
    return end_line(t, &line, r);
}

int step_log_step(struct train_op *t, struct refusal *r)
{
    const struct adam *a = &t->engine.adam;
    struct buf line = {0};
    json_t *o;

    if (begin_line(t, &line, r) < 0)
        return -1;
    o = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "learning_rate", a->lr, "beta1", a->beta1,
                  "beta2", a->beta2, "eps", a->eps, "weight_decay", a->weight_decay,
                  "grad_clip_norm", a->clip);
    line.failed |= !o;
    add_member(&line, "adam_params", o);
    json_decref(o);
    return end_line(t, &line, r);
}

int step_log_load(struct train_op *t, struct refusal *r)
{
    struct buf line = {0};

    if (begin_line(t, &line, r) < 0)
        return -1;
    buf_printf(&line, ",\"checkpoint_id\":\"%s\",\"include_optimizer\":%s", t->ckpt.id,
               t->include_optimizer ? "true" : "false");
    return end_line(t, &line, r);
}

/* ---- after ---- */

/* What an answer can say: it writes -0 as 0. */
static void digest_floats(struct sha256 *h, const float *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float x = v[i] + 0.0f;

        sha256_update(h, &x, sizeof x);
    }
}

static int add_numbers(const struct train_op *t, struct buf *line)
{
    struct sha256 *h;
    char sha[SHA256_HEX];

    if (t->engine.kind == RUN_STEP) {
        buf_add_str(line, ",\"grad_norm\":");
        json_write_real(line, t->step.skipped ? 0 : t->step.grad_norm);
        buf_printf(line, ",\"step\":%lld", (long long)t->step.step);
        return 0;
    }
    if (t->engine.kind == RUN_LOAD) {
        buf_printf(line, ",\"step\":%lld", (long long)t->step_now);
        return 0;
    }
    if (!(h = sha256_new()))
        return -1;
    digest_floats(h, t->logprobs, t->batch.rows);
    digest_floats(h, t->elementwise, t->batch.rows);
    sha256_hex(h, sha);
    sha256_free(h);
    buf_add_str(line, ",\"loss\":");
    json_write_real(line, isfinite(t->loss.loss) ? t->loss.loss : 0);
    buf_printf(line, ",\"result_sha256\":\"%s\"", sha);
    return 0;
}

void step_log_ended(struct train_op *t, const char *failure)
{
    struct buf line = {0};
    struct err e = {0};

    if (!t->logged)
        return;
    buf_printf(&line, "{\"op\":\"%s\",\"status\":\"%s\"", t->op.id, failure ? "error" : "done");
    if (failure)
        buf_printf(&line, ",\"error\":\"%s\"", failure);
    else
        line.failed |= add_numbers(t, &line) < 0;
    buf_add_char(&line, '}');
    if (append(t->run->log, &line, &e) < 0)
        log_ev(LOG_WARNING, "weaver_step_log", "op=%s cause=\"%s\"", t->op.id, e.msg);
    buf_release(&line);
}
