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

/* The first of n elements, those of a step; zeros past the end. */
INLINE __m512 tile_weights(enum kern_dtype dtype, const char *w, int n)
{
    __mmask16 mask = (__mmask16)(n >= TILE_STEP ? 0xffff : (1u << n) - 1);

    if (dtype == KERN_F32)
        return n >= TILE_STEP ? _mm512_loadu_ps(w) : _mm512_maskz_loadu_ps(mask, w);
    return widen16(n >= TILE_STEP ? _mm256_loadu_si256((const void *)w)
                                  : _mm256_maskz_loadu_epi16(mask, w),
                   dtype);
}

/* Elements of a row of x from `at` on, those of a step; `end` is where the row ends. */
INLINE __m512 tile_activations(const char *x, int at, int end)
{
    const char *from = x + (size_t)at * sizeof(float);

    if (end - at >= TILE_STEP)
        return _mm512_loadu_ps(from);
    return _mm512_maskz_loadu_ps((__mmask16)((1u << (end - at)) - 1), from);
}

INLINE __m512 tile_multiply(__m512 acc, __m512 x, __m512 w)
{
    return _mm512_fmadd_ps(x, w, acc);
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
