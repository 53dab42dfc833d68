/* train/pass_impl.h - inside the room: what the files of a pass share.
 *
 * The rows of a call are cut into groups of whole sequences. A group goes forward in chunks of rows
 * (a walk: chunk, layer, phase), then backward (head, layers from last to first). What the backward
 * pass reads of a group lies in one arena: inputs of all layers, and the inner activations of as
 * many layers as the budget allows; the others share one place and are computed again. With several
 * groups the arena serves one after the other, so each goes forward a second time.
 *
 * Everything is a list of operations; an operation is a loop over independent items, and a slice
 * ends between two items. */
#ifndef TRAIN_PASS_IMPL_H
#define TRAIN_PASS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "kernels/backward.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/layer_phases.h"
#include "model/logits.h"
#include "train/chains.h"
#include "train/grads.h"
#include "train/pass.h"

struct forward;

enum {
    NO_TARGET = -100,
    ROW_ITEM = 16,   /* rows of one item where a row costs little */
    HEAD_ROWS = 512, /* logits of the backward pass: rows x vocabulary entries at a time */
    HEAD_BLOCK = 512,
    HEAD_PART_ROWS = 128, /* of one item */
    HEAD_PART_OUTS = 64,
    HEAD_TILE = 64, /* rows of one call of logits_run */
    HEAD_OPS = 7,   /* operations of the backward half; the embedding is one */
    LAYER_OPS = 25,
    SHORT_BLOCKS = 4, /* of a sequence whose heads are not too long for one item */
    SHORT_PAIRS = SHORT_BLOCKS * (SHORT_BLOCKS + 1) / 2, /* of blocks, queries with keys */
    SLICE_MS = 1000 * 1000,
};

/* Whole sequences that are computed together. */
struct group {
    int first, n;  /* sequences */
    int row, rows; /* of the call */
};

/* How the rows of a call use the budget. */
struct plan {
    struct group *groups;
    int n_groups;
    int n_slots;     /* sequences of the largest group */
    int *slot_rows;  /* [n_slots] longest sequence in each place */
    int rows;        /* rows of the arena: largest group, or one chunk without a backward half */
    int inputs;      /* layer inputs kept: n_layers + 1, or 1 */
    int kept;        /* layers whose inner activations have their own place */
    int kept_logits; /* first rows of the call whose logits stay from forward to backward */
    int rank;        /* widest LoRA, 0: none */
    size_t kv_bytes;
    size_t bytes; /* all of it */
};

/* Where the sequences of a group, one after the other, keep keys and values. */
struct slot {
    struct kv_seq *seq;
};

/* Memory of the group at hand: [rows,.] f32 each. */
struct arena_rows {
    float *inputs;                                           /* [inputs][rows,H] */
    float *q, *kv, *q_raw, *k_raw, *mixed, *mid, *gate, *up; /* [places][rows,.] */
    /* gradients, and what is computed again for them */
    float *dx;               /* H: of the residual stream */
    float *h, *dh;           /* H: normed rows and their gradient */
    float *act, *d_act;      /* ff: silu(gate) up, then d up; d act, then d gate */
    float *d_mixed;          /* max(q width, H); after attention: d q before the norm of heads */
    float *dq, *dkv;         /* q width or 3H; 2 x kv width */
    float *dk;               /* kv width: d k before the norm of heads */
    float *stats;            /* [rows][n_heads][3]: maximum, 1/sum, mean of the softmax */
    float *r;                /* [rows][n_heads + n_kv_heads]: what rmsnorm divides by */
    float *lora_u, *lora_du; /* [3][rows,rank] */
};

/* What one worker may write. */
struct pass_scratch {
    void *linear, *chain;
    void *px;       /* ROW_ITEM rows prepared for linear() */
    float *kt, *vt; /* [head_dim][64]: keys and values of one block, transposed */
    float *s;       /* [SHORT_PAIRS * group][64][64]: scores of a whole head */
    float *ds;      /* [64][64] */
    float *sin;     /* [head_dim/2] */
    float *lora;    /* [HEAD_PART_ROWS,HEAD_PART_OUTS] */
};

struct walk {
    int group, row, rows; /* the chunk, rows counted from the group's first */
    int layer;            /* -1: the embedding; n_layers: the head */
    int phase;            /* of the layer, or rows of the chunk whose logits are done */
    bool logits;          /* the log-probabilities are wanted */
    int n_wanted;         /* rows of the chunk that have a target */
};

enum stage {
    STAGE_IDLE,
    STAGE_FORWARD, /* walk over all groups, with logits */
    STAGE_READY,   /* log-probabilities are there */
    STAGE_AGAIN,   /* a group goes forward again */
    STAGE_HEAD,
    STAGE_REPLAY, /* inner activations of one layer are computed again */
    STAGE_LAYER,
    STAGE_EMBED,
    STAGE_DONE,
};

/* Where the backward half stands. */
struct back {
    int group, layer;
    int op;                     /* of the layer or the head */
    int item;                   /* first one that has not been done */
    int tile, tile_rows, block; /* of the head: rows of `active`, vocabulary */
    int n_active;
};

struct pass {
    struct model_config config;
    const struct kernels *k;
    const struct kernels_back *kb;
    struct pool *pool;
    struct forward *forward;
    struct logits *logits;
    size_t budget;
    int n_workers;
    struct pass_scratch *worker;
    char *worker_memory;
    size_t worker_bytes;

    /* the call */
    struct pass_job job;
    struct plan plan;
    int rows;
    int32_t *token, *target; /* [rows] */
    int *pos;                /* [rows] in their sequences */
    int *first_row;          /* [sequences] of the call */
    float *logprob, *entropy, *max, *inv;
    float *d_embed; /* [rows,H]: gradient of the embedding's rows */
    bool finite;
    char *memory; /* the arena and the arrays above, kept for the next call */
    size_t memory_bytes;
    struct arena_rows a;
    struct kv_cache *kv;
    enum kv_layers kv_layers;
    struct slot *slots; /* [n_slots] */
    int n_slots;
    struct row_run *runs; /* of the chunk at hand */
    int n_runs;
    int *ends;     /* where the sequences of the group end, rows counted from its first */
    int *active;   /* rows of the group that have a gradient, counted from its first */
    float *hidden; /* [FORWARD_ROWS_MAX,H]: final norm of a chunk */
    struct logits_row *answers; /* [HEAD_TILE] */
    int *head_ends;             /* [HEAD_ROWS]: where sequences end among the rows of a tile */
    float *head;                /* [HEAD_ROWS,HEAD_BLOCK] logits, then their gradients */
    void *head_px;              /* rows of a tile, prepared */
    float *kept_logits;         /* [plan.kept_logits,vocab] */

    /* progress */
    enum stage stage;
    struct walk walk;
    struct back back;
    const float *coef, *entropy_coef;
    struct grads *grads;
    struct chains chains;    /* of the operation at hand */
    int64_t deadline, slice; /* ns; slice: from the start of pass_run to the deadline */
    double pace[HEAD_OPS + LAYER_OPS +
                1]; /* ns an item of each operation took last time in this group, or 0 */
};

/* ---- pass_plan.c ---- */
int plan_make(struct pass *p, const struct pass_job *job, struct plan *plan, struct err *e);
void plan_release(struct plan *plan);
/* Memory and caches of the plan; an earlier call's are gone, also on failure. */
int plan_take(struct pass *p, const struct pass_job *job, const struct plan *plan, int rows,
              struct err *e);
void pass_drop_slots(struct pass *p);
void pass_free_memory(struct pass *p);

/* ---- pass_walk.c: forward ---- */
void walk_begin(struct pass *p, int group, bool logits);
bool walk_step(struct pass *p);        /* one operation; true: the group is done */
long slice_work(const struct pass *p); /* milliseconds of exact products that fit a slice, or 1 */
/* One phase of all chunks of the group for one layer, up to LAYER_GATE; true: done. */
void replay_begin(struct pass *p, int group, int layer);
bool replay_step(struct pass *p);
struct layer_rows rows_of_layer(const struct pass *p, int layer, int row);
float *input_of_layer(const struct pass *p, int layer, int row);

/* ---- pass_back.c ---- */
void back_begin(struct pass *p);
void back_step(struct pass *p);
/* Items [back.item, n) until the deadline; true: all are done. */
bool back_items(struct pass *p, pool_fn *fn, void *arg, int n);
/* The same for p->chains, made when back.item was 0. */
bool back_chains(struct pass *p);

/* The logits of a row of the call, if they stay; else NULL. */
static inline float *kept_logits(const struct pass *p, int row)
{
    return row < p->plan.kept_logits ? p->kept_logits + (size_t)row * (size_t)p->config.vocab
                                     : NULL;
}

/* ---- pass_head.c ---- */
void head_begin(struct pass *p);
bool head_step(struct pass *p);

/* ---- pass_layer.c ---- */
bool layer_step(struct pass *p); /* true: the layer is done */
bool embed_step(struct pass *p);

/* ---- pass_mix.c: attention and convolution ---- */
/* An item is a head of a sequence (dq, dk and dv), or else a block of one: first of dq, then of dk
 * and dv. */
bool attend_whole_heads(const struct pass *p);
int attend_heads(const struct pass *p);
void attend_head_item(void *arg, int item, int worker);
int attend_blocks(const struct pass *p);
void attend_q_item(void *arg, int item, int worker);
void attend_kv_item(void *arg, int item, int worker);
int rotate_items(const struct pass *p);
void rotate_item(void *arg, int item, int worker);
int head_norm_items(const struct pass *p);
void head_norm_item(void *arg, int item, int worker);
int convolve_items(const struct pass *p);
void convolve_item(void *arg, int item, int worker);

/* small things */
const struct layer *layer_at_hand(const struct pass *p);
struct layer_grads *grads_at_hand(const struct pass *p);
static inline const struct group *group_at_hand(const struct pass *p)
{
    return &p->plan.groups[p->back.group];
}
static inline int blocks_of(int n, int size)
{
    return (n + size - 1) / size;
}
static inline int end_of(int item, int size, int n)
{
    return (item + 1) * size < n ? (item + 1) * size : n;
}
#endif
