/* kernels/variants.h - the tables behind dispatch.c, and the reference functions they fall back on.
 *
 * A table whose file is compiled for instructions that the CPU may lack is read only after asking.
 */
#ifndef KERNELS_VARIANTS_H
#define KERNELS_VARIANTS_H

#include "kernels/kernels.h"

extern const struct kernels kernels_ref;
extern const struct kernels kernels_bf16_ref;
extern const struct kernels kernels_avx2;
extern const struct kernels kernels_avx512;
extern const struct kernels kernels_bf16;

typedef void linear_fn(float *y, int ldy, const float *x, int ldx, const void *px, int m,
                       const struct kern_matrix *w, int n0, int n1, const void *bias,
                       bool accumulate, void *scratch, struct kern_ahead *ahead);
typedef void attention_fn(float *out, int ldo, const float *q, int ldq, int rows, int pos0,
                          int group, int head_dim, const float *const *k_pages,
                          const float *const *v_pages, float scale, void *scratch);
typedef void short_conv_fn(float *z, int ldz, const float *bcx, int ldb, int rows, int H, int K,
                           const void *taps, enum kern_dtype dtype, const void *bias, float *state,
                           int c0, int c1);
typedef void rmsnorm_fn(float *y, int ldy, const float *x, int ldx, const void *w,
                        enum kern_dtype dtype, int T, int C, float eps);
typedef void rope_fn(float *x, int n_heads, int head_dim, const float *cos, const float *sin);
typedef void swiglu_fn(float *y, const float *gate, const float *up, size_t n);
typedef void add_fn(float *y, const float *x, size_t n);
typedef void to_f32_fn(float *y, const void *w, enum kern_dtype dtype, size_t n);
typedef void kv_store_fn(float *k_page, float *v_page, int slot, const float *k, const float *v,
                         int head_dim);
typedef void block_max_fn(const float *x, int n, float *max, int *argmax);
typedef float block_sum_exp_fn(const float *x, int n, float max);
typedef bool below_infinity_fn(const float *x, int n);
typedef size_t linear_x_bytes_fn(int m, int k);
typedef void linear_x_prepare_fn(void *px, const float *x, int ldx, int m0, int m1, int k);

linear_fn linear_ref, linear_avx2, linear_avx512, linear_bf16, linear_bf16_ref;
attention_fn attention_ref;
short_conv_fn short_conv_ref;
rmsnorm_fn rmsnorm_ref;
rope_fn rope_ref;
swiglu_fn swiglu_ref;
add_fn add_ref;
to_f32_fn to_f32_ref;
kv_store_fn kv_store;
block_max_fn block_max_ref;
block_sum_exp_fn block_sum_exp_ref;
below_infinity_fn below_infinity_ref;

/* Exact numerics read x itself. */
linear_x_bytes_fn linear_x_none, linear_x_bf16_bytes;
linear_x_prepare_fn linear_x_nothing, linear_x_bf16, linear_x_bf16_ref;
size_t attention_no_scratch(int rows, int group, int head_dim);
#endif
