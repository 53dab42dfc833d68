/* service/batch_chunk.c - the next rows of a batch: run together, recorded together or not at all.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/served.h"
#include "service/batch_impl.h"
#include "service/batch_input.h"
#include "service/jobs.h"
#include "service/refusal.h"
#include "service/service.h"
#include "service/state.h"

enum { LINES_MAX = 1024 }; /* of one chunk, bad ones included */

struct chunk;

struct item {
    struct chunk *chunk;
    struct batch_line line;
    struct buf bad;  /* its line of the error file, when validation found it bad */
    struct buf body; /* else: what the endpoint gets */
    struct batch_answer answer;
    void (*interrupt)(void *arg); /* guarded by batches.lock */
    void *interrupt_arg;
};

struct chunk {
    struct batches *b;
    struct batch_row *row;
    struct item *items;
    int n, cap;
    int n_running; /* guarded by batches.lock */
    int64_t next_offset, next_line;
    bool end;      /* of the file */
    bool given_up; /* the rows were interrupted */
};

/* ---- reading ---- */

static struct item *new_item(struct chunk *c, struct err *e)
{
    if (c->n == c->cap) {
        int cap = 2 * c->cap + 16;
        struct item *grown = realloc(c->items, (size_t)cap * sizeof *grown);

        if (!grown) {
            err_nomem(e);
            return NULL;
        }
        c->items = grown;
        c->cap = cap;
    }
    c->items[c->n] = (struct item){0};
    return &c->items[c->n++];
}

static int add_item(struct chunk *c, const struct batch_raw *raw, int *n_valid, struct err *e)
{
    struct item *it = new_item(c, e);
    int bad;

    if (!it)
        return -1;
    bad = batch_rows_find_bad(c->b->s->db, c->row->seq, raw->line, &it->bad, e);
    if (bad == 0) {
        batch_line_judge(&it->line, raw, c->row->endpoint, NULL);
        if (!it->line.body || it->line.code)
            return err_set(e, ERR_FORMAT, "line %lld is not what was validated",
                           (long long)raw->line);
        json_write(&it->body, it->line.body);
        ++*n_valid;
    }
    if (bad < 0 || it->bad.failed || it->body.failed)
        return bad < 0 ? -1 : err_nomem(e);
    c->next_offset = raw->next_offset;
    c->next_line = raw->next_line;
    return 0;
}

static int read_chunk(struct chunk *c, int fd, struct err *e)
{
    const struct settings *set = c->b->s->settings;
    struct batch_reader rd = {0};
    struct batch_raw raw;
    int n_valid = 0, rc;

    rc = batch_reader_begin(&rd, fd, (size_t)set->batch_max_line_bytes, c->row->next_offset,
                            c->row->next_line, e);
    while (rc >= 0 && n_valid < set->batch_chunk_rows && c->n < LINES_MAX) {
        rc = batch_reader_next(&rd, &raw, e);
        if (rc > 0)
            rc = add_item(c, &raw, &n_valid, e);
        else if (rc == 0) {
            c->end = true;
            break;
        }
    }
    batch_reader_end(&rd);
    return rc < 0 ? -1 : 0;
}

/* ---- running ---- */

static void watch(void *arg, void (*fn)(void *), void *fn_arg)
{
    struct item *it = arg;
    struct batches *b = it->chunk->b;

    pthread_mutex_lock(&b->lock);
    it->interrupt = fn;
    it->interrupt_arg = fn_arg;
    if (fn && b->interrupt)
        fn(fn_arg);
    pthread_mutex_unlock(&b->lock);
}

static void run_item(void *arg)
{
    struct item *it = arg;
    struct chunk *c = it->chunk;
    const struct batch_call call = {.endpoint = c->row->endpoint,
                                    .body = buf_str(&it->body),
                                    .body_len = it->body.len,
                                    .load_counter = c->row->load_counter,
                                    .watch = watch,
                                    .watch_arg = it};

    c->b->row_fn(c->b->row_arg, &call, &it->answer);
    pthread_mutex_lock(&c->b->lock);
    c->n_running--;
    pthread_cond_broadcast(&c->b->wake);
    pthread_mutex_unlock(&c->b->lock);
}

static void start_item(struct chunk *c, struct item *it)
{
    struct err e = {0};

    it->chunk = c;
    pthread_mutex_lock(&c->b->lock);
    c->n_running++;
    pthread_mutex_unlock(&c->b->lock);
    if (jobs_start(c->b->s->jobs, run_item, it, &e) < 0)
        run_item(it); /* no thread to be had: this one */
}

static void interrupt_locked(struct chunk *c)
{
    c->b->interrupt = true;
    for (int i = 0; i < c->n; i++)
        if (c->items[i].interrupt)
            c->items[i].interrupt(c->items[i].interrupt_arg);
}

/* Until every row is answered; they are given up when the batch is cancelled or expires, or the
 * server stops. */
static void wait_for_rows(struct chunk *c)
{
    struct batches *b = c->b;

    pthread_mutex_lock(&b->lock);
    while (c->n_running > 0) {
        int64_t left_s = c->row->at[AT_EXPIRES] - time(NULL);
        struct timespec until;

        if (b->stopping || left_s <= 0 || b->interrupt)
            interrupt_locked(c);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += left_s > 0 && left_s < 60 ? left_s : 60;
        pthread_cond_timedwait(&b->wake, &b->lock, &until);
    }
    pthread_mutex_unlock(&b->lock);
}

static void run_rows(struct chunk *c)
{
    struct batches *b = c->b;

    pthread_mutex_lock(&b->lock);
    memcpy(b->running, c->row->id, sizeof b->running);
    b->interrupt = false;
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < c->n; i++)
        if (c->items[i].bad.len == 0)
            start_item(c, &c->items[i]);
    wait_for_rows(c);
    pthread_mutex_lock(&b->lock);
    b->running[0] = '\0';
    c->given_up = b->interrupt;
    pthread_mutex_unlock(&b->lock);
}

/* ---- recording ---- */

static const char *code_of(const struct batch_answer *a, const char **message)
{
    const json_t *error = json_object_get(a->body, "error");
    const char *code = json_string_value(json_object_get(error, "code"));

    *message = json_string_value(json_object_get(error, "message"));
    if (!*message)
        *message = "";
    return code ? code : "server_error";
}

/* The state of the server, not the row, is the reason: it is tried again later. */
static const char *why_later(const struct batch_answer *a)
{
    const char *message, *code = code_of(a, &message);

    if (a->status == 0)
        return "queued";
    if (strcmp(code, "model_not_resident") == 0 || strcmp(code, "model_not_loaded") == 0)
        return "model_not_resident";
    if (strcmp(code, "weights_torn") == 0)
        return "weights_torn";
    return a->status == 503 && strcmp(code, "insufficient_memory") != 0 ? "queued" : NULL;
}

static const char *find_later(const struct chunk *c)
{
    const char *why = NULL;

    for (int i = 0; i < c->n && !why; i++)
        if (c->items[i].bad.len == 0)
            why = why_later(&c->items[i].answer);
    return why;
}

static void write_item(struct batch_row *row, const struct item *it, struct buf *output,
                       struct buf *error)
{
    const char *code, *message;

    if (it->bad.len == 0 && it->answer.status == 200) {
        batch_write_answer(output, it->line.id, &it->answer);
        row->completed++;
        return;
    }
    row->failed++;
    if (it->bad.len) {
        buf_add(error, it->bad.data, it->bad.len);
        return;
    }
    code = code_of(&it->answer, &message);
    batch_write_error(error, &it->line, code, message, &it->answer);
}

static int record(struct chunk *c, struct err *e)
{
    struct buf output = {0}, error = {0};
    struct batch_results x;
    int rc = batch_results_open(&x, c->b, c->row, e);

    for (int i = 0; i < c->n; i++)
        write_item(c->row, &c->items[i], &output, &error);
    if (rc == 0)
        rc = batch_results_add(&x, c->row, &output, &error, e);
    if (c->n) {
        c->row->next_offset = c->next_offset;
        c->row->next_line = c->next_line;
    }
    if (rc == 0)
        rc = batch_rows_record(c->b->s->db, c->row, e);
    batch_results_close(&x);
    buf_release(&output);
    buf_release(&error);
    return rc;
}

static int finish_rows(struct chunk *c, struct err *e)
{
    if (!c->end)
        return 0;
    c->row->status = BATCH_FINALIZING;
    c->row->at[AT_FINALIZING] = time(NULL);
    return batch_rows_update(c->b->s->db, c->row, BATCH_IN_PROGRESS, e) < 0 ? -1 : 0;
}

/* ---- may it run now ---- */

/* The batch belongs to the weights that it was validated with, whatever they are called since.
 * After a restart, which forgets how often weights were loaded, the same row under the same name
 * counts as them. */
static bool is_bound(struct batches *b, struct batch_row *row)
{
    struct served *served = engine_peek_served(b->s->engine);
    bool bound = false;

    if (served && strcmp(row->boot, b->s->boot_id) == 0) {
        bound = served->load_counter == row->load_counter;
    } else if (served && served->row_id == row->model_row &&
               strcmp(served->name, row->model) == 0) {
        row->load_counter = served->load_counter;
        memcpy(row->boot, b->s->boot_id, sizeof row->boot);
        bound = true;
    }
    served_unref(served);
    return bound;
}

static const char *why_not(struct batches *b, struct batch_row *row)
{
    const char *why = NULL;

    if (state_torn(b->s))
        return "weights_torn";
    if (!is_bound(b, row))
        return "model_not_resident";
    batch_lease_hold(b, row, &why);
    return why;
}

static void release(struct chunk *c)
{
    for (int i = 0; i < c->n; i++) {
        batch_line_release(&c->items[i].line);
        buf_release(&c->items[i].bad);
        buf_release(&c->items[i].body);
        batch_answer_release(&c->items[i].answer);
    }
    free(c->items);
}

static int run(struct chunk *c, const char **why, struct err *e)
{
    int fd = batch_open_input(c->b, c->row, false, e);
    int rc = fd < 0 ? -1 : read_chunk(c, fd, e);

    fs_close(fd);
    if (rc < 0)
        return -1;
    run_rows(c);
    *why = find_later(c);
    return *why ? 0 : record(c, e) < 0 ? -1 : finish_rows(c, e);
}

bool batch_run_chunk(struct batches *b, struct batch_row *row)
{
    struct chunk c = {.b = b, .row = row};
    const char *why = why_not(b, row);
    struct err e = {0};
    int rc = why ? 0 : run(&c, &why, &e);

    if (rc < 0)
        log_ev(LOG_ERROR, "batch_rows", "batch=%s cause=\"%s\"", row->id, e.msg);
    if (rc == 0 && c.given_up)
        why = NULL;
    if (why || rc < 0)
        batch_lease_drop(b);
    batch_set_waits(b, row->id, why);
    release(&c);
    return rc == 0 && !why;
}
