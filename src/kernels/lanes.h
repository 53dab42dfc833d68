/* kernels/lanes.h - the scalar meaning of the 16 lanes, and the exact widening of 16-bit floats.
 *
 * Every vector variant reproduces these to the bit. Included by the reference and by tails. */
#ifndef KERNELS_LANES_H
#define KERNELS_LANES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

enum { LANES = 16 };

static inline float bits_f32(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bf16_f32(uint16_t h)
{
    return bits_f32((uint32_t)h << 16);
}

/* IEEE 754 binary16; a NaN becomes quiet and keeps its payload, as the conversion instructions do.
 */
static inline float f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t fraction = h & 0x3ff;

    if (exponent == 31)
        return bits_f32(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent == 0) {
        float tiny = (float)fraction * 0x1p-24f;
        return bits_f32(sign | f32_bits(tiny));
    }
    return bits_f32(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline float weight_f32(const void *w, enum kern_dtype dtype, size_t i)
{
    switch (dtype) {
    case KERN_F32: {
        float f;
        memcpy(&f, (const char *)w + i * sizeof f, sizeof f);
        return f;
    }
    case KERN_F16:
    case KERN_BF16: {
        uint16_t h;
        memcpy(&h, (const char *)w + i * sizeof h, sizeof h);
        return dtype == KERN_F16 ? f16_f32(h) : bf16_f32(h);
    }
    }
    return 0;
}

/* The canonical tree: b[q] = (p[4q] + p[4q+2]) + (p[4q+1] + p[4q+3]), then (b0 + b2) + (b1 + b3).
 */
static inline float lanes_sum(const float p[LANES])
{
    float b[4];

    for (int q = 0; q < 4; q++)
        b[q] = (p[4 * q] + p[4 * q + 2]) + (p[4 * q + 1] + p[4 * q + 3]);
    return (b[0] + b[2]) + (b[1] + b[3]);
}
#endif
