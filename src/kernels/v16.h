/* kernels/v16.h - sixteen floats, lane i of the canonical sums: one 512-bit register or two of 256.
 *
 * The bodies in vector_body.h and attention_body.h are written once against this and compiled for
 * each instruction set. `n` of the partial forms is in [0, 16]; lanes past it read as zero. */
#ifndef KERNELS_V16_H
#define KERNELS_V16_H

#include <immintrin.h>

#include "kernels/exp.h"
#include "kernels/lanes.h"

#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__
#include "kernels/v16_avx512.h"
#else
#include "kernels/v16_avx2.h"
#endif

INLINE v16 v16_load_n(const float *p, int n)
{
    return n >= LANES ? v16_load(p) : v16_load_part(p, n);
}

INLINE void v16_store_n(float *p, v16 a, int n)
{
    if (n >= LANES)
        v16_store(p, a);
    else
        v16_store_part(p, a, n);
}

/* 16 weights from element i on, of which n exist. */
INLINE v16 v16_weights(const void *w, enum kern_dtype dtype, size_t i, int n)
{
    if (dtype == KERN_F32)
        return v16_load_n((const float *)w + i, n);
    if (n >= LANES)
        return v16_widen((const uint16_t *)w + i, dtype);
    uint16_t part[LANES] = {0};
    memcpy(part, (const uint16_t *)w + i, (size_t)n * sizeof *part);
    return v16_widen(part, dtype);
}

/* The steps of exp.h. */
INLINE v16 v16_exp(v16 x)
{
    v16 magic = v16_set(EXP_MAGIC);
    v16 t;
    v16 n;
    v16 r;
    v16 p;

    x = v16_min(v16_set(EXP_HI), x); /* the second operand stays when one is NaN */
    x = v16_max(v16_set(EXP_LO), x);
    t = v16_fma(x, v16_set(EXP_LOG2E), magic);
    n = v16_sub(t, magic);
    r = v16_fma(n, v16_set(-EXP_LN2_HI), x);
    r = v16_fma(n, v16_set(-EXP_LN2_LO), r);
    p = v16_fma(v16_set(EXP_C6), r, v16_set(EXP_C5));
    p = v16_fma(p, r, v16_set(EXP_C4));
    p = v16_fma(p, r, v16_set(EXP_C3));
    p = v16_fma(p, r, v16_set(EXP_C2));
    p = v16_fma(p, r, v16_set(1.0f));
    p = v16_fma(p, r, v16_set(1.0f));
    return v16_scale(p, t);
}
#endif
