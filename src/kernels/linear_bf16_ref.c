/* The scalar model of numerics "bf16-1".
 *
 * Elements 2i and 2i+1 of each 32 go to lane i: first the odd pair's product is added, then the
 * even one's, each by one fused multiply-add with denormal inputs read as zero and denormal results
 * written as zero. The 16 lanes then meet in the canonical tree, in plain f32. Rows are padded with
 * zeros to a multiple of 32. Activations are rounded to nearest even; their denormals become zero.
 */
#include "kernels/bf16.h"
#include "kernels/variants.h"

enum { STEP = 2 * LANES };

static size_t row_elements(int k)
{
    return ((size_t)k + STEP - 1) / STEP * STEP;
}

size_t linear_x_bf16_bytes(int m, int k)
{
    return (size_t)m * row_elements(k) * sizeof(uint16_t);
}

void linear_x_bf16_ref(void *px, const float *x, int ldx, int m0, int m1, int k)
{
    for (int r = m0; r < m1; r++) {
        uint16_t *to = (uint16_t *)px + (size_t)r * row_elements(k);
        const float *from = x + (ptrdiff_t)r * ldx;

        for (size_t i = 0; i < row_elements(k); i++)
            to[i] = i < (size_t)k ? bf16_round(from[i]) : 0;
    }
}

static float dot(const uint16_t *x, const uint16_t *w, int k)
{
    float lane[LANES] = {0};

    for (int i = 0; i < (int)row_elements(k); i += 2) {
        float *p = &lane[i / 2 % LANES];

        *p = bf16_add_product(*p, i + 1 < k ? x[i + 1] : 0, i + 1 < k ? w[i + 1] : 0);
        *p = bf16_add_product(*p, i < k ? x[i] : 0, i < k ? w[i] : 0);
    }
    return lanes_sum(lane);
}

void linear_bf16_ref(float *y, int ldy, const float *x, int ldx, const void *px, int m,
                     const struct kern_matrix *w, int n0, int n1, const void *bias, bool accumulate,
                     void *scratch, struct kern_ahead *ahead)
{
    if (!px || w->dtype != KERN_BF16) {
        linear_ref(y, ldy, x, ldx, px, m, w, n0, n1, bias, accumulate, scratch, ahead);
        return;
    }
    for (int r = 0; r < m; r++, y += ldy) {
        const uint16_t *row = (const uint16_t *)px + (size_t)r * row_elements(w->k);

        for (int j = n0; j < n1; j++) {
            float v = dot(row, (const uint16_t *)w->w + (size_t)j * (size_t)w->k, w->k);

            if (bias)
                v += weight_f32(bias, w->dtype, (size_t)j);
            y[j] = accumulate ? y[j] + v : v;
        }
    }
}
