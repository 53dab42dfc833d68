/* linear() of numerics bf16-1 where k is one step of the tile: the B of adapters.
 *
 * With a single product a lane, the tile's horizontal sums cost more than its products. Here 16
 * rows of W are transposed into registers, a lane of the canonical order each, with the outputs
 * side by side: a row of x meets them broadcast pair by pair, and the canonical tree is 15
 * additions for 16 outputs. Lane for lane the same instruction on the same values, so the same
 * bits. */
#include <immintrin.h>

#include "kernels/lanes.h"
#include "kernels/linear_job.h"
#include "kernels/variants.h"

#define INLINE static inline __attribute__((always_inline))

/* 4 x 4 words inside each 128-bit group, then the groups. */
INLINE void transpose(__m512i v[LANES])
{
    __m512i t[LANES];

#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) {
        __m512i a = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        __m512i b = _mm512_unpackhi_epi32(v[i], v[i + 1]);
        __m512i c = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
        __m512i d = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);

        t[i] = _mm512_unpacklo_epi64(a, c);
        t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d);
        t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
        __m512i b = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        __m512i c = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);

        v[i] = _mm512_shuffle_i32x4(a, b, 0x88);
        v[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
        v[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
        v[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
}

INLINE __m512 product(const int32_t *x, const __m512i w[LANES], int lane)
{
    return _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)_mm512_set1_epi32(x[lane]),
                            (__m512bh)w[lane]);
}

/* b[q] of the canonical tree. */
INLINE __m512 quad(const int32_t *x, const __m512i w[LANES], int q)
{
    return _mm512_add_ps(_mm512_add_ps(product(x, w, 4 * q), product(x, w, 4 * q + 2)),
                         _mm512_add_ps(product(x, w, 4 * q + 1), product(x, w, 4 * q + 3)));
}

/* All rows of x times outputs [j, j + n). */
static void block(const struct linear_job *b, int j, int n)
{
    __mmask16 mask = (__mmask16)(n >= LANES ? 0xffff : (1u << n) - 1);
    __mmask32 elements = b->w->k >= 2 * LANES ? 0xffffffff : (1u << b->w->k) - 1;
    const int32_t *x = b->px;
    float *y = b->y + j;
    float bias[LANES] = {0};
    __m512i w[LANES];

#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        w[i] = _mm512_maskz_loadu_epi16(elements, weight_row(b, j + i, sizeof(uint16_t)));
    transpose(w);
    for (int i = 0; b->bias && i < n && i < LANES; i++)
        bias[i] = weight_f32(b->bias, b->w->dtype, (size_t)(j + i));
    for (int r = 0; r < b->m; r++, x += LANES, y += b->ldy) {
        __m512 v = _mm512_add_ps(_mm512_add_ps(quad(x, w, 0), quad(x, w, 2)),
                                 _mm512_add_ps(quad(x, w, 1), quad(x, w, 3)));

        if (b->bias)
            v = _mm512_add_ps(v, _mm512_loadu_ps(bias));
        if (b->accumulate)
            v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), v);
        _mm512_mask_storeu_ps(y, mask, v);
    }
}

void linear_short_bf16(const struct linear_job *b, int n0)
{
    for (int j = n0; j < b->n1; j += LANES)
        block(b, j, b->n1 - j);
}
