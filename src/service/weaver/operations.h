/* service/weaver/operations.h - units of asynchronous work: begun, held, ended, remembered.
 *
 * Order: w_op_init, w_op_begin (the row is written: from here on the id is known, also after a
 * restart), then exactly one of w_op_done and w_op_fail, from any thread but the engine's. Counted:
 * the maker has one reference, the registry another one until the end. An operation that ended
 * lives in the database; a process that died before leaves its operations to w_ops_restart. */
#ifndef SERVICE_WEAVER_OPERATIONS_H
#define SERVICE_WEAVER_OPERATIONS_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/uuid.h"
#include "service/refusal.h"

struct db;
struct err;
struct weaver;
struct weaver_call;

enum w_status { W_PENDING, W_RUNNING, W_DONE, W_ERROR };

struct w_op {
    atomic_int refs;
    char id[UUID_TEXT];
    const char *type;         /* static: "forward_backward", ... */
    char model_id[UUID_TEXT]; /* "": none */
    char target[UUID_TEXT];   /* model or sampling session: what it waits in line for */
    char owner[65];
    int64_t created_ms;
    enum w_status status;
    json_t *metadata;    /* owned; NULL: {} */
    struct buf response; /* W_DONE: JSON text */
    struct buf error;    /* W_ERROR: members of the envelope, as JSON text of an object */
    void (*destroy)(struct w_op *op);                 /* frees what embeds it */
    void (*ended)(struct weaver *w, struct w_op *op); /* on the finisher, after w_op_engine_done */
    struct w_op *next;                                /* open_ops */
    struct w_op *next_ended; /* the finisher's list, or the sampling queue */
};

/* One reference; destroy is called with the last one. */
void w_op_init(struct w_op *op, const char *type, const char *owner,
               void (*destroy)(struct w_op *op));
struct w_op *w_op_ref(struct w_op *op);
void w_op_unref(struct w_op *op); /* NULL is allowed */

/* rate_limited: its owner has WEAVER_MAX_OPERATIONS that have not ended. */
int w_op_begin(struct weaver *w, struct w_op *op, struct refusal *r);
void w_op_running(struct weaver *w, struct w_op *op);
/* The response is consumed; a buffer that failed makes the operation fail. */
void w_op_done(struct weaver *w, struct w_op *op, struct buf *response);
void w_op_done_json(struct weaver *w, struct w_op *op, json_t *response); /* consumed */
void w_op_fail(struct weaver *w, struct w_op *op, struct refusal *r);     /* cleared */

/* True when no other operation of op->target is open; to be asked after w_op_begin. */
bool w_op_alone(struct weaver *w, const struct w_op *op);
/* Waits for the end, at most `ms`, less when the client leaves, the server stops or too many wait.
 */
void w_op_hold(struct weaver *w, struct w_op *op, int64_t ms, const atomic_bool *gone);
/* The envelope into the call, status 200 when it ended, else 202. */
void w_op_answer(struct weaver *w, struct w_op *op, struct weaver_call *c);
/* The envelope of its row appended: 1, 0 when there is no such row, -1 with *e. */
int w_op_envelope(struct weaver *w, const char *id, struct buf *out, struct err *e);
/* Begin was done: holds if nothing is before it, then answers. Consumes the reference. */
void w_op_submitted(struct weaver *w, struct w_op *op, struct weaver_call *c);

/* [engine thread] The engine is done with it: op->ended runs on the finisher. */
void w_op_engine_done(struct weaver *w, struct w_op *op);

/* Rows of a process that ended: error server_restarted. */
int w_ops_restart(struct weaver *w, struct err *e);
/* One that had not ended after all: its checkpoint was whole. response is JSON text. */
int w_ops_finish_row(struct weaver *w, const char *id, const char *response, struct err *e);
/* Forgets what is old, and writes ends that could not be written. */
void w_ops_sweep(struct weaver *w);
void w_ops_close(struct weaver *w); /* all have ended */

/* The wire form of a refusal inside an envelope: error, error_code, ... */
void w_op_error_text(struct buf *b, const char *id, const struct refusal *r);
#endif
