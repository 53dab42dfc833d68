/* model/step.h - inside the room: what the phases of one forward step share.
 *
 * A step is a list of parallel phases with a barrier between them. Narrow steps (at most
 * NARROW_ROWS rows: decode, and a few rows of a prompt beside it) are bound by memory: each worker
 * norms the few rows again for itself, so that a phase starts without a barrier of its own. Wide
 * steps (prefill) norm once, in parallel, and cut rows into tiles. Both compute every element by
 * the same kernel calls on rows, so their bits are equal. */
#ifndef MODEL_STEP_H
#define MODEL_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/layer_phases.h"
#include "model/rope_table.h"

struct adapter;
struct err;
struct kv_seq;
struct layer;
struct model;
struct pool;

enum {
    NARROW_ROWS = 32,
    ATTEND_ROWS = 32,       /* query rows of one attention item, */
    NARROW_ATTEND_ROWS = 8, /* and in a narrow step, where one prompt must feed every worker */
    PAGES_AHEAD = 2048,
};

/* What one worker may write. */
struct worker_scratch {
    uint64_t operand;                /* number of the phase whose operand lies in norm and px */
    float *norm;                     /* [NARROW_ROWS, hidden] */
    void *px;                        /* the same rows prepared for linear() */
    void *linear;                    /* LINEAR_SCRATCH */
    float *lora_x, *lora_a, *lora_b; /* [NARROW_ROWS, .]: normed rows, A x, B (A x) */
    void *lora_px;                   /* A x, prepared */
    uint64_t lora_phase;             /* of the rows that lie in lora_x and px, */
    int lora_row;                    /* and the first of them */
    struct kern_ahead ahead;         /* keys and values of the layer that attends next */
    uint64_t ahead_of;               /* that layer, of that step */
    int first_page, end_page;        /* of f->pages: those of this worker's part of attention */
    void *attention;
    const float **k_pages, **v_pages; /* of one sequence and head */
};

/* Rows as a product of one worker reads them. */
struct operand {
    const float *x;
    int ldx;
    const char *px; /* prepared, or NULL */
};

struct forward {
    const struct kernels *k;
    struct pool *pool;
    struct model_config config;
    struct rope_table rope;
    int n_workers;
    struct worker_scratch *worker;
    uint64_t phase; /* counts linear phases */
    uint64_t steps;
    struct kern_range *pages; /* [PAGES_AHEAD]: what the step will attend to, in its first layer */
    size_t tile_bytes;        /* of activations that stay in one core's cache */
    forward_tap_fn *tap;
    void *tap_arg;
    /* [FORWARD_ROWS_MAX, .] float32 */
    float *x;         /* H: the residual stream */
    float *picked;    /* H: its selected rows, in the last layer of a wide step */
    float *norm;      /* H: normed rows of a wide step */
    float *q;         /* q width, or 3H for a convolution */
    float *kv;        /* k, v: 2 x kv width */
    float *mixed;     /* max(q width, H): output of attention or convolution */
    float *gate, *up; /* ff */
    void *px;         /* prepared rows of a wide step, widest input */
    char *memory;     /* all of the above */
    size_t memory_bytes;
};

struct step {
    struct forward *f;
    const struct model *m;
    int rows;
    bool narrow;
    bool short_spans;            /* narrow, and each span is one item of attention */
    const struct row_run *spans; /* all rows */
    int n_spans;
    const int *select;
    int n_select;
    int n_pages; /* of f->pages */
};

/* ---- step_linear.c: y = norm(x) W^T for up to three matrices that read the same rows ---- */
struct linear_out {
    const struct kern_matrix *w;
    const void *bias;
    float *y;
    int ldy;
};

struct linear_phase {
    const float *x; /* rows of width k */
    int ldx, rows, k;
    const void *norm; /* RMSNorm weight applied to x first, or NULL */
    struct linear_out out[3];
    int n_out;
    bool accumulate; /* y += */
    bool swiglu;     /* out[0].y = silu(out[0]) * out[1] */
    /* step_project: whose matrices, and whose rows they are */
    const struct layer *layer;
    int layer_index;
    const struct row_run *runs;
    int n_runs;
};

void step_linear(const struct step *s, const struct linear_phase *p);

/* ---- step_adapter.c: the same, with the adapters of the rows ---- */
void step_project(const struct step *s, const struct linear_phase *p);

/* ---- step_ahead.c: what is asked for while a narrow step multiplies ---- */
/* Lists the keys and values that the step attends to. */
void step_list_pages(struct step *s);
/* What this worker may ask for in this phase: w->ahead, for the next attention. */
struct kern_ahead *step_ahead(const struct step *s, struct worker_scratch *w,
                              const struct linear_phase *p);
/* The matrices (only `w` of each) of the phase that follows p, none after the last layer. */
void step_next_products(const struct model *m, const struct linear_phase *p,
                        struct linear_phase *next);

/* ---- step_mix.c: attention and short convolution ---- */
/* Norms, rotates and stores the keys and values of all rows (f->kv). */
void step_store_kv(const struct step *s, const struct layer *l);
/* f->mixed = attention of the q rows (f->q) of these runs. store: does step_store_kv on the way;
 * then the runs are the spans. */
void step_attend(const struct step *s, const struct layer *l, const struct row_run *runs,
                 int n_runs, bool store);
/* f->mixed = short convolution of f->q rows [B, C, X]; states advance. */
void step_convolve(const struct step *s, const struct layer *l);

/* ---- step_scratch.c ---- */
int scratch_init(struct forward *f, struct err *e);
void scratch_release(struct forward *f);
#endif
