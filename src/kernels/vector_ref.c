/* The definitions of everything but linear() and attention(), one element at a time. */
#include <float.h>
#include <math.h>

#include "kernels/exp.h"
#include "kernels/lanes.h"
#include "kernels/variants.h"

static float power_of_two(uint32_t n)
{
    return bits_f32((n + 127) << 23);
}

float kern_exp(float x)
{
    float t;
    float n;
    float r;
    float p;
    int32_t whole;
    int32_t half;

    x = EXP_HI < x ? EXP_HI : x;
    x = EXP_LO > x ? EXP_LO : x;
    t = fmaf(x, EXP_LOG2E, EXP_MAGIC);
    n = t - EXP_MAGIC;
    r = fmaf(n, -EXP_LN2_HI, x);
    r = fmaf(n, -EXP_LN2_LO, r);
    p = fmaf(EXP_C6, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    whole = (int32_t)(f32_bits(t) - f32_bits(EXP_MAGIC));
    half = whole >> 1;
    return (p * power_of_two((uint32_t)half)) * power_of_two((uint32_t)whole - (uint32_t)half);
}

void rmsnorm_ref(float *y, int ldy, const float *x, int ldx, const void *w, enum kern_dtype dtype,
                 int T, int C, float eps)
{
    for (int t = 0; t < T; t++, x += ldx, y += ldy) {
        float lane[LANES] = {0};
        float r;

        for (int c = 0; c < C; c++)
            lane[c % LANES] = fmaf(x[c], x[c], lane[c % LANES]);
        r = 1.0f / sqrtf(lanes_sum(lane) / (float)C + eps);
        for (int c = 0; c < C; c++)
            y[c] = x[c] * r * weight_f32(w, dtype, (size_t)c);
    }
}

void rope_ref(float *x, int n_heads, int head_dim, const float *cos, const float *sin)
{
    int h = head_dim / 2;

    for (int head = 0; head < n_heads; head++, x += head_dim)
        for (int j = 0; j < h; j++) {
            float a = x[j];
            float b = x[j + h];

            x[j] = fmaf(a, cos[j], -(b * sin[j]));
            x[j + h] = fmaf(b, cos[j], a * sin[j]);
        }
}

void swiglu_ref(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + kern_exp(-gate[i])) * up[i];
}

void add_ref(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

void to_f32_ref(float *y, const void *w, enum kern_dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = weight_f32(w, dtype, i);
}

void kv_store(float *k_page, float *v_page, int slot, const float *k, const float *v, int head_dim)
{
    for (int d = 0; d < head_dim; d++)
        k_page[d * KV_BLOCK + slot] = k[d];
    memcpy(v_page + (ptrdiff_t)slot * head_dim, v, (size_t)head_dim * sizeof *v);
}

void block_max_ref(const float *x, int n, float *max, int *argmax)
{
    *max = -INFINITY;
    *argmax = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > *max) {
            *max = x[i];
            *argmax = i;
        }
}

float block_sum_exp_ref(const float *x, int n, float max)
{
    float lane[LANES] = {0};

    for (int i = 0; i < n; i++)
        lane[i % LANES] += kern_exp(x[i] - max);
    return lanes_sum(lane);
}

bool below_infinity_ref(const float *x, int n)
{
    for (int i = 0; i < n; i++)
        if (!(x[i] <= FLT_MAX))
            return false;
    return true;
}

const struct kernels kernels_ref = {
    .name = "ref",
    .numerics = "exact-1",
    .linear_x_bytes = linear_x_none,
    .linear_x_prepare = linear_x_nothing,
    .linear = linear_ref,
    .rmsnorm = rmsnorm_ref,
    .rope = rope_ref,
    .swiglu = swiglu_ref,
    .add = add_ref,
    .to_f32 = to_f32_ref,
    .kv_store = kv_store,
    .attention = attention_ref,
    .attention_scratch = attention_no_scratch,
    .short_conv = short_conv_ref,
    .block_max = block_max_ref,
    .block_sum_exp = block_sum_exp_ref,
    .below_infinity = below_infinity_ref,
};

const struct kernels kernels_bf16_ref = {
    .name = "bf16-ref",
    .numerics = "bf16-1",
    .linear_x_bytes = linear_x_bf16_bytes,
    .linear_x_prepare = linear_x_bf16_ref,
    .linear = linear_bf16_ref,
    .rmsnorm = rmsnorm_ref,
    .rope = rope_ref,
    .swiglu = swiglu_ref,
    .add = add_ref,
    .to_f32 = to_f32_ref,
    .kv_store = kv_store,
    .attention = attention_ref,
    .attention_scratch = attention_no_scratch,
    .short_conv = short_conv_ref,
    .block_max = block_max_ref,
    .block_sum_exp = block_sum_exp_ref,
    .below_infinity = below_infinity_ref,
};
