/* linear(), numerics exact-1, with one 512-bit register for the 16 lanes of one output. Weights are
 * widened in registers on their way into the tile: the instructions for it run beside the fused
 * multiply-adds, and a copy of W in f32 measured slower for every number of rows. */
#include <immintrin.h>

#include "kernels/lanes.h"
#include "kernels/linear_job.h"
#include "kernels/variants.h"

#define INLINE static inline __attribute__((always_inline))

enum { TILE_STEP = LANES };

INLINE const char *tile_x(const struct linear_job *b, int row)
{
    return (const char *)(b->x + row * b->ldx);
}

INLINE size_t tile_x_stride(const struct linear_job *b)
{
    return (size_t)b->ldx * sizeof(float);
}

/* BF16 is the upper half of an f32: one permutation puts each word there and zeros the other half.
 */
INLINE __m512 widen16(__m256i h, enum kern_dtype dtype)
{
    const __m512i word = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

    if (dtype == KERN_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(
        0xaaaaaaaa, _mm512_slli_epi32(word, 16), _mm512_castsi256_si512(h)));
}

INLINE __m512 widen(const char *w, enum kern_dtype dtype)
{
    if (dtype == KERN_F32)
        return _mm512_loadu_ps(w);
    return widen16(_mm256_loadu_si256((const void *)w), dtype);
}

INLINE __m512 widen_part(const char *w, enum kern_dtype dtype, __mmask16 mask)
{
    if (dtype == KERN_F32)
        return _mm512_maskz_loadu_ps(mask, w);
    return widen16(_mm256_maskz_loadu_epi16(mask, w), dtype);
}

INLINE void tile_step(int R, enum kern_dtype dtype, __m512 acc[][4], const char *x, size_t ldx,
                      const char *const w[4], int k, int n)
{
    bool whole = n >= TILE_STEP;
    __mmask16 mask = (__mmask16)(whole ? 0xffff : (1u << n) - 1);
    const char *at = x + (size_t)k * sizeof(float);
    __m512 v[4];

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const char *from = w[i] + (size_t)k * kern_dtype_bytes(dtype);
        v[i] = whole ? widen(from, dtype) : widen_part(from, dtype, mask);
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++, at += ldx) {
        __m512 xr = whole ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps(mask, at);

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            acc[r][i] = _mm512_fmadd_ps(xr, v[i], acc[r][i]);
    }
}

#include "kernels/tile_avx512.h"

TILES_OF(F32)
TILES_OF(F16)
TILES_OF(BF16)

void linear_avx512(float *y, int ldy, const float *x, int ldx, const void *px, int m,
                   const struct kern_matrix *w, int n0, int n1, const void *bias, bool accumulate,
                   void *scratch, struct kern_ahead *ahead)
{
    struct linear_job b = {.y = y,
                           .x = x,
                           .w = w,
                           .bias = bias,
                           .ldy = ldy,
                           .ldx = ldx,
                           .later = ahead,
                           .m = m,
                           .n1 = n1,
                           .accumulate = accumulate};

    (void)px;
    (void)scratch;
    switch (w->dtype) {
    case KERN_F32:
        linear_tiles(&b, &tiles_F32, n0);
        break;
    case KERN_F16:
        linear_tiles(&b, &tiles_F16, n0);
        break;
    case KERN_BF16:
        linear_tiles(&b, &tiles_BF16, n0);
        break;
    }
}
