/* model/forward.h - the one forward pass: prefill, decode, scoring, embeddings.
 *
 * A batch is ragged: each span gives the next n tokens of one sequence; all spans are computed
 * together, every weight row is read once for all rows. Results do not depend on what else is in
 * the batch, on how a sequence is cut into calls, nor on the number of threads: the same bits
 * (kernels/kernels.h).
 *
 * A forward object holds the scratch memory and rope tables for one configuration, and borrows
 * kernels and pool. It may run any model of equal dimensions (forward_fits), so a swap of images
 * keeps it. One thread at a time, the one that may call pool_run; nothing is allocated in a step,
 * except that rope tables grow. */
#ifndef MODEL_FORWARD_H
#define MODEL_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

struct adapter;
struct err;
struct forward;
struct kernels;
struct kv_seq;
struct model;
struct model_config;
struct pool;

enum { FORWARD_ROWS_MAX = 512 }; /* rows of one step, all spans together */

struct forward_span {
    struct kv_seq *seq;            /* a sequence stands in at most one span */
    const int32_t *tokens;         /* borrowed; each in [0, vocab) */
    int n;                         /* at least 1; their positions follow kv_seq_length(seq) */
    const struct adapter *adapter; /* model/adapter.h: of this model's config; NULL: none */
};

struct forward_batch {
    const struct forward_span *spans; /* rows are numbered through all spans in order */
    int n_spans;
    const int *select; /* rising row numbers whose final hidden state is wanted */
    int n_select;      /* 0: only the caches are filled */
};

/* Called on the calling thread with the residual stream [rows,H] after the embedding (layer -1) and
 * after each layer, for tests. In the last layer rows that are not selected may be missing: see
 * n_rows. */
typedef void forward_tap_fn(void *arg, int layer, const float *x, int n_rows, int hidden);

struct forward *forward_new(const struct model_config *c, const struct kernels *k, struct pool *p,
                            struct err *e);
void forward_free(struct forward *f); /* NULL is allowed */
bool forward_fits(const struct forward *f, const struct model_config *c);
void forward_set_tap(struct forward *f, forward_tap_fn *fn, void *arg); /* NULL: none */

/* Runs one step. out [n_select,H]: final-norm output of the selected rows, in their order. On
 * success every span's sequence has grown by n. -1 with nothing changed: ERR_ARG (token or position
 * out of range, too many rows), ERR_SPACE (no KV block is free), ERR_NOMEM. */
int forward_run(struct forward *f, const struct model *m, const struct forward_batch *b, float *out,
                struct err *e);

/* For logits.c and callers with parallel work of their own. */
struct pool *forward_pool(const struct forward *f);
const struct kernels *forward_kernels(const struct forward *f);
#endif
