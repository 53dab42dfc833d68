#include <math.h>

#include "kernels/lanes.h"
#include "kernels/variants.h"

static float dot(const float *x, const struct kern_matrix *w, int row)
{
    size_t at = (size_t)row * (size_t)w->k;
    float lane[LANES] = {0};

    for (int k = 0; k < (w->k + LANES - 1) / LANES * LANES; k++) {
        bool pad = k >= w->k;
        float a = pad ? 0 : x[k];
        float b = pad ? 0 : weight_f32(w->w, w->dtype, at + (size_t)k);

        lane[k % LANES] = fmaf(a, b, lane[k % LANES]);
    }
    return lanes_sum(lane);
}

void linear_ref(float *y, int ldy, const float *x, int ldx, const void *px, int m,
                const struct kern_matrix *w, int n0, int n1, const void *bias, bool accumulate,
                void *scratch, struct kern_ahead *ahead)
{
    (void)px;
    (void)scratch;
    (void)ahead;
    for (int r = 0; r < m; r++, x += ldx, y += ldy)
        for (int j = n0; j < n1; j++) {
            float v = dot(x, w, j);

            if (bias)
                v += weight_f32(bias, w->dtype, (size_t)j);
            y[j] = accumulate ? y[j] + v : v;
        }
}

size_t linear_x_none(int m, int k)
{
    (void)m;
    (void)k;
    return 0;
}

void linear_x_nothing(void *px, const float *x, int ldx, int m0, int m1, int k)
{
    (void)px;
    (void)x;
    (void)ldx;
    (void)m0;
    (void)m1;
    (void)k;
}
