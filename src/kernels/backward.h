/* kernels/backward.h - the arithmetic of the backward pass, in variants that give the same bits.
 *
 * Gradients are f32 under every numerics; under bf16-1 the factors of the products of weights are
 * rounded to BF16. Nearly all of the work is one kernel, the chain: a matrix
 * product whose every element is one rising chain of fused multiply-adds that starts from what the
 * element holds. So a sum may be cut anywhere along its chain, by calls, slices or micro-batches,
 * and keeps its bits:
 *
 *     dX  [rows,in] += dY W      t runs over the outputs      A = dY, B = W as it lies in the image
 *     dW  [out,in]  += dY^T X    t runs over the rows         A = dY read down its columns, B = X
 *
 * The same three rules as in kernels/kernels.h: nothing allocates or fails, no alignment beyond the
 * type, calls may run at the same time on different outputs. Formulas:
 * docs/lessons/backward-pass.md.
 */
#ifndef KERNELS_BACKWARD_H
#define KERNELS_BACKWARD_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"

/* c[i*ldc + j] = fma(a[i*a_row + t*a_step], b[t*ldb + j], c[i*ldc + j]) for t = 0 .. steps-1, for
 * all i < m, j < n. c overlaps neither a nor b. */
struct chain {
    float *c;
    ptrdiff_t ldc;
    const float *a;
    ptrdiff_t a_row, a_step;
    const void *b;
    enum kern_dtype b_dtype;
    ptrdiff_t ldb;   /* elements */
    int m, n, steps; /* steps >= 1 */
    bool clear;      /* c starts from zero, whatever it holds */
    /* chain_pairs: steps are counted in pairs from each of these rising ends on, the last of which
     * is `steps`; NULL: from 0 on alone */
    const int *ends;
};

struct conv_back {
    float *d; /* [rows,3H], stride ldd: gradients of B, C, X */
    ptrdiff_t ldd;
    const float *dz, *bcx; /* [rows,H], [rows,3H] */
    ptrdiff_t lddz, ldb;
    int rows, H, K;          /* rows: a whole sequence from its start */
    const void *taps, *bias; /* [H,K]; [H] or NULL */
    enum kern_dtype dtype;
    float *d_taps, *d_bias; /* added to; each may be NULL */
};

/* Query rows of one head against one block of keys: row i sees the first keys + i of them, at least
 * one and at most KV_BLOCK; what lies behind them is not read. */
struct attention_tile {
    float *s;  /* [rows][KV_BLOCK]: q.k */
    float *dp; /* the same: dout.v */
    int rows, keys;
    float scale;
    float *stats; /* of row i at i * ld: maximum of s scale, sum of exp(s scale - max) */
    ptrdiff_t ld;
};

struct kernels_back {
    const char *name; /* "ref", "avx2", "avx512", "bf16", "bf16-ref" */

    /* scratch: CHAIN_SCRATCH bytes, 64-aligned, own to the calling thread. */
    void (*chain)(const struct chain *p, void *scratch);
    /* Numerics bf16-1, NULL in exact tables: A and B rounded to BF16, two steps at a time, the odd
     * one's product first, as the BF16 dot instruction adds them (kernels/bf16.h); a pair that ends
     * early has zeros for its second step. B is F32 or BF16; with a_step 1 there are no ends. May
     * be cut between pairs. */
    void (*chain_pairs)(const struct chain *p, void *scratch);

    /* y = x r w with r = 1/sqrt(mean(x^2) + eps), T rows of C: with g = dy w,
     * dx = r (g - x (sum(g x) / C) r^2), or dx += that. r [T] is stored for rmsnorm_weight; sums
     * have the 16 lanes and the tree of rmsnorm. dx may be dy when not accumulating. */
    void (*rmsnorm)(float *dx, int lddx, const float *dy, int lddy, const float *x, int ldx,
                    const void *w, enum kern_dtype dtype, int T, int C, float eps, float *r,
                    bool accumulate);
    /* dw[c] = fma(dy[t,c], x[t,c] r[t], dw[c]), rows rising, for c < C. */
    void (*rmsnorm_weight)(float *dw, const float *dy, int lddy, const float *x, int ldx,
                           const float *r, int T, int C);

    /* y = silu(gate) up. d_gate or d_up may be dy. */
    void (*swiglu)(float *d_gate, float *d_up, const float *dy, const float *gate, const float *up,
                   size_t n);

    /* Logits become gradients of a log-probability but for the target's own term:
     * x = -(c (exp(x / temperature - max) inv)). */
    void (*softmax)(float *x, int n, float temperature, float max, float inv, float c);

    /* x *= f */
    void (*scale)(float *x, size_t n, float f);

    /* The canonical dot product of kernels.h. */
    float (*dot)(const float *a, const float *b, int n);

    /* Maximum and sum go on over the tile's keys, as the forward pass does from page to page:
     * sum = fma(sum, exp(max before - max), this tile's in 16 lanes and the canonical tree).
     * A first tile goes on from -infinity and 0. dp is not used. */
    void (*attention_stats)(const struct attention_tile *t);

    /* In place: s becomes p = exp(s scale - max) inv, dp becomes ds = p (dp - mean) scale, both
     * zero for keys that a row does not see. stats: max, inv = 1 / sum, mean = dout.out. */
    void (*attention)(const struct attention_tile *t);

    /* Channels [c0,c1). With g = dz C: d_taps[c,j] is one chain over rising t, d_bias[c] likewise;
     * du[t] one chain over j falling, from g[t] on. */
    void (*short_conv)(const struct conv_back *p, int c0, int c1);
};

enum { CHAIN_SCRATCH = 448 * 1024 };

/* The table that goes with a table of the forward pass. Never NULL. */
const struct kernels_back *kernels_back_of(const struct kernels *k);
#endif
