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

INLINE __m128 load_bias(const struct linear_job *b, int j)
{
    float v[TILE_OUT] = {0};

    if (b->bias)
        for (int i = 0; i < TILE_OUT && j + i < b->n1; i++)
            v[i] = weight_f32(b->bias, b->w->dtype, (size_t)(j + i));
    return _mm_loadu_ps(v);
}

INLINE void put_row(const struct linear_job *b, int row, int j, __m128 v, __m128 bias)
{
    float *y = b->y + row * b->ldy + j;
    __mmask8 mask = (__mmask8)(b->n1 - j >= TILE_OUT ? 15 : (1 << (b->n1 - j)) - 1);

    if (b->bias)
        v = _mm_add_ps(v, bias);
    if (b->accumulate)
        v = _mm_add_ps(_mm_maskz_loadu_ps(mask, y), v);
    _mm_mask_storeu_ps(y, mask, v);
}

/* Outputs j .. j+3 (cut at n1) of rows [row, row + R). */
INLINE void put_tile(const struct linear_job *b, int R, int row, int j,
                     __m512 acc[TILE_ROWS][TILE_OUT])
{
    __m128 bias = load_bias(b, j);

#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
        put_row(b, row + r, j, sum_lanes(acc[r]), bias);
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
