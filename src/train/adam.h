/* train/adam.h - inside the room: the arithmetic of one optimizer step on a piece of a parameter.
 *
 * AdamW (arXiv:1711.05101), decoupled weight decay, bias-corrected moments, eps outside the root,
 * every operation rounded to f32 in this order:
 *
 *     g = g clip          m = beta1 m + (1 - beta1) g          v = beta2 v + ((1 - beta2) g) g
 *     p = p (1 - lr wd)   p = p - (lr / (1 - beta1^t)) (m / (sqrt(v) / sqrt(1 - beta2^t) + eps))
 *
 * Elements do not depend on each other, so pieces, threads and vector widths give the same bits.
 * The sum of squares has 16 lanes in double, element k to lane k mod 16, lanes added in order.
 * Pure functions. Arrays of one call do not overlap. */
#ifndef TRAIN_ADAM_H
#define TRAIN_ADAM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct adam;

/* Of one step, computed in double and rounded once. */
struct adam_factors {
    float clip, beta1, rest1, beta2, rest2, decay, rate, root, eps;
};

/* step: the number of this step, from 1. norm: of all gradients. */
struct adam_factors adam_factors_of(const struct adam *a, int64_t step, double norm);

/* Not finite when a gradient is not finite. */
double adam_sum_squares(const float *g, size_t n);
/* In place; g becomes zero. */
void adam_update(const struct adam_factors *f, float *p, float *m, float *v, float *g, size_t n);
/* The largest magnitude that p would get; NaN when one would be NaN. */
float adam_largest(const struct adam_factors *f, const float *p, const float *m, const float *v,
                   const float *g, size_t n);
/* Rounded to nearest even, to `dtype`. */
void adam_store(void *to, enum kern_dtype dtype, const float *p, size_t n);

/* What rounds to infinity in F16. */
#define ADAM_F16_OVERFLOW 65520.0f
#endif
