/* service/weaver/samplers.h - sampling sessions: weights that do not change under those who sample.
 *
 * A sampler holds an image, and an adapter for LoRA, of a base model or of a checkpoint. It keeps
 * what it has loaded, also when the checkpoint expires; one that was idle for SAMPLER_IDLE_MS and
 * can be read again is let go and comes back by itself. Counted; any thread. */
#ifndef SERVICE_WEAVER_SAMPLERS_H
#define SERVICE_WEAVER_SAMPLERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/uuid.h"
#include "service/weaver/ckpt.h"
#include "service/weaver/datums.h"

struct adapter;
struct image;
struct err;
struct refusal;
struct weaver;
struct weaver_call;

enum { SAMPLER_IDLE_MS = 600000 };

struct w_sampler {
    atomic_int refs;
    char id[UUID_TEXT], session_id[UUID_TEXT], owner[65];
    char base_model[CKPT_BASE_MAX];
    char model_path[320];        /* "": the base itself */
    char asked_model[UUID_TEXT]; /* model_id as it was sent, "" when it was not */
    char model_id[UUID_TEXT];    /* the run whose weights these are, "" for a base */
    char checkpoint_id[UUID_TEXT];
    struct w_ckpt ckpt; /* its row, as it was found */
    char tokenizer_path[1024];
    bool full; /* whole weights of a run: its generation can be paused */
    int64_t row_id, created_ms;
    struct image *image;     /* counted */
    struct adapter *adapter; /* counted, or NULL */
    struct w_limits limits;
    int64_t used_ns; /* w->lock */
    struct w_sampler *next;
};

/* Counted; sampling_session_not_found, or why its weights cannot be had again. */
struct w_sampler *w_sampler_take(struct weaver *w, const char *id, struct refusal *r);
/* The weights of a checkpoint path for whoever samples without a session; kept like a session's. */
struct w_sampler *w_sampler_of_path(struct weaver *w, const char *path, struct refusal *r);
void w_sampler_unref(struct w_sampler *s); /* NULL is allowed */
void w_samplers_sweep(struct weaver *w);
void w_samplers_free(struct weaver *w);

/* ---- between the files of samplers ---- */

/* sampler_weights.c. What path (or base_model, without one) names: everything but the weights. */
int sampler_find(struct weaver *w, struct w_sampler *s, const char *path, struct refusal *r);
/* What follows from row_id, model_path and checkpoint_id: the run and the tokenizer. */
void sampler_fill(struct weaver *w, struct w_sampler *s);
bool sampler_at_hand(struct weaver *w, const struct w_sampler *s); /* nothing large is to be read */
int sampler_read(struct weaver *w, struct w_sampler *s, struct refusal *r);
/* Joins the list. -1: its row has been deleted meanwhile, or cannot be read. */
int sampler_keep(struct weaver *w, struct w_sampler *s, struct refusal *r);
json_t *sampler_object(const struct w_sampler *s);
int sampler_delete_row(struct weaver *w, const char *id, struct err *e);
/* sampler_sync.c: a session whose row is there gets its weights; 201 when that is soon over, else
 * 202 with an operation. */
int sampler_sync(struct weaver *w, struct w_sampler *s, struct weaver_call *c, struct refusal *r);
#endif
