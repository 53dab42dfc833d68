/* kernels/kernels.h - the arithmetic of the forward pass, in variants that give the same bits.
 *
 * Each variant (scalar reference, AVX2, AVX-512) fills one table of the same functions. Every
 * output element is reduced in one fixed order, so a result does not depend on the variant, on how
 * many rows are given at once, or on how outputs are cut into ranges. Numerics "exact-1":
 *
 *  - Canonical dot product of two rows of length n: element k goes to lane p[k mod 16] by one fused
 *    multiply-add, k rising; b[q] = (p[4q] + p[4q+2]) + (p[4q+1] + p[4q+3]); result
 *    (b[0] + b[2]) + (b[1] + b[3]). A tail shorter than 16 is padded with zeros.
 *  - Sums of squares (RMSNorm) use the same 16 lanes and the same tree.
 *  - exp is one polynomial of our own with the same steps everywhere (kernels/exp.h).
 *  - Attention: scores are one fused chain over d per key; P.V runs over keys rising inside blocks
 * of 64 counted from absolute position 0; online softmax from block to block.
 *
 * Numerics "bf16-1" (the fast table, CPUs with AVX512-BF16): linear() takes activations rounded to
 * BF16 and uses the BF16 dot instruction (pairs, odd product first, denormals flushed); a scalar
 * model in linear_bf16_ref.c gives the same bits. F16 and F32 weights run the exact kernels.
 *
 * No function allocates or fails: the caller has checked shapes. Pointers need no alignment beyond
 * their type. Functions may run at the same time on different outputs. This folder includes nothing
 * of ours. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_BLOCK = 64 }; /* positions of one KV page */

enum kern_dtype { KERN_F32, KERN_F16, KERN_BF16 };

/* Bytes of one element. */
static inline size_t kern_dtype_bytes(enum kern_dtype t)
{
    return t == KERN_F32 ? 4 : 2;
}

/* Weights of one linear layer as they lie in the image: [n,k] row-major, dense. */
struct kern_matrix {
    const void *w;
    enum kern_dtype dtype;
    int n, k;
};

/* Memory that the calling thread reads soon. linear() asks the caches for some of ranges [next, n)
 * while it multiplies, and moves on; at its end for the weights that the thread's next call reads.
 */
struct kern_range {
    const void *from;
    size_t bytes;
};

struct kern_ahead {
    const struct kern_range *ranges;
    int next, n;
    size_t offset;        /* added to where each range begins */
    const void *after;    /* the next call's first row, or NULL */
    const char *at, *end; /* what is left of the last one taken */
};

struct kernels {
    const char *name;     /* "ref", "avx2", "avx512", "bf16", "bf16-ref" */
    const char *numerics; /* "exact-1" or "bf16-1" */

    /* Activations in the form linear() reads. px has linear_x_bytes(m,k) bytes; for exact numerics
     * that is 0 and linear reads x itself. Rows may be prepared by different threads: rows [m0,m1).
     */
    size_t (*linear_x_bytes)(int m, int k);
    void (*linear_x_prepare)(void *px, const float *x, int ldx, int m0, int m1, int k);

    /* y[r*ldy + j] = dot(x row r, w row j) (+ bias[j]) for r in [0,m), j in [n0,n1): outputs of one
     * range of rows of W, at y column j. x [m,k] with row stride ldx floats; px as prepared, or
     * NULL to run the exact kernel. bias is in w's dtype or NULL. accumulate: y += the product
     * instead of = (one addition after the dot, for the residual stream). scratch: LINEAR_SCRATCH
     * bytes, 64-aligned, own to the calling thread, as is ahead (NULL is allowed). */
    void (*linear)(float *y, int ldy, const float *x, int ldx, const void *px, int m,
                   const struct kern_matrix *w, int n0, int n1, const void *bias, bool accumulate,
                   void *scratch, struct kern_ahead *ahead);

    /* y[t] = x[t] * (1/sqrt(mean(x[t]^2) + eps)) * w; x, y [T,C] with strides; y may be x. w: [C]
     * in dtype. (arXiv:1910.07467) */
    void (*rmsnorm)(float *y, int ldy, const float *x, int ldx, const void *w,
                    enum kern_dtype dtype, int T, int C, float eps);

    /* Rotates the halves of each of n_heads vectors of head_dim in one row; cos, sin: [head_dim/2]
     * of the row's position. y[j] = x[j] cos - x[j+h] sin; y[j+h] = x[j+h] cos + x[j] sin, each as
     * fma(x[j], cos, -(x[j+h] * sin)) resp. fma(x[j+h], cos, x[j] * sin). */
    void (*rope)(float *x, int n_heads, int head_dim, const float *cos, const float *sin);

    /* y[i] = silu(gate[i]) * up[i]; silu(x) = x / (1 + exp(-x)). y may be gate or up. */
    void (*swiglu)(float *y, const float *gate, const float *up, size_t n);

    /* y[i] += x[i] */
    void (*add)(float *y, const float *x, size_t n);

    /* y[i] = (float)w[i] */
    void (*to_f32)(float *y, const void *w, enum kern_dtype dtype, size_t n);

    /* Stores one K row and one V row of a KV head into its page: k_page [head_dim][KV_BLOCK],
     * v_page [KV_BLOCK][head_dim], slot = position mod KV_BLOCK. */
    void (*kv_store)(float *k_page, float *v_page, int slot, const float *k, const float *v,
                     int head_dim);

    /* Causal attention of `rows` consecutive positions pos0 .. pos0+rows-1 of one sequence for one
     * KV head and the `group` query heads that read it. q row r, head g at q + r*ldq + g*head_dim;
     * out likewise with ldo. Page b holds positions [64b, 64b+64). scale multiplies the finished
     * score. scratch: attention_scratch bytes, own to the thread. A row's bits depend on its own q
     * and the pages alone. */
    void (*attention)(float *out, int ldo, const float *q, int ldq, int rows, int pos0, int group,
                      int head_dim, const float *const *k_pages, const float *const *v_pages,
                      float scale, void *scratch);
    size_t (*attention_scratch)(int rows, int group, int head_dim);

    /* LFM2 short convolution over one channel range: z[t,c] = C[t,c] * sum_j taps[c,j] *
     * u[t-(K-1)+j,c], u = B * X, j rising, fused. bcx row t holds B, C, X thirds of width H at
     * stride ldb. state: the last K-1 rows of u before this call, [K-1,H], updated. taps [H,K] in
     * dtype. Channels [c0,c1). */
    void (*short_conv)(float *z, int ldz, const float *bcx, int ldb, int rows, int H, int K,
                       const void *taps, enum kern_dtype dtype, const void *bias, float *state,
                       int c0, int c1);

    /* Parts of softmax over one vocabulary block: the maximum (first index wins; NaN never wins),
     * and sum of exp((x - max)) in 16 lanes and the canonical tree. */
    void (*block_max)(const float *x, int n, float *max, int *argmax);
    float (*block_sum_exp)(const float *x, int n, float max);
    /* Whether every element is below +infinity, -infinity included; a NaN is not. */
    bool (*below_infinity)(const float *x, int n);
};

/* Bytes of one row as a product with w reads it prepared; 0: it reads x itself. */
static inline size_t kern_x_row_bytes(const struct kernels *k, const struct kern_matrix *w)
{
    return w->dtype == KERN_BF16 ? k->linear_x_bytes(1, w->k) : 0;
}

enum { LINEAR_SCRATCH = 512 * 1024 };

/* The best table for this CPU. fast: bf16-1 where the CPU has AVX512-BF16, else the exact table
 * (its `numerics` says which). Never NULL. */
const struct kernels *kernels_pick(bool fast);
/* By name; NULL when this CPU lacks the instructions or the name is unknown. "ref" and "bf16-ref",
 * the scalar definitions of the two numerics, run on every CPU and are slow. */
const struct kernels *kernels_by_name(const char *name);

float kern_exp(float x); /* the scalar definition of exp that all variants reproduce */
#endif
