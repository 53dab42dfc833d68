/* service/batches.h - batches of /v1: files of requests that run beside the others, after them.
 *
 * Order: service_open makes the struct, batches_start begins to work once the face that answers
 * rows is there, service_close stops it. A batch is a row in the database (service/batch_rows.h);
 * requests create and cancel batches, and one thread does everything else: it validates all lines
 * of a file before any runs, hands rows to the engine in chunks, records each chunk whole, and
 * publishes the two files of results. A batch that was stopped by a restart goes on behind its last
 * recorded chunk. Docs: docs/api/batches.md.
 *
 * On success *data is an owned JSON value. Any thread. */
#ifndef SERVICE_BATCHES_H
#define SERVICE_BATCHES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/request.h"
#include "service/chat.h"

struct batch_files;
struct batches;
struct err;
struct refusal;
struct service;

/* ---- what answers a row: the endpoint itself, without a socket ---- */

struct batch_call {
    const char *endpoint; /* "/v1/completions" */
    const char *body;     /* JSON text; a NUL stands behind the last byte */
    size_t body_len;
    bool check_only;       /* say whether it would be refused; run nothing */
    uint64_t load_counter; /* the weights that must answer, whatever they are called now */
    chat_watch_fn *watch;  /* as of a chat job; NULL: nobody interrupts */
    void *watch_arg;
};

struct batch_answer {
    int status; /* HTTP; 0: there was no memory to try */
    char request_id[HTTP_REQUEST_ID_MAX + 1];
    json_t *body;    /* owned */
    json_t *headers; /* owned object: those that begin with X-miLLM- */
};

typedef void batch_row_fn(void *arg, const struct batch_call *call, struct batch_answer *out);
void batch_answer_release(struct batch_answer *a);

/* ---- life ---- */

/* Opens BATCH_FILES_DIR. NULL with *e. */
struct batches *batches_new(struct service *s, struct err *e);
int batches_start(struct batches *b, batch_row_fn *fn, void *arg, struct err *e);
void batches_free(struct batches *b); /* stops the thread, interrupts its rows; NULL is allowed */

struct batch_files *batches_files(struct batches *b);
int64_t batches_backlog(struct batches *b); /* rows without a result; -1: not known */

/* ---- use cases ---- */

/* file_not_found, file_expired, file_deleted, invalid_batch_request, model_leased.
 * `lease`: X-miLLM-Lease or NULL. */
int batches_create(struct service *s, const json_t *body, const char *lease, json_t **data,
                   struct refusal *r);
int batches_get(struct service *s, const char *id, json_t **data, struct refusal *r);
/* Newest first; *data is an array. */
int batches_list(struct service *s, const char *after, int limit, json_t **data, bool *more,
                 struct refusal *r);
int batches_cancel(struct service *s, const char *id, json_t **data, struct refusal *r);
/* Hands a lease over: the batch runs under it, and renews it. */
int batches_lend(struct service *s, const char *id, const char *lease, json_t **data,
                 struct refusal *r);
#endif
