/* The definitions of the backward kernels, one element at a time. */
#include <math.h>

#include "kernels/backward_variants.h"
#include "kernels/bf16.h"
#include "kernels/lanes.h"

static void begin_row(const struct chain *p, float *c)
{
    for (int j = 0; p->clear && j < p->n; j++)
        c[j] = 0;
}

static void chain_ref(const struct chain *p, void *scratch)
{
    (void)scratch;
    for (int i = 0; i < p->m; i++) {
        float *c = p->c + i * p->ldc;

        begin_row(p, c);
        for (int t = 0; t < p->steps; t++) {
            float a = p->a[i * p->a_row + t * p->a_step];

            for (int j = 0; j < p->n; j++)
                c[j] = fmaf(a, weight_f32(p->b, p->b_dtype, (size_t)(t * p->ldb + j)), c[j]);
        }
    }
}

static void add_pair(float *c, const struct chain *p, const float *a, struct chain_pair pair)
{
    uint16_t even = bf16_round(a[pair.t * p->a_step]);
    uint16_t odd = pair.two ? bf16_round(a[(pair.t + 1) * p->a_step]) : 0;

    for (int j = 0; j < p->n; j++) {
        size_t at = (size_t)(pair.t * p->ldb + j), next = at + (size_t)p->ldb;
        uint16_t b_even = bf16_round(weight_f32(p->b, p->b_dtype, at));
        uint16_t b_odd = pair.two ? bf16_round(weight_f32(p->b, p->b_dtype, next)) : 0;

        c[j] = bf16_add_product(bf16_add_product(c[j], odd, b_odd), even, b_even);
    }
}

static void chain_pairs_ref(const struct chain *p, void *scratch)
{
    struct chain_pair pair;
    int segment = 0;

    (void)scratch;
    for (int i = 0; i < p->m; i++)
        begin_row(p, p->c + i * p->ldc);
    for (int t = 0; chain_next_pairs(p, &t, &segment, &pair, 1) > 0;)
        for (int i = 0; i < p->m; i++)
            add_pair(p->c + i * p->ldc, p, p->a + i * p->a_row, pair);
}

static void rmsnorm_row(float *dx, const float *dy, const float *x, const void *w,
                        enum kern_dtype dtype, int C, float eps, float *r, bool accumulate)
{
    float square[LANES] = {0}, product[LANES] = {0};
    float k;

    for (int c = 0; c < C; c++) {
        float g = dy[c] * weight_f32(w, dtype, (size_t)c);

        square[c % LANES] = fmaf(x[c], x[c], square[c % LANES]);
        product[c % LANES] = fmaf(g, x[c], product[c % LANES]);
    }
    *r = 1.0f / sqrtf(lanes_sum(square) / (float)C + eps);
    k = lanes_sum(product) / (float)C * (*r * *r);
    for (int c = 0; c < C; c++) {
        float g = dy[c] * weight_f32(w, dtype, (size_t)c);
        float v = fmaf(-x[c], k, g);

        dx[c] = accumulate ? fmaf(v, *r, dx[c]) : v * *r;
    }
}

static void rmsnorm_back_ref(float *dx, int lddx, const float *dy, int lddy, const float *x,
                             int ldx, const void *w, enum kern_dtype dtype, int T, int C, float eps,
                             float *r, bool accumulate)
{
    for (int t = 0; t < T; t++, dx += lddx, dy += lddy, x += ldx)
        rmsnorm_row(dx, dy, x, w, dtype, C, eps, &r[t], accumulate);
}

static void rmsnorm_weight_ref(float *dw, const float *dy, int lddy, const float *x, int ldx,
                               const float *r, int T, int C)
{
    for (int t = 0; t < T; t++, dy += lddy, x += ldx)
        for (int c = 0; c < C; c++)
            dw[c] = fmaf(dy[c], x[c] * r[t], dw[c]);
}

static void swiglu_back_ref(float *d_gate, float *d_up, const float *dy, const float *gate,
                            const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float d = 1.0f + kern_exp(-gate[i]);
        float sigmoid = 1.0f / d, silu = gate[i] / d, g = dy[i];

        d_up[i] = g * silu;
        d_gate[i] = g * up[i] * fmaf(silu, 1.0f - sigmoid, sigmoid);
    }
}

static void softmax_back_ref(float *x, int n, float temperature, float max, float inv, float c)
{
    for (int i = 0; i < n; i++)
        x[i] = -(c * (kern_exp(x[i] / temperature - max) * inv));
}

static void scale_ref(float *x, size_t n, float f)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= f;
}

static float dot_ref(const float *a, const float *b, int n)
{
    float lane[LANES] = {0};

    for (int i = 0; i < n; i++)
        lane[i % LANES] = fmaf(a[i], b[i], lane[i % LANES]);
    return lanes_sum(lane);
}

/* ---- attention ---- */

static void stats_row(const float *s, int keys, float scale, float *st)
{
    float max = st[0], lane[LANES] = {0};

    for (int j = 0; j < keys; j++)
        max = s[j] * scale > max ? s[j] * scale : max;
    for (int j = 0; j < keys; j++)
        lane[j % LANES] += kern_exp(s[j] * scale - max);
    st[1] = fmaf(st[1], kern_exp(st[0] - max), lanes_sum(lane));
    st[0] = max;
}

static void attention_stats_ref(const struct attention_tile *t)
{
    for (int i = 0; i < t->rows; i++)
        stats_row(t->s + (ptrdiff_t)i * KV_BLOCK, attention_keys(t, i), t->scale,
                  t->stats + i * t->ld);
}

static void attention_row(float *s, float *dp, int keys, float scale, const float *st)
{
    for (int j = 0; j < keys; j++) {
        s[j] = kern_exp(s[j] * scale - st[0]) * st[1];
        dp[j] = s[j] * (dp[j] - st[2]) * scale;
    }
    for (int j = keys; j < KV_BLOCK; j++)
        s[j] = dp[j] = 0;
}

static void attention_back_ref(const struct attention_tile *t)
{
    for (int i = 0; i < t->rows; i++)
        attention_row(t->s + (ptrdiff_t)i * KV_BLOCK, t->dp + (ptrdiff_t)i * KV_BLOCK,
                      attention_keys(t, i), t->scale, t->stats + i * t->ld);
}

/* ---- short convolution ---- */

static float conv_input(const struct conv_back *p, ptrdiff_t t, int c)
{
    const float *row = p->bcx + t * p->ldb;

    return t < 0 ? 0 : row[c] * row[2 * (ptrdiff_t)p->H + c];
}

/* dC in its place, and g = dz C where dB will be. */
static void conv_gate(const struct conv_back *p, const float *tap, int c)
{
    for (ptrdiff_t t = 0; t < p->rows; t++) {
        float *d = p->d + t * p->ldd;
        float dz = p->dz[t * p->lddz + c], sum = 0;

        for (int j = 0; j < p->K; j++)
            sum = fmaf(tap[j], conv_input(p, t - (p->K - 1) + j, c), sum);
        if (p->bias)
            sum += weight_f32(p->bias, p->dtype, (size_t)c);
        d[p->H + c] = dz * sum;
        d[c] = dz * p->bcx[t * p->ldb + p->H + c];
    }
}

static void conv_weights(const struct conv_back *p, int c)
{
    for (ptrdiff_t t = 0; t < p->rows; t++) {
        float g = p->d[t * p->ldd + c];

        for (int j = 0; p->d_taps && j < p->K; j++) {
            float *d = &p->d_taps[(ptrdiff_t)c * p->K + j];

            *d = fmaf(g, conv_input(p, t - (p->K - 1) + j, c), *d);
        }
        if (p->d_bias)
            p->d_bias[c] += g;
    }
}

static void conv_inputs(const struct conv_back *p, const float *tap, int c)
{
    for (ptrdiff_t t = 0; t < p->rows; t++) {
        float *d = p->d + t * p->ldd;
        const float *row = p->bcx + t * p->ldb;
        float du = 0;

        for (int j = p->K - 1; j >= 0; j--) {
            ptrdiff_t at = t + p->K - 1 - j;

            if (at < p->rows)
                du = fmaf(tap[j], p->d[at * p->ldd + c], du);
        }
        d[c] = du * row[2 * (ptrdiff_t)p->H + c];
        d[2 * (ptrdiff_t)p->H + c] = du * row[c];
    }
}

static void short_conv_back_ref(const struct conv_back *p, int c0, int c1)
{
    for (int c = c0; c < c1; c++) {
        float tap[CONV_TAPS_MAX] = {0};

        for (int j = 0; j < p->K; j++)
            tap[j] = weight_f32(p->taps, p->dtype, (size_t)c * (size_t)p->K + (size_t)j);
        conv_gate(p, tap, c);
        conv_weights(p, c);
        conv_inputs(p, tap, c);
    }
}

const struct kernels_back kernels_back_ref = {
    .name = "ref",
    .chain = chain_ref,
    .rmsnorm = rmsnorm_back_ref,
    .rmsnorm_weight = rmsnorm_weight_ref,
    .swiglu = swiglu_back_ref,
    .softmax = softmax_back_ref,
    .scale = scale_ref,
    .dot = dot_ref,
    .attention_stats = attention_stats_ref,
    .attention = attention_back_ref,
    .short_conv = short_conv_back_ref,
};

/* Only the products of weights differ. */
const struct kernels_back kernels_back_bf16_ref = {
    .name = "bf16-ref",
    .chain = chain_ref,
    .chain_pairs = chain_pairs_ref,
    .rmsnorm = rmsnorm_back_ref,
    .rmsnorm_weight = rmsnorm_weight_ref,
    .swiglu = swiglu_back_ref,
    .softmax = softmax_back_ref,
    .scale = scale_ref,
    .dot = dot_ref,
    .attention_stats = attention_stats_ref,
    .attention = attention_back_ref,
    .short_conv = short_conv_back_ref,
};
