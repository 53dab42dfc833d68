#include "train/adam.h"

#include <math.h>
#include <string.h>

#include "tensor/dtype.h"
#include "train/trainer.h"

enum { LANES = 16 };

struct adam_factors adam_factors_of(const struct adam *a, int64_t step, double norm)
{
    double t = (double)step, clip = a->clip > 0 ? a->clip / (norm + 1e-6) : 1;

    return (struct adam_factors){
        .clip = (float)(clip < 1 ? clip : 1),
        .beta1 = (float)a->beta1,
        .rest1 = (float)(1 - a->beta1),
        .beta2 = (float)a->beta2,
        .rest2 = (float)(1 - a->beta2),
        .decay = (float)(1 - a->lr * a->weight_decay),
        .rate = (float)(a->lr / (1 - pow(a->beta1, t))),
        .root = (float)sqrt(1 - pow(a->beta2, t)),
        .eps = (float)a->eps,
    };
}

bool adam_fits(const struct adam *a)
{
    /* the first step has the largest rate */
    return isfinite((float)(a->lr / (1 - a->beta1))) && isfinite((float)(a->lr * a->weight_decay));
}

double adam_sum_squares(const float *g, size_t n)
{
    double lane[LANES] = {0}, sum = 0;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++)
            lane[j] += (double)g[i + j] * (double)g[i + j];
    for (size_t j = 0; i < n; i++, j++)
        lane[j] += (double)g[i] * (double)g[i];
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

/* One element: *m and *v advance, the new parameter is returned. */
static inline float advance(const struct adam_factors *f, float p, float *m, float *v, float g)
{
    g = g * f->clip;
    *m = f->beta1 * *m + f->rest1 * g;
    *v = f->beta2 * *v + f->rest2 * g * g;
    return p * f->decay - f->rate * (*m / (sqrtf(*v) / f->root + f->eps));
}

void adam_update(const struct adam_factors *factors, float *restrict p, float *restrict m,
                 float *restrict v, float *restrict g, size_t n)
{
    const struct adam_factors f = *factors;

    for (size_t i = 0; i < n; i++) {
        p[i] = advance(&f, p[i], &m[i], &v[i], g[i]);
        g[i] = 0;
    }
}

float adam_largest(const struct adam_factors *factors, const float *p, const float *m,
                   const float *v, const float *g, size_t n)
{
    const struct adam_factors f = *factors;
    float largest = 0;

    for (size_t i = 0; i < n; i++) {
        float mi = m[i], vi = v[i], next = fabsf(advance(&f, p[i], &mi, &vi, g[i]));

        largest = next <= largest ? largest : next; /* a NaN is taken over, and stays */
        if (isnan(largest))
            break;
    }
    return largest;
}

void adam_store(void *to, enum kern_dtype dtype, const float *p, size_t n)
{
    uint16_t *half = to;

    if (dtype == KERN_F32)
        memcpy(to, p, n * sizeof *p);
    else if (dtype == KERN_BF16)
        for (size_t i = 0; i < n; i++)
            half[i] = dtype_f32_to_bf16(p[i]);
    else
        for (size_t i = 0; i < n; i++)
            half[i] = dtype_f32_to_f16(p[i]);
}
