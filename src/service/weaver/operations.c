#include "service/weaver/operations.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/nomem.h"
#include "base/str.h"
#include "db/db.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weaver/impl.h"

enum {
    HOLDERS_MAX = 48,           /* of the handler threads */
    LOOK_MS = 200,              /* between two looks whether the client is still there */
    KEEP_MS = 7 * 24 * 3600000, /* rows of ended operations */
};

static const char *const status_words[] = {"pending", "running", "done", "error"};

/* ---- life ---- */

void w_op_init(struct w_op *op, const char *type, const char *owner,
               void (*destroy)(struct w_op *op))
{
    *op = (struct w_op){.type = type, .destroy = destroy};
    atomic_init(&op->refs, 1);
    str_copy(op->owner, sizeof op->owner, owner);
    op->created_ms = clock_wall_ms();
}

struct w_op *w_op_ref(struct w_op *op)
{
    atomic_fetch_add(&op->refs, 1);
    return op;
}

void w_op_unref(struct w_op *op)
{
    if (!op || atomic_fetch_sub(&op->refs, 1) != 1)
        return;
    json_decref(op->metadata);
    buf_release(&op->response);
    buf_release(&op->error);
    op->destroy(op);
}

/* Among those that have not ended, if its owner may have one more. */
static int list_op(struct weaver *w, struct w_op *op, struct refusal *r)
{
    int most = w->s->settings->weaver_max_ops, open = 0;

    pthread_mutex_lock(&w->lock);
    for (const struct w_op *o = w->open_ops; o; o = o->next)
        open += strcmp(o->owner, op->owner) == 0;
    if (open < most) {
        op->next = w->open_ops;
        w->open_ops = w_op_ref(op);
    }
    pthread_mutex_unlock(&w->lock);
    if (open < most)
        return 0;
    return refuse_with(
        r, REFUSAL_W_RATE_LIMITED, json_pack("{s:i, s:i}", "open", open, "limit", most),
        "'%s' has %d operations that have not ended: wait for some of them.", op->owner, open);
}

/* w->lock held. The list's reference is the caller's then. */
static void unlist_op(struct weaver *w, const struct w_op *op)
{
    struct w_op **at = &w->open_ops;

    while (*at && *at != op)
        at = &(*at)->next;
    if (*at)
        *at = op->next;
}

static int write_begin(struct weaver *w, const struct w_op *op, struct err *e)
{
    char *metadata = op->metadata ? w_dump(op->metadata) : NULL;
    int rc = db_run(w->ops, e,
                    "INSERT INTO weaver_operations (id, type, model_id, owner, status, metadata,"
                    " created_ms) VALUES (?, ?, ?, ?, 'pending', ?, ?)",
                    "ttttti", op->id, op->type, *op->model_id ? op->model_id : NULL, op->owner,
                    metadata, op->created_ms);

    free(metadata);
    return rc;
}

int w_op_begin(struct weaver *w, struct w_op *op, struct refusal *r)
{
    struct err e = {0};

    if (!*op->id && uuid_new(op->id, &e) < 0)
        return w_refuse_err(r, &e);
    if (list_op(w, op, r) < 0)
        return -1;
    if (write_begin(w, op, &e) == 0)
        return 0;
    pthread_mutex_lock(&w->lock);
    unlist_op(w, op);
    pthread_mutex_unlock(&w->lock);
    w_op_unref(op);
    return w_refuse_err(r, &e);
}

void w_op_running(struct weaver *w, struct w_op *op)
{
    pthread_mutex_lock(&w->lock);
    if (op->status == W_PENDING)
        op->status = W_RUNNING;
    pthread_mutex_unlock(&w->lock);
}

static bool write_end(struct weaver *w, const struct w_op *op, enum w_status status)
{
    struct err e = {0};
    int rc = db_run(w->ops, &e,
                    "UPDATE weaver_operations SET status = ?, response = ?, error = ?, ended_ms = ?"
                    " WHERE id = ?",
                    "tttit", status_words[status], status == W_DONE ? buf_str(&op->response) : NULL,
                    status == W_ERROR ? buf_str(&op->error) : NULL, clock_wall_ms(), op->id);

    if (rc < 0)
        log_ev(LOG_ERROR, "weaver_operation", "id=%s cause=\"%s\"", op->id, e.msg);
    return rc == 0;
}

/* One whose end could not be written stays in the list: it is answered from there, and the sweep
 * writes it later. */
static void end(struct weaver *w, struct w_op *op, enum w_status status)
{
    bool written = write_end(w, op, status);

    pthread_mutex_lock(&w->lock);
    op->status = status;
    if (written)
        unlist_op(w, op);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    log_ev(LOG_DEBUG, "weaver_operation_ended", "id=%s type=%s model=%s status=%s ms=%lld", op->id,
           op->type, op->model_id, status_words[status],
           (long long)(clock_wall_ms() - op->created_ms));
    if (written)
        w_op_unref(op);
}

/* One that has ended and is still in the list, counted; NULL: none. */
static struct w_op *take_unwritten(struct weaver *w)
{
    struct w_op *op;

    pthread_mutex_lock(&w->lock);
    for (op = w->open_ops; op && op->status < W_DONE; op = op->next)
        ;
    if (op)
        w_op_ref(op);
    pthread_mutex_unlock(&w->lock);
    return op;
}

/* [finisher] Until the first that cannot be written: then the others can not either. */
static void write_ends(struct weaver *w)
{
    struct w_op *op;
    bool written = true;

    while (written && (op = take_unwritten(w))) {
        written = write_end(w, op, op->status);
        if (written) {
            pthread_mutex_lock(&w->lock);
            unlist_op(w, op);
            pthread_mutex_unlock(&w->lock);
            w_op_unref(op); /* the list's */
        }
        w_op_unref(op);
    }
}

void w_op_done(struct weaver *w, struct w_op *op, struct buf *response)
{
    struct refusal r = {0};

    if (response->failed || nomem_noted()) { /* a part of it may be missing */
        w_refuse_memory(&r);
        w_op_fail(w, op, &r);
        buf_release(response);
        return;
    }
    op->response = *response;
    *response = (struct buf){0};
    end(w, op, W_DONE);
}

void w_op_done_json(struct weaver *w, struct w_op *op, json_t *response)
{
    struct buf text = {0};

    if (response)
        json_write(&text, response);
    else
        text.failed = true;
    json_decref(response);
    w_op_done(w, op, &text);
}

void w_op_error_text(struct buf *b, const char *id, const struct refusal *r)
{
    json_t *details = r->details ? json_copy(r->details) : json_object(), *o;

    json_object_set_new(details, "operation_id", json_string(id));
    o = json_pack("{s:s, s:s, s:s, s:o, s:b}", "error", refusal_wire_code(r->code), "error_code",
                  refusal_wire_code(r->code), "error_message", r->message, "error_details", details,
                  "retryable", refusal_retryable(r->code));
    if (o)
        json_write(b, o);
    else
        b->failed = true;
    json_decref(o);
}

void w_op_fail(struct weaver *w, struct w_op *op, struct refusal *r)
{
    w_op_error_text(&op->error, op->id, r);
    log_ev(LOG_INFO, "weaver_operation_failed", "id=%s type=%s code=%s message=\"%s\"", op->id,
           op->type, refusal_wire_code(r->code), r->message);
    refusal_clear(r);
    end(w, op, W_ERROR);
}

void w_ops_close(struct weaver *w)
{
    struct w_op *op;

    write_ends(w);
    while ((op = take_unwritten(w))) { /* the next start tells what it finds of them */
        unlist_op(w, op);
        w_op_unref(op);
        w_op_unref(op);
    }
}

/* ---- waiting ---- */

bool w_op_alone(struct weaver *w, const struct w_op *op)
{
    bool alone = true;

    pthread_mutex_lock(&w->lock);
    for (const struct w_op *o = w->open_ops; o && alone; o = o->next)
        alone = o == op || o->status >= W_DONE || strcmp(o->target, op->target) != 0;
    pthread_mutex_unlock(&w->lock);
    return alone;
}

static struct timespec in_ms(int64_t ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

void w_op_hold(struct weaver *w, struct w_op *op, int64_t ms, const atomic_bool *gone)
{
    int64_t until = clock_mono_ns() + ms * 1000000;

    pthread_mutex_lock(&w->lock);
    if (w->holding < HOLDERS_MAX) {
        w->holding++;
        while (op->status < W_DONE && !w->stopping && !(gone && atomic_load(gone))) {
            int64_t left = (until - clock_mono_ns()) / 1000000;
            struct timespec t = in_ms(left < LOOK_MS ? left : LOOK_MS);

            if (left <= 0)
                break;
            pthread_cond_timedwait(&w->changed, &w->lock, &t);
        }
        w->holding--;
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- the envelope ---- */

struct envelope {
    const char *id, *status, *type, *model_id, *metadata, *response, *error;
    int64_t created_ms;
};

static void write_member(struct buf *b, const char *key, const char *text)
{
    buf_printf(b, ",\"%s\":", key);
    if (text)
        json_write_str(b, text, strlen(text));
    else
        buf_add_str(b, "null");
}

/* metadata, response and error are JSON text; the members of error follow the others. */
static void write_envelope(struct buf *b, const struct envelope *v)
{
    char created[32];

    clock_iso8601(v->created_ms, created);
    buf_printf(b, "{\"id\":\"%s\"", v->id);
    write_member(b, "status", v->status);
    write_member(b, "type", v->type);
    write_member(b, "model_id", v->model_id && *v->model_id ? v->model_id : NULL);
    write_member(b, "created_at", created);
    buf_printf(b, ",\"metadata\":%s", v->metadata ? v->metadata : "{}");
    if (v->response) {
        buf_add_str(b, ",\"response\":");
        buf_add_str(b, v->response);
    }
    if (v->error && strlen(v->error) > 2) {
        buf_add_char(b, ',');
        buf_add(b, v->error + 1, strlen(v->error) - 2);
    }
    buf_add_char(b, '}');
}

static void write_answer(struct weaver *w, struct w_op *op, enum w_status status, struct buf *out)
{
    char *metadata = NULL;

    pthread_mutex_lock(&w->lock);
    if (op->metadata)
        metadata = w_dump(op->metadata);
    pthread_mutex_unlock(&w->lock);
    write_envelope(out,
                   &(struct envelope){.id = op->id,
                                      .status = status_words[status],
                                      .type = op->type,
                                      .model_id = op->model_id,
                                      .metadata = metadata,
                                      .created_ms = op->created_ms,
                                      .response = status == W_DONE ? buf_str(&op->response) : NULL,
                                      .error = status == W_ERROR ? buf_str(&op->error) : NULL});
    free(metadata);
}

/* A result that there is no memory to send now is there for whoever asks again. */
void w_op_answer(struct weaver *w, struct w_op *op, struct weaver_call *c)
{
    enum w_status status;

    pthread_mutex_lock(&w->lock);
    status = op->status;
    pthread_mutex_unlock(&w->lock);
    write_answer(w, op, status, &c->text);
    if (c->text.failed && status == W_DONE) {
        buf_release(&c->text);
        nomem_forget();
        status = W_RUNNING;
        write_answer(w, op, status, &c->text);
    }
    c->status = status >= W_DONE ? 200 : 202;
    if (status >= W_DONE)
        str_copy(c->ended, sizeof c->ended, op->id);
}

void w_op_submitted(struct weaver *w, struct w_op *op, struct weaver_call *c)
{
    if (w_op_alone(w, op))
        w_op_hold(w, op, WEAVER_HOLD_POST_MS, c->gone);
    w_op_answer(w, op, c);
    w_op_unref(op);
}

/* ---- reading ---- */

static struct w_op *find_open(struct weaver *w, const char *id)
{
    struct w_op *op;

    pthread_mutex_lock(&w->lock);
    for (op = w->open_ops; op && strcmp(op->id, id) != 0; op = op->next)
        ;
    if (op)
        w_op_ref(op);
    pthread_mutex_unlock(&w->lock);
    return op;
}

static void write_row(struct buf *b, const struct db_stmt *q)
{
    write_envelope(b, &(struct envelope){.id = db_text(q, 0),
                                         .status = db_text(q, 1),
                                         .type = db_text(q, 2),
                                         .model_id = db_text(q, 3),
                                         .metadata = db_text(q, 4),
                                         .response = db_text(q, 5),
                                         .error = db_text(q, 6),
                                         .created_ms = db_int(q, 7)});
}

int w_op_envelope(struct weaver *w, const char *id, struct buf *out, struct err *e)
{
    struct db_stmt q;
    int rc = db_query(&q, w->ops, e,
                      "SELECT id, status, type, model_id, metadata, response, error, created_ms"
                      " FROM weaver_operations WHERE id = ?",
                      "t", id);

    if (rc == 0)
        rc = db_step(&q, e);
    if (rc > 0)
        write_row(out, &q);
    db_query_end(&q, w->ops);
    return rc;
}

static int answer_row(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct err e = {0};
    int rc = w_op_envelope(w, c->key, &c->text, &e);

    if (rc > 0)
        return 0;
    return rc < 0
               ? w_refuse_err(r, &e)
               : refuse(r, REFUSAL_W_OPERATION_NOT_FOUND, "There is no operation '%.64s'.", c->key);
}

int weaver_operation_get(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_op *op = find_open(w, c->key);

    if (!op)
        return answer_row(w, c, r);
    w_op_hold(w, op, WEAVER_HOLD_GET_MS, c->gone);
    w_op_answer(w, op, c);
    c->status = 200;
    w_op_unref(op);
    return 0;
}

/* Rows know who has begun and who has ended; ?1 is the list of those that are running now. */
#define STATUS_NOW                                                             \
    "CASE WHEN status = 'pending' AND id IN (SELECT value FROM json_each(?1))" \
    " THEN 'running' ELSE status END"
#define WANTED " WHERE (?2 IS NULL OR model_id = ?2) AND (?3 IS NULL OR " STATUS_NOW " = ?3)"

/* JSON text: a list of ids. */
static void list_running(struct weaver *w, struct buf *out)
{
    buf_add_char(out, '[');
    pthread_mutex_lock(&w->lock);
    for (const struct w_op *op = w->open_ops; op; op = op->next)
        if (op->status >= W_RUNNING) /* or its end is not written yet */
            buf_printf(out, "%s\"%s\"", out->len > 1 ? "," : "", op->id);
    pthread_mutex_unlock(&w->lock);
    buf_add_char(out, ']');
}

static int count_rows(struct weaver *w, const char *running, const char *model, const char *status,
                      int64_t *total, struct err *e)
{
    struct db_stmt q;
    int rc = db_query(&q, w->ops, e, "SELECT count(*) FROM weaver_operations" WANTED, "ttt",
                      running, model, status);

    if (rc == 0)
        rc = db_step(&q, e);
    *total = rc > 0 ? db_int(&q, 0) : 0;
    db_query_end(&q, w->ops);
    return rc < 0 ? -1 : 0;
}

static int check_status(const char *status, struct refusal *r)
{
    for (size_t i = 0; status && i < sizeof status_words / sizeof *status_words; i++)
        if (strcmp(status, status_words[i]) == 0)
            return 0;
    return status ? w_bad(r, "status must be pending, running, done or error.") : 0;
}

/* Without the responses: they may be megabytes each. */
int weaver_operation_list(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    const char *model = w_query(c, "model_id"), *status = w_query(c, "status");
    int64_t limit, offset, total = 0;
    struct buf running = {0};
    struct db_stmt q = {0};
    struct err e = {0};
    int rc;

    if (w_page(c, 25, &limit, &offset, r) < 0 || check_status(status, r) < 0)
        return -1;
    list_running(w, &running);
    rc = running.failed ? err_nomem(&e)
                        : count_rows(w, buf_str(&running), model, status, &total, &e);
    if (rc < 0) {
        buf_release(&running);
        return w_refuse_err(r, &e);
    }
    rc = db_query(&q, w->ops, &e,
                  "SELECT id, " STATUS_NOW ", type, model_id, metadata, NULL, error, created_ms"
                  " FROM weaver_operations" WANTED " ORDER BY rowid DESC LIMIT ?4 OFFSET ?5",
                  "tttii", buf_str(&running), model, status, limit, offset);
    buf_add_str(&c->text, "{\"items\":[");
    for (int n = 0; rc == 0 && (rc = db_step(&q, &e)) > 0; n++) {
        if (n)
            buf_add_char(&c->text, ',');
        write_row(&c->text, &q);
        rc = 0;
    }
    db_query_end(&q, w->ops);
    buf_release(&running);
    buf_printf(&c->text, "],\"pagination\":{\"total_count\":%lld,\"limit\":%lld,\"offset\":%lld}}",
               (long long)total, (long long)limit, (long long)offset);
    if (rc < 0)
        buf_release(&c->text);
    return rc < 0 ? w_refuse_err(r, &e) : 0;
}

/* ---- from one process to the next ---- */

int w_ops_restart(struct weaver *w, struct err *e)
{
    return db_run(w->ops, e,
                  "UPDATE weaver_operations SET status = 'error', ended_ms = ?, error ="
                  " '{\"error\":\"server_restarted\",\"error_code\":\"server_restarted\","
                  "\"error_message\":\"The server was restarted before this operation ended.\","
                  "\"error_details\":{\"operation_id\":\"' || id || '\"},\"retryable\":true}'"
                  " WHERE status = 'pending'",
                  "i", clock_wall_ms());
}

int w_ops_finish_row(struct weaver *w, const char *id, const char *response, struct err *e)
{
    return db_run(w->ops, e,
                  "UPDATE weaver_operations SET status = 'done', response = ?, error = NULL,"
                  " ended_ms = ? WHERE id = ?",
                  "tit", response, clock_wall_ms(), id);
}

void w_ops_sweep(struct weaver *w)
{
    struct err e = {0};

    write_ends(w);
    if (db_run(w->ops, &e, "DELETE FROM weaver_operations WHERE ended_ms < ?", "i",
               clock_wall_ms() - KEEP_MS) < 0)
        log_ev(LOG_WARNING, "weaver_sweep", "cause=\"%s\"", e.msg);
}
