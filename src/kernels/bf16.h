/* kernels/bf16.h - the scalar meaning of one product under numerics bf16-1: factors rounded to
 * nearest even, denormals of factors, sum and result read and written as zero, one rounding. */
#ifndef KERNELS_BF16_H
#define KERNELS_BF16_H

#include <math.h>

#include "kernels/lanes.h"

static inline float bf16_flush(float f)
{
    uint32_t u = f32_bits(f);

    return u & 0x7f800000 ? f : bits_f32(u & 0x80000000);
}

static inline uint16_t bf16_round(float f)
{
    uint32_t u = f32_bits(bf16_flush(f));

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* a NaN stays one */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float bf16_add_product(float acc, uint16_t a, uint16_t b)
{
    return bf16_flush(fmaf(bf16_flush(bf16_f32(a)), bf16_flush(bf16_f32(b)), bf16_flush(acc)));
}
#endif
