/* linear(), numerics bf16-1: the BF16 dot instruction, whose scalar model is linear_bf16_ref.c.
 *
 * The tile of the exact kernel with 32 elements a step and nothing to widen. F16 and F32 weights,
 * and calls without prepared rows, run the exact kernels. */
#include <immintrin.h>

#include "kernels/lanes.h"
#include "kernels/linear_job.h"
#include "kernels/variants.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    TILE_STEP = 2 * LANES,
    SHORT_ROWS = 2, /* that pay for transposing W */
};

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

/* The first of n elements, those of a step; zeros past the end. */
INLINE __m512 tile_weights(enum kern_dtype dtype, const char *w, int n)
{
    (void)dtype;
    return _mm512_castsi512_ps(n >= TILE_STEP ? _mm512_loadu_si512(w)
                                              : _mm512_maskz_loadu_epi16((1u << n) - 1, w));
}

/* Prepared rows are padded with zeros. */
INLINE __m512 tile_activations(const char *x, int at, int end)
{
    (void)end;
    return _mm512_loadu_ps(x + (size_t)at * sizeof(uint16_t));
}

INLINE __m512 tile_multiply(__m512 acc, __m512 x, __m512 w)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(x),
                            (__m512bh)_mm512_castps_si512(w));
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
    else if (w->k <= TILE_STEP && m >= SHORT_ROWS)
        linear_short_bf16(&b, n0);
    else
        linear_tiles(&b, &tiles_BF16, n0);
}
