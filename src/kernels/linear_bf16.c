/* linear(), numerics bf16-1: the BF16 dot instruction, whose scalar model is linear_bf16_ref.c.
 *
 * The tile of the exact kernel with 32 elements a step and nothing to widen. F16 and F32 weights,
 * and calls without prepared rows, run the exact kernels. */
#include <immintrin.h>

#include "kernels/lanes.h"
#include "kernels/linear_job.h"
#include "kernels/variants.h"

#define INLINE static inline __attribute__((always_inline))

enum { TILE_STEP = 2 * LANES };

INLINE size_t row_elements(int k)
{
    return ((size_t)k + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
}

INLINE const char *tile_x(const struct linear_job *b, int row)
{
    return (const char *)b->px + (size_t)row * row_elements(b->w->k) * sizeof(uint16_t);
}

INLINE size_t tile_x_stride(const struct linear_job *b)
{
    return row_elements(b->w->k) * sizeof(uint16_t);
}

/* Prepared rows are padded with zeros, so only W needs a mask. */
INLINE void tile_step(int R, enum kern_dtype dtype, __m512 acc[][4], const char *x, size_t ldx,
                      const char *const w[4], int k, int n)
{
    size_t at = (size_t)k * sizeof(uint16_t);
    __mmask32 mask = n >= TILE_STEP ? 0xffffffff : (1u << n) - 1;
    __m512i v[4];

    (void)dtype;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = n >= TILE_STEP ? _mm512_loadu_si512(w[i] + at)
                              : _mm512_maskz_loadu_epi16(mask, w[i] + at);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        __m512bh xr = (__m512bh)_mm512_loadu_si512(x + (size_t)r * ldx + at);

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            acc[r][i] = _mm512_dpbf16_ps(acc[r][i], xr, (__m512bh)v[i]);
    }
}

#include "kernels/tile_avx512.h"

TILES_OF(BF16)

/* The conversion instruction rounds to nearest even and writes denormals as zero. */
void linear_x_bf16(void *px, const float *x, int ldx, int m0, int m1, int k)
{
    for (int r = m0; r < m1; r++) {
        uint16_t *to = (uint16_t *)px + (size_t)r * row_elements(k);
        const float *from = x + (ptrdiff_t)r * ldx;

        for (int i = 0; i < k; i += LANES) {
            __mmask16 mask = (__mmask16)(k - i >= LANES ? 0xffff : (1u << (k - i)) - 1);
            __m512 v = _mm512_maskz_loadu_ps(mask, from + i);

            _mm256_storeu_si256((__m256i *)(to + i), (__m256i)_mm512_cvtneps_pbh(v));
        }
        if (k % TILE_STEP && k % TILE_STEP <= LANES)
            _mm256_storeu_si256((__m256i *)(to + row_elements(k) - LANES), _mm256_setzero_si256());
    }
}

void linear_bf16(float *y, int ldy, const float *x, int ldx, const void *px, int m,
                 const struct kern_matrix *w, int n0, int n1, const void *bias, bool accumulate,
                 void *scratch, struct kern_ahead *ahead)
{
    struct linear_job b = {.y = y,
                           .px = px,
                           .w = w,
                           .bias = bias,
                           .ldy = ldy,
                           .later = ahead,
                           .m = m,
                           .n1 = n1,
                           .accumulate = accumulate};

    if (!px || w->dtype != KERN_BF16)
        linear_avx512(y, ldy, x, ldx, px, m, w, n0, n1, bias, accumulate, scratch, ahead);
    else
        linear_tiles(&b, &tiles_BF16, n0);
}
