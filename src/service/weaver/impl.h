/* service/weaver/impl.h - what the files of the training API share.
 *
 * Locks: w->lock covers every list in struct weaver and what hangs on it; it is held for moments
 * and never while the database, a file or the engine is asked. Order: w->lock before none. */
#ifndef SERVICE_WEAVER_IMPL_H
#define SERVICE_WEAVER_IMPL_H

#include <pthread.h>
#include <stdbool.h>

#include "base/uuid.h"
#include "service/refusal.h"
#include "service/weaver/exported.h"
#include "service/weaver/weaver.h"

struct db;
struct w_gap;
struct image_cache;
struct w_op;
struct w_run;
struct sample_op;
struct w_sampler;

struct weaver {
    struct service *s;
    struct db *db;              /* rows that a promise depends on: borrowed */
    struct db *ops;             /* operations and answers: own connection, relaxed */
    int root_fd;                /* WEAVER_CHECKPOINT_DIR */
    unsigned char link_key[32]; /* of download links; dies with the process */
    struct image_cache *images;
    struct w_gap *gap; /* finisher */

    pthread_mutex_t revival; /* one lost run is brought back at a time; taken before `lock` */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an operation ended, an answer is known, or we stop */
    bool stopping;
    struct w_op *open_ops; /* not ended yet, or the end is not written */
    int holding;           /* requests that wait for an operation */
    struct w_run *runs;    /* in memory */
    struct w_sampler *samplers;
    struct w_exported exported[EXPORTED_MAX];
    struct w_answer *answers;
    struct w_pin *pins;     /* checkpoints in use */
    struct w_pause *paused; /* models whose generation is paused */

    pthread_t finisher; /* renders results, lets waiting calls in, sweeps */
    bool has_finisher;
    pthread_mutex_t ended_lock;
    pthread_cond_t ended_came;
    struct w_op *ended; /* the engine is done with them */
    bool finisher_stops;
    int64_t next_tick_ns, next_sweep_ns;

    struct w_op *sample_queue;  /* not begun, linked by next_ended */
    struct sample_op *sampling; /* in the engine */
    int samplers_running;
};

/* ---- small things ---- */
int w_refuse_err(struct refusal *r, const struct err *e); /* 400, 503, 507 or 500, by kind */
int w_refuse_memory(struct refusal *r);                   /* out_of_memory, -1 */
int w_bad(struct refusal *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* {"items", "pagination"}; items consumed. */
json_t *w_list(json_t *items, int64_t total, int64_t limit, int64_t offset);
/* limit and offset of the query; -1 with *r. */
int w_page(const struct weaver_call *c, int64_t limit_default, int64_t *limit, int64_t *offset,
           struct refusal *r);
const char *w_query(const struct weaver_call *c, const char *name); /* NULL: not given */
/* Typed fields of a body; absent and null leave *out alone. -1 with invalid_request. */
int w_str(const json_t *o, const char *key, const char **out, struct refusal *r);
int w_int(const json_t *o, const char *key, int64_t least, int64_t most, int64_t *out,
          struct refusal *r);
int w_num(const json_t *o, const char *key, double *out, struct refusal *r);
int w_flag(const json_t *o, const char *key, bool *out, struct refusal *r);
json_t *w_parse(const char *text); /* of a row; {} when it is damaged */
char *w_dump(const json_t *v);     /* owned; NULL: out of memory */

/* sessions.c: session_not_found, or seen now. */
int w_session_touch(struct weaver *w, const char *id, struct refusal *r);
#endif
