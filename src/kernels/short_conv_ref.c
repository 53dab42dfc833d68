#include <math.h>

#include "kernels/lanes.h"
#include "kernels/variants.h"

/* u at row t of one channel; rows before the call come from the state. */
static float input(const float *bcx, int ldb, const float *state, int H, int K, int t, int c)
{
    const float *row = bcx + (ptrdiff_t)t * ldb;

    return t < 0 ? state[(ptrdiff_t)(t + K - 1) * H + c] : row[c] * row[2 * (ptrdiff_t)H + c];
}

static void channel(float *z, int ldz, const float *bcx, int ldb, int rows, int H, int K,
                    const void *taps, enum kern_dtype dtype, const void *bias, float *state, int c)
{
    for (int t = 0; t < rows; t++) {
        float sum = 0;

        for (int j = 0; j < K; j++)
            sum = fmaf(weight_f32(taps, dtype, (size_t)c * (size_t)K + (size_t)j),
                       input(bcx, ldb, state, H, K, t - (K - 1) + j, c), sum);
        if (bias)
            sum += weight_f32(bias, dtype, (size_t)c);
        z[(ptrdiff_t)t * ldz + c] = bcx[(ptrdiff_t)t * ldb + H + c] * sum;
    }
    for (int i = 0; i < K - 1; i++) /* rising: reads only rows that are not yet overwritten */
        state[(ptrdiff_t)i * H + c] = input(bcx, ldb, state, H, K, rows - (K - 1) + i, c);
}

void short_conv_ref(float *z, int ldz, const float *bcx, int ldb, int rows, int H, int K,
                    const void *taps, enum kern_dtype dtype, const void *bias, float *state, int c0,
                    int c1)
{
    for (int c = c0; c < c1; c++)
        channel(z, ldz, bcx, ldb, rows, H, K, taps, dtype, bias, state, c);
}
