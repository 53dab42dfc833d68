/* kernels/backward_body.h - the small backward kernels, written once against v16.h. The bits are
 * those of backward_ref.c. */
#include <math.h>

static void rmsnorm_row(float *dx, const float *dy, const float *x, const void *w,
                        enum kern_dtype dtype, int C, float eps, float *r, bool accumulate)
{
    v16 square = v16_set(0), product = v16_set(0);
    v16 k, vr;

    for (int c = 0; c < C; c += LANES) {
        v16 vx = v16_load_n(x + c, C - c);
        v16 g = v16_mul(v16_load_n(dy + c, C - c), v16_weights(w, dtype, (size_t)c, C - c));

        square = v16_fma(vx, vx, square);
        product = v16_fma(g, vx, product);
    }
    *r = 1.0f / sqrtf(v16_sum(square) / (float)C + eps);
    k = v16_set(v16_sum(product) / (float)C * (*r * *r));
    vr = v16_set(*r);
    for (int c = 0; c < C; c += LANES) {
        v16 g = v16_mul(v16_load_n(dy + c, C - c), v16_weights(w, dtype, (size_t)c, C - c));
        v16 v = v16_fma(v16_neg(v16_load_n(x + c, C - c)), k, g);

        v = accumulate ? v16_fma(v, vr, v16_load_n(dx + c, C - c)) : v16_mul(v, vr);
        v16_store_n(dx + c, v, C - c);
    }
}

static void rmsnorm_back(float *dx, int lddx, const float *dy, int lddy, const float *x, int ldx,
                         const void *w, enum kern_dtype dtype, int T, int C, float eps, float *r,
                         bool accumulate)
{
    for (int t = 0; t < T; t++, dx += lddx, dy += lddy, x += ldx)
        rmsnorm_row(dx, dy, x, w, dtype, C, eps, &r[t], accumulate);
}

static void rmsnorm_weight(float *dw, const float *dy, int lddy, const float *x, int ldx,
                           const float *r, int T, int C)
{
    for (int c = 0; c < C; c += LANES) {
        v16 sum = v16_load_n(dw + c, C - c);

        for (ptrdiff_t t = 0; t < T; t++)
            sum = v16_fma(v16_load_n(dy + t * lddy + c, C - c),
                          v16_mul(v16_load_n(x + t * ldx + c, C - c), v16_set(r[t])), sum);
        v16_store_n(dw + c, sum, C - c);
    }
}

static void swiglu_back(float *d_gate, float *d_up, const float *dy, const float *gate,
                        const float *up, size_t n)
{
    v16 one = v16_set(1.0f);

    for (size_t i = 0; i < n; i += LANES) {
        int m = n - i < LANES ? (int)(n - i) : LANES;
        v16 x = v16_load_n(gate + i, m), g = v16_load_n(dy + i, m);
        v16 u = v16_load_n(up + i, m);
        v16 d = v16_add(one, v16_exp(v16_neg(x)));
        v16 sigmoid = v16_div(one, d), silu = v16_div(x, d);

        v16_store_n(d_up + i, v16_mul(g, silu), m);
        v16_store_n(d_gate + i,
                    v16_mul(v16_mul(g, u), v16_fma(silu, v16_sub(one, sigmoid), sigmoid)), m);
    }
}

static void softmax_back(float *x, int n, float temperature, float max, float inv, float c)
{
    for (int i = 0; i < n; i += LANES) {
        v16 v = v16_div(v16_load_n(x + i, n - i), v16_set(temperature));

        v = v16_mul(v16_exp(v16_sub(v, v16_set(max))), v16_set(inv));
        v16_store_n(x + i, v16_neg(v16_mul(v16_set(c), v)), n - i);
    }
}

static void scale(float *x, size_t n, float f)
{
    for (size_t i = 0; i < n; i += LANES) {
        int m = n - i < LANES ? (int)(n - i) : LANES;

        v16_store_n(x + i, v16_mul(v16_load_n(x + i, m), v16_set(f)), m);
    }
}

static float dot(const float *a, const float *b, int n)
{
    v16 lanes = v16_set(0);

    for (int i = 0; i < n; i += LANES)
        lanes = v16_fma(v16_load_n(a + i, n - i), v16_load_n(b + i, n - i), lanes);
    return v16_sum(lanes);
}

/* ---- attention ---- */

INLINE void stats_row(const float *s, int keys, v16 factor, float *st)
{
    v16 low = v16_set(-INFINITY), top = low, lanes = v16_set(0);
    float max;

    for (int i = 0; i < keys; i += LANES)
        top = v16_max(v16_select(v16_first(keys - i), v16_mul(v16_load(s + i), factor), low), top);
    max = v16_largest(top);
    max = max > st[0] ? max : st[0];
    for (int i = 0; i < keys; i += LANES) {
        v16 e = v16_exp(v16_sub(v16_mul(v16_load(s + i), factor), v16_set(max)));

        lanes = v16_add(lanes, v16_select(v16_first(keys - i), e, v16_set(0)));
    }
    st[1] = fmaf(st[1], kern_exp(st[0] - max), v16_sum(lanes));
    st[0] = max;
}

static void attention_stats(const struct attention_tile *t)
{
    for (int i = 0; i < t->rows; i++)
        stats_row(t->s + (ptrdiff_t)i * KV_BLOCK, attention_keys(t, i), v16_set(t->scale),
                  t->stats + i * t->ld);
}

INLINE void attention_row(float *s, float *dp, int keys, v16 factor, const float *st)
{
    v16 zero = v16_set(0);

    for (int i = 0; i < KV_BLOCK; i += LANES) {
        v16 p = zero, d = zero;

        if (i < keys) {
            p = v16_exp(v16_sub(v16_mul(v16_load(s + i), factor), v16_set(st[0])));
            p = v16_mul(p, v16_set(st[1]));
            d = v16_mul(v16_mul(p, v16_sub(v16_load(dp + i), v16_set(st[2]))), factor);
            p = v16_select(v16_first(keys - i), p, zero);
            d = v16_select(v16_first(keys - i), d, zero);
        }
        v16_store(s + i, p);
        v16_store(dp + i, d);
    }
}

static void attention_back(const struct attention_tile *t)
{
    for (int i = 0; i < t->rows; i++)
        attention_row(t->s + (ptrdiff_t)i * KV_BLOCK, t->dp + (ptrdiff_t)i * KV_BLOCK,
                      attention_keys(t, i), v16_set(t->scale), t->stats + i * t->ld);
}

/* ---- short convolution: 16 channels at a time ---- */

/* The taps of the channels at hand, their gradients, and how many channels there are. */
struct conv_lanes {
    float tap[CONV_TAPS_MAX][LANES], bias[LANES];
    int c, n;
};

INLINE v16 conv_u(const struct conv_back *p, ptrdiff_t t, int c, int n)
{
    const float *row = p->bcx + t * p->ldb + c;

    if (t < 0)
        return v16_set(0);
    return v16_mul(v16_load_n(row, n), v16_load_n(row + 2 * (ptrdiff_t)p->H, n));
}

static void conv_gate(const struct conv_back *p, const struct conv_lanes *l)
{
    for (ptrdiff_t t = 0; t < p->rows; t++) {
        float *d = p->d + t * p->ldd + l->c;
        v16 dz = v16_load_n(p->dz + t * p->lddz + l->c, l->n), sum = v16_set(0);

        for (int j = 0; j < p->K; j++)
            sum = v16_fma(v16_load(l->tap[j]), conv_u(p, t - (p->K - 1) + j, l->c, l->n), sum);
        if (p->bias)
            sum = v16_add(sum, v16_load(l->bias));
        v16_store_n(d + p->H, v16_mul(dz, sum), l->n);
        v16_store_n(d, v16_mul(dz, v16_load_n(p->bcx + t * p->ldb + p->H + l->c, l->n)), l->n);
    }
}

static void conv_tap(const struct conv_back *p, const struct conv_lanes *l, int j)
{
    float sum[LANES] = {0};
    v16 v;

    for (int i = 0; i < l->n; i++)
        sum[i] = p->d_taps[(ptrdiff_t)(l->c + i) * p->K + j];
    v = v16_load(sum);
    for (ptrdiff_t t = 0; t < p->rows; t++)
        v = v16_fma(v16_load_n(p->d + t * p->ldd + l->c, l->n),
                    conv_u(p, t - (p->K - 1) + j, l->c, l->n), v);
    v16_store(sum, v);
    for (int i = 0; i < l->n; i++)
        p->d_taps[(ptrdiff_t)(l->c + i) * p->K + j] = sum[i];
}

static void conv_weights(const struct conv_back *p, const struct conv_lanes *l)
{
    for (int j = 0; p->d_taps && j < p->K; j++)
        conv_tap(p, l, j);
    if (p->d_bias) {
        v16 v = v16_load_n(p->d_bias + l->c, l->n);

        for (ptrdiff_t t = 0; t < p->rows; t++)
            v = v16_add(v, v16_load_n(p->d + t * p->ldd + l->c, l->n));
        v16_store_n(p->d_bias + l->c, v, l->n);
    }
}

static void conv_inputs(const struct conv_back *p, const struct conv_lanes *l)
{
    for (ptrdiff_t t = 0; t < p->rows; t++) {
        float *d = p->d + t * p->ldd + l->c;
        const float *row = p->bcx + t * p->ldb + l->c;
        v16 du = v16_set(0);

        for (int j = p->K - 1; j >= 0; j--)
            if (t + p->K - 1 - j < p->rows)
                du =
                    v16_fma(v16_load(l->tap[j]), v16_load_n(d + (p->K - 1 - j) * p->ldd, l->n), du);
        v16_store_n(d, v16_mul(du, v16_load_n(row + 2 * (ptrdiff_t)p->H, l->n)), l->n);
        v16_store_n(d + 2 * (ptrdiff_t)p->H, v16_mul(du, v16_load_n(row, l->n)), l->n);
    }
}

static void short_conv_back(const struct conv_back *p, int c0, int c1)
{
    for (int c = c0; c < c1; c += LANES) {
        struct conv_lanes l = {.c = c, .n = c1 - c < LANES ? c1 - c : LANES};

        for (int i = 0; i < l.n; i++) {
            for (int j = 0; j < p->K; j++)
                l.tap[j][i] =
                    weight_f32(p->taps, p->dtype, (size_t)(c + i) * (size_t)p->K + (size_t)j);
            l.bias[i] = p->bias ? weight_f32(p->bias, p->dtype, (size_t)(c + i)) : 0;
        }
        conv_gate(p, &l);
        conv_weights(p, &l);
        conv_inputs(p, &l);
    }
}
