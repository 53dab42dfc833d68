#include "service/batch_chunk.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "service/batch_input.h"
#include "service/jobs.h"
#include "service/service.h"

enum { LINES_MAX = 1024, LOOK_S = 60 }; /* lines of one chunk, bad ones included */

struct item {
    struct chunk *chunk;
    struct batch_line line;
    struct buf bad;  /* its line of the error file, when validation found it bad */
    struct buf body; /* else: what the endpoint gets */
    struct batch_answer answer;
    void (*interrupt)(void *arg); /* guarded by batches.lock */
    void *interrupt_arg;
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
    c->items[c->n] = (struct item){.chunk = c};
    return &c->items[c->n++];
}

static int add_item(struct chunk *c, const struct batch_raw *raw, int *n_valid, struct err *e)
{
    struct item *it = new_item(c, e);
    int bad;

    if (!it)
        return -1;
    bad = batch_rows_find_bad(c->b->s->db, c->seq, raw->line, &it->bad, e);
    if (bad == 0) {
        batch_line_judge(&it->line, raw, c->endpoint, NULL);
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

static int read_lines(struct chunk *c, int fd, struct err *e)
{
    const struct settings *set = c->b->s->settings;
    struct batch_reader rd = {0};
    struct batch_raw raw;
    int n_valid = 0, rc;

    rc = batch_reader_begin(&rd, fd, (size_t)set->batch_max_line_bytes, c->offset, c->line, e);
    while (rc >= 0 && !c->end && n_valid < set->batch_chunk_rows && c->n < LINES_MAX) {
        rc = batch_reader_next(&rd, &raw, e);
        c->end = rc == 0;
        if (rc > 0)
            rc = add_item(c, &raw, &n_valid, e);
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
    if (fn && it->chunk->interrupt)
        fn(fn_arg);
    pthread_mutex_unlock(&b->lock);
}

static void run_item(void *arg)
{
    struct item *it = arg;
    struct chunk *c = it->chunk;
    struct batches *b = c->b;
    const struct batch_call call = {.endpoint = c->endpoint,
                                    .body = buf_str(&it->body),
                                    .body_len = it->body.len,
                                    .load_counter = c->load_counter,
                                    .watch = watch,
                                    .watch_arg = it};

    b->row_fn(b->row_arg, &call, &it->answer);
    pthread_mutex_lock(&b->lock);
    c->n_running--; /* the chunk may be gone when the lock is */
    pthread_cond_broadcast(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

static void start_item(struct chunk *c, struct item *it)
{
    struct err e = {0};

    pthread_mutex_lock(&c->b->lock);
    c->n_running++;
    pthread_mutex_unlock(&c->b->lock);
    if (jobs_start(c->b->s->jobs, run_item, it, &e) < 0)
        run_item(it); /* no thread to be had: this one */
}

struct chunk *chunk_begin(struct batches *b, const struct batch_row *row, int64_t offset,
                          int64_t line, struct err *e)
{
    struct chunk *c = calloc(1, sizeof *c);
    int fd, rc;

    if (!c) {
        err_nomem(e);
        return NULL;
    }
    *c = (struct chunk){.b = b,
                        .seq = row->seq,
                        .load_counter = row->load_counter,
                        .offset = offset,
                        .line = line,
                        .next_offset = offset,
                        .next_line = line};
    memcpy(c->endpoint, row->endpoint, sizeof c->endpoint);
    fd = batch_open_input(b, row, false, e);
    rc = fd < 0 ? -1 : read_lines(c, fd, e);
    fs_close(fd);
    if (rc < 0) {
        chunk_free(c);
        return NULL;
    }
    for (int i = 0; i < c->n; i++)
        if (c->items[i].bad.len == 0)
            start_item(c, &c->items[i]);
    return c;
}

static void interrupt_locked(struct chunk *c)
{
    c->interrupt = true;
    for (int i = 0; i < c->n; i++)
        if (c->items[i].interrupt)
            c->items[i].interrupt(c->items[i].interrupt_arg);
}

bool chunk_wait(struct chunk *c, const struct batch_row *row)
{
    struct batches *b = c->b;
    bool whole;

    pthread_mutex_lock(&b->lock);
    while (c->n_running > 0) {
        int64_t left_s = row->at[AT_EXPIRES] - time(NULL);
        struct timespec until;

        if (b->stopping || b->interrupt || left_s <= 0)
            interrupt_locked(c);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += left_s > 0 && left_s < LOOK_S ? left_s : LOOK_S;
        pthread_cond_timedwait(&b->wake, &b->lock, &until);
        if (c->n_running > 0 && !c->interrupt) {
            pthread_mutex_unlock(&b->lock);
            batch_lease_renew(b, row); /* rows may take longer than the lease */
            pthread_mutex_lock(&b->lock);
        }
    }
    whole = !c->interrupt;
    pthread_mutex_unlock(&b->lock);
    return whole;
}

/* ---- answers ---- */

static const char *code_of(const struct batch_answer *a, const char **message)
{
    const json_t *error = json_object_get(a->body, "error");
    const char *code = json_string_value(json_object_get(error, "code"));

    *message = json_string_value(json_object_get(error, "message"));
    if (!*message)
        *message = "";
    return code ? code : "server_error";
}

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

const char *chunk_later(const struct chunk *c)
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

void chunk_write(const struct chunk *c, struct batch_row *row, struct buf *output,
                 struct buf *error)
{
    for (int i = 0; i < c->n; i++)
        write_item(row, &c->items[i], output, error);
}

void chunk_free(struct chunk *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->b->lock);
    interrupt_locked(c);
    while (c->n_running > 0)
        pthread_cond_wait(&c->b->wake, &c->b->lock);
    pthread_mutex_unlock(&c->b->lock);
    for (int i = 0; i < c->n; i++) {
        batch_line_release(&c->items[i].line);
        buf_release(&c->items[i].bad);
        buf_release(&c->items[i].body);
        batch_answer_release(&c->items[i].answer);
    }
    free(c->items);
    free(c);
}
