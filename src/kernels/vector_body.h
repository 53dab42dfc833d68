/* kernels/vector_body.h - the small kernels, written once against v16.h. Included by vector_avx2.c
 * and vector_avx512.c, which put these static functions into their tables. The bits are those of
 * vector_ref.c and short_conv_ref.c. */
#include <float.h>
#include <math.h>

static void rmsnorm(float *y, int ldy, const float *x, int ldx, const void *w,
                    enum kern_dtype dtype, int T, int C, float eps)
{
    for (int t = 0; t < T; t++, x += ldx, y += ldy) {
        v16 lanes = v16_set(0);
        v16 r;

        for (int c = 0; c < C; c += LANES) {
            v16 v = v16_load_n(x + c, C - c);
            lanes = v16_fma(v, v, lanes);
        }
        r = v16_set(1.0f / sqrtf(v16_sum(lanes) / (float)C + eps));
        for (int c = 0; c < C; c += LANES) {
            v16 v = v16_mul(v16_load_n(x + c, C - c), r);
            v16_store_n(y + c, v16_mul(v, v16_weights(w, dtype, (size_t)c, C - c)), C - c);
        }
    }
}

static void rope(float *x, int n_heads, int head_dim, const float *cos, const float *sin)
{
    int h = head_dim / 2;

    for (int head = 0; head < n_heads; head++, x += head_dim)
        for (int j = 0; j < h; j += LANES) {
            v16 a = v16_load_n(x + j, h - j);
            v16 b = v16_load_n(x + j + h, h - j);
            v16 c = v16_load_n(cos + j, h - j);
            v16 s = v16_load_n(sin + j, h - j);

            v16_store_n(x + j, v16_fma(a, c, v16_neg(v16_mul(b, s))), h - j);
            v16_store_n(x + j + h, v16_fma(b, c, v16_mul(a, s)), h - j);
        }
}

/* How many of the elements from i on one step takes. */
INLINE int step_of(size_t n, size_t i)
{
    return n - i < LANES ? (int)(n - i) : LANES;
}

static void swiglu(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i += LANES) {
        int m = step_of(n, i);
        v16 g = v16_load_n(gate + i, m);
        v16 d = v16_add(v16_set(1.0f), v16_exp(v16_neg(g)));

        v16_store_n(y + i, v16_mul(v16_div(g, d), v16_load_n(up + i, m)), m);
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += LANES) {
        int m = step_of(n, i);
        v16_store_n(y + i, v16_add(v16_load_n(y + i, m), v16_load_n(x + i, m)), m);
    }
}

static void to_f32(float *y, const void *w, enum kern_dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i += LANES) {
        int m = step_of(n, i);
        v16_store_n(y + i, v16_weights(w, dtype, i, m), m);
    }
}

static void block_max(const float *x, int n, float *max, int *argmax)
{
    v16 top = v16_set(-INFINITY);
    int whole = n / LANES * LANES;

    for (int i = 0; i < whole; i += LANES)
        top = v16_max(v16_load(x + i), top);
    *max = v16_largest(top);
    for (int i = whole; i < n; i++)
        *max = x[i] > *max ? x[i] : *max;
    *argmax = 0;
    for (int i = 0; i<n && * max> - INFINITY; i++)
        if (x[i] == *max) {
            *max = x[i]; /* the sign of the first zero */
            *argmax = i;
            return;
        }
}

static float block_sum_exp(const float *x, int n, float max)
{
    v16 lanes = v16_set(0);

    for (int i = 0; i < n; i += LANES) {
        v16 e = v16_exp(v16_sub(v16_load_n(x + i, n - i), v16_set(max)));
        lanes = v16_add(lanes, v16_select(v16_first(n - i), e, v16_set(0)));
    }
    return v16_sum(lanes);
}

/* Zero times an element is zero, or NaN where it is NaN or infinite; -infinity is made finite first
 * (v16_max takes its second operand where one is NaN). */
static bool below_infinity(const float *x, int n)
{
    v16 sum = v16_set(0);

    for (int i = 0; i < n; i += LANES)
        sum = v16_fma(v16_max(v16_set(-FLT_MAX), v16_load_n(x + i, n - i)), v16_set(0), sum);
    return v16_sum(sum) == 0;
}

/* ---- short convolution: 16 channels at a time, one tap after the other ---- */

enum { TAPS_MAX = 16 }; /* kept in vectors; a longer filter runs the reference */

struct conv {
    float *z;
    const float *bcx;
    float *state;
    ptrdiff_t ldz, ldb, H;
    int rows, K;
};

/* u at row t, channels c .. c+n-1. */
INLINE v16 conv_input(const struct conv *v, int t, int c, int n)
{
    const float *row = v->bcx + t * v->ldb + c;

    if (t < 0)
        return v16_load_n(v->state + (t + v->K - 1) * v->H + c, n);
    return v16_mul(v16_load_n(row, n), v16_load_n(row + 2 * v->H, n));
}

static void conv_channels(const struct conv *v, const float taps[TAPS_MAX][LANES],
                          const float *bias, int c, int n)
{
    for (int t = 0; t < v->rows; t++) {
        v16 sum = v16_set(0);

        for (int j = 0; j < v->K; j++)
            sum = v16_fma(v16_load(taps[j]), conv_input(v, t - (v->K - 1) + j, c, n), sum);
        if (bias)
            sum = v16_add(sum, v16_load(bias));
        v16_store_n(v->z + t * v->ldz + c,
                    v16_mul(v16_load_n(v->bcx + t * v->ldb + v->H + c, n), sum), n);
    }
    for (int i = 0; i < v->K - 1; i++) /* rising: reads only rows that are not yet overwritten */
        v16_store_n(v->state + i * v->H + c, conv_input(v, v->rows - (v->K - 1) + i, c, n), n);
}

static void short_conv(float *z, int ldz, const float *bcx, int ldb, int rows, int H, int K,
                       const void *taps, enum kern_dtype dtype, const void *bias, float *state,
                       int c0, int c1)
{
    struct conv v = {
        .z = z, .bcx = bcx, .state = state, .ldz = ldz, .ldb = ldb, .H = H, .rows = rows, .K = K};

    if (K > TAPS_MAX) {
        short_conv_ref(z, ldz, bcx, ldb, rows, H, K, taps, dtype, bias, state, c0, c1);
        return;
    }
    for (int c = c0; c < c1; c += LANES) {
        int n = c1 - c < LANES ? c1 - c : LANES;
        float tap[TAPS_MAX][LANES] = {0};
        float b[LANES] = {0};

        for (int i = 0; i < n; i++) {
            for (int j = 0; j < K; j++)
                tap[j][i] = weight_f32(taps, dtype, (size_t)(c + i) * (size_t)K + (size_t)j);
            b[i] = bias ? weight_f32(bias, dtype, (size_t)(c + i)) : 0;
        }
        conv_channels(&v, tap, bias ? b : NULL, c, n);
    }
}
