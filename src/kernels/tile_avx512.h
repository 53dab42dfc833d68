/* kernels/tile_avx512.h - from 16 lanes of four outputs to four floats in y: shared by the exact
 * and the BF16 tiles. For files compiled with AVX-512 F, BW, DQ and VL. */
#ifndef KERNELS_TILE_AVX512_H
#define KERNELS_TILE_AVX512_H

#include <immintrin.h>

#include "kernels/lanes.h"
#include "kernels/linear_job.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 6, /* 6 x 4 accumulators, 4 weights and 1 activation fill the 32 registers */
    TILE_OUT = 4,  /* four outputs at once make the horizontal sum cheap */
};

/* The canonical tree of each of four outputs: within a 128-bit group the two unpacks put p0 beside
 * p1 and p2 beside p3, so one addition makes p0 + p2 and p1 + p3 of two outputs. */
INLINE __m128 sum_lanes(const __m512 a[TILE_OUT])
{
    __m512 s = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
    __m512 t = _mm512_add_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
    __m512d u = _mm512_castps_pd(s);
    __m512d v = _mm512_castps_pd(t);
    __m512 b = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(u, v)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(u, v)));
    __m256 c = _mm256_add_ps(_mm512_castps512_ps256(b), _mm512_extractf32x8_ps(b, 1));

    return _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
}

/* The outputs of a tile: j, j + stride, j + 2 stride, j + 3 stride, those below b->n1. */
struct outputs {
    int j, stride;
};

INLINE void put_contiguous(const struct linear_job *b, float *y, int n, __m128 v, __m128 bias)
{
    __mmask8 mask = (__mmask8)(n >= TILE_OUT ? 15 : (1 << n) - 1);

    if (b->bias)
        v = _mm_add_ps(v, bias);
    if (b->accumulate)
        v = _mm_add_ps(_mm_maskz_loadu_ps(mask, y), v);
    _mm_mask_storeu_ps(y, mask, v);
}

INLINE void put_apart(const struct linear_job *b, float *y, struct outputs o, __m128 v, __m128 bias)
{
    float sums[TILE_OUT];

    if (b->bias)
        v = _mm_add_ps(v, bias);
    _mm_storeu_ps(sums, v);
    for (int i = 0; i < TILE_OUT && o.j + i * o.stride < b->n1; i++) {
        float *to = y + o.j + i * o.stride;

        *to = b->accumulate ? *to + sums[i] : sums[i];
    }
}

INLINE __m128 load_bias(const struct linear_job *b, struct outputs o)
{
    float v[TILE_OUT] = {0};

    for (int i = 0; i < TILE_OUT && o.j + i * o.stride < b->n1; i++)
        v[i] = weight_f32(b->bias, b->w->dtype, (size_t)(o.j + i * o.stride));
    return _mm_loadu_ps(v);
}

/* Rows [row, row + R) of the tile's outputs. */
INLINE void put_tile(const struct linear_job *b, int R, int row, struct outputs o,
                     __m512 acc[TILE_ROWS][TILE_OUT])
{
    __m128 bias = b->bias ? load_bias(b, o) : _mm_setzero_ps();

#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        float *y = b->y + (row + r) * b->ldy;

        if (o.stride == 1)
            put_contiguous(b, y + o.j, b->n1 - o.j, sum_lanes(acc[r]), bias);
        else
            put_apart(b, y, o, sum_lanes(acc[r]), bias);
    }
}

INLINE void clear_tile(int R, __m512 acc[TILE_ROWS][TILE_OUT])
{
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++)
            acc[r][i] = _mm512_setzero_ps();
}
#endif
