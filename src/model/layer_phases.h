/* model/layer_phases.h - the forward pass one phase of one layer at a time, with what the backward
 * pass needs kept: training runs this.
 *
 * The phases are those of forward_run (model/step.h) on the same kernels, so every value has the
 * same bits; only where results go differs. For one layer of up to FORWARD_ROWS_MAX rows call the
 * phases in order. Phases up to LAYER_GATE alone may be run again later from the same x: they write
 * the same bits (keys, values and states of their positions included).
 *
 * The caller has given the sequences their blocks (kv_seq_extend), runs the rows of a sequence in
 * rising position, and zeroes the convolution states before position 0. Thread rule and borrowed
 * memory as forward_run; nothing is allocated. */
#ifndef MODEL_LAYER_PHASES_H
#define MODEL_LAYER_PHASES_H

struct adapter;
struct err;
struct forward;
struct kv_seq;
struct model;

/* Consecutive rows of one sequence: row numbers of the buffers at hand. */
struct row_run {
    struct kv_seq *seq;
    int row, n, pos0;
    const struct adapter *adapter; /* or NULL */
};

enum layer_phase {
    LAYER_PROJECT, /* norm; q, k, v, or B, C, X of a convolution */
    LAYER_STORE,   /* norm of heads, rope, cache of k and v; nothing for a convolution */
    LAYER_MIX,     /* attention or convolution */
    LAYER_OUT,     /* mid = x + out projection */
    LAYER_GATE,    /* norm; gate and up */
    LAYER_DOWN,    /* out = mid + down projection of silu(gate) up */
    LAYER_PHASES,
};

/* Where the activations of the rows lie: [rows,.] dense f32. */
struct layer_rows {
    const float *x;       /* H: input of the layer */
    float *q;             /* q width: normed and rotated after LAYER_MIX; convolution: 3H */
    float *kv;            /* k, v: 2 x kv width, k normed and rotated after LAYER_STORE */
    float *q_raw, *k_raw; /* q and kv width before the norm of heads; families with that norm */
    float *mixed;         /* q width or H */
    float *mid, *out;     /* H */
    float *gate, *up;     /* ff: before the activation */
};

/* Rope tables for positions [0, n). */
int layer_phases_reserve(struct forward *f, int n, struct err *e);
/* [head_dim/2] of one position. */
void layer_phases_rope(const struct forward *f, int pos, const float **cos, const float **sin);

void layer_phase_run(struct forward *f, const struct model *m, int layer, enum layer_phase phase,
                     const struct row_run *runs, int n_runs, int rows, const struct layer_rows *r);
#endif
