/* service/weaver/runs.h - training runs in memory, and their operations in order.
 *
 * A run is a row (weaver_models) with an engine run (engine/run.h) as long as this process has not
 * ended it. A row without one is lost (the server was restarted) or terminated. Operations enter by
 * w_run_enter: the gate of sequence.h first, then one queue; the engine gets them one behind the
 * other, except that nothing passes a load. When the engine is done with one, its `ended` runs on
 * the finisher. */
#ifndef SERVICE_WEAVER_RUNS_H
#define SERVICE_WEAVER_RUNS_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/run.h"
#include "service/weaver/ckpt.h"
#include "service/weaver/datums.h"
#include "service/weaver/operations.h"
#include "service/weaver/sequence.h"

struct image;
struct step_log;

struct w_run {
    atomic_int refs;
    char id[UUID_TEXT], session_id[UUID_TEXT], owner[65];
    char base_model[CKPT_BASE_MAX];
    int64_t row_id;
    struct w_shape shape;
    uint64_t seed;
    struct w_limits limits;
    struct image *base;   /* counted */
    struct step_log *log; /* owned */
    struct run *run;      /* owned; NULL once it is closed */
    /* under w->lock */
    bool closing;
    int readers;              /* jobs that look at its trainer: closing waits for them */
    bool loading;             /* a load is in the engine: nothing passes it */
    int inflight;             /* given to the engine, not ended */
    struct train_op *queue;   /* let in */
    struct train_op *waiting; /* for their predecessor, in order of arrival */
    struct sequence_gate gate;
    int64_t last_seq;
    int64_t request_ms, noted_ms;    /* when it was last asked for work; what its row has */
    char parent[CKPT_SLUG_MAX + 96]; /* path of what was loaded last */
    char same_as[UUID_TEXT]; /* [engine thread] the checkpoint that has its weights, "" none */
    struct w_run *next;
};

struct train_op {
    struct w_op op; /* first */
    struct weaver *w;
    struct w_run *run; /* counted */
    int64_t seq_id;    /* 0: none */
    int64_t due_ns;    /* while it waits */
    bool logged;       /* the step log has a line of it */
    struct train_op *next;
    struct run_op engine;
    /* what came out, copied on the engine thread */
    enum run_outcome outcome;
    struct err err;
    struct loss_result loss;
    struct step_result step;
    int64_t step_now;
    /* passes */
    struct w_batch batch;
    float *logprobs, *elementwise; /* [batch.rows] */
    char same_as[UUID_TEXT];       /* the run's, when the pass ran */
    double lr;
    /* saves: the row, and what happens when it is complete */
    struct w_ckpt ckpt;
    bool exported;
    struct w_export *export; /* owned; an artifact is made of it */
    /* loads */
    bool include_optimizer, pinned;
    void (*begin)(struct train_op *op); /* loads: instead of giving it to the engine at once */
};

struct train_op *train_op_new(struct weaver *w, struct w_run *run, const char *type,
                              const char *owner, struct refusal *r);
static inline void train_op_unref(struct train_op *op)
{
    if (op)
        w_op_unref(&op->op);
}
/* Begins the operation (its row is written) and lets it in; then holds and answers. Consumes op in
 * every case. */
int w_run_submit(struct weaver *w, struct train_op *op, struct weaver_call *c, struct refusal *r);
/* A call that was refused before that: it has used its number all the same, and what follows need
 * not wait for it. Consumes op, which may be NULL. */
void w_run_drop(struct weaver *w, struct train_op *op);
/* The engine part of a load follows (from its job). */
void w_run_give_load(struct train_op *op);
/* A load that never reached the engine has ended. */
void w_run_load_over(struct train_op *op);
/* Calls that waited long enough go in. Finisher. */
void w_runs_tick(struct weaver *w);

/* Last numbers and times of requests go into the rows. Finisher, now and then; and at the end. */
void w_runs_note(struct weaver *w);

/* The run in memory, counted. model_not_found, model_terminated, model_lost. */
struct w_run *w_run_take(struct weaver *w, const char *id, struct refusal *r);
struct w_run *w_run_peek(struct weaver *w, const char *id); /* NULL: not in memory */
/* The highest number let in, and when it was last asked for work. False: not in memory. */
bool w_run_seen(struct weaver *w, const char *id, int64_t *last_seq, int64_t *request_ms);
/* The same for a load: a lost run comes back to life. */
struct w_run *w_run_revive(struct weaver *w, const char *id, struct refusal *r);
void w_run_unref(struct w_run *run); /* NULL is allowed */
/* Why an operation of a run that ends does not: model_terminated, or server_restarted where the
 * server stops. Always -1. */
int w_run_refuse_ended(struct weaver *w, const struct w_run *run, struct refusal *r);
/* Ends its operations and gives its memory back. */
void w_run_end(struct weaver *w, struct w_run *run);
void w_runs_end_all(struct weaver *w);
const char *w_numerics(const struct weaver *w);
#endif
