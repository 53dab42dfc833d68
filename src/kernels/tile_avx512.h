/* kernels/tile_avx512.h - linear() in 512-bit registers: tiles of R rows of x times 4 rows of W.
 *
 * Shared by the exact and the BF16 kernel. The including file, compiled with AVX-512 F, BW, DQ and
 * VL, defines beforehand TILE_STEP                    elements of k that one step takes tile_x(b,
 * row)               where row `row` of the activations begins tile_x_stride(b)             bytes
 * from row to row tile_step(R, dtype, acc, x, ldx, w, k, n) adds elements [k, k + min(n,
 * TILE_STEP)) of R rows of x times four rows of W to the lanes
 *
 * W is read as it lies in memory. One row (decode) reads four streams a quarter of the range apart:
 * the CPU's own prefetcher follows them. More rows read neighbouring rows of W, prefetched a few
 * tiles ahead, once from memory and then from the first cache; rows of x are taken in blocks that
 * stay in the second cache. A tile always runs over the whole of k, so no sum is ever cut. */
#ifndef KERNELS_TILE_AVX512_H
#define KERNELS_TILE_AVX512_H

#include <immintrin.h>

#include "kernels/lanes.h"
#include "kernels/linear_job.h"

enum {
    TILE_ROWS = 6,        /* 6 x 4 accumulators, 4 weights and 1 activation fill the 32 registers */
    TILE_OUT = 4,         /* four outputs at once make the horizontal sum cheap */
    PREFETCH = 16 * 1024, /* bytes of W asked for ahead of their use */
    X_BLOCK = 256 * 1024, /* bytes of x that stay in the second cache */
    FEW_ROWS = 24,        /* up to here a tile's outputs go through all rows before the next ones */
    GROUPS = 4, /* beyond, 6 rows of x meet this many tiles of outputs in the first cache */
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

/* The prefetch goes to the second cache: it holds more requests in flight than the first. */
INLINE void prefetch_lines(const char *const w[TILE_OUT], size_t at)
{
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++)
        _mm_prefetch(w[i] + at, _MM_HINT_T1);
}

/* `ahead` bytes from here lie the rows of a later tile; 0: they were asked for, and lines that
 * others read later have their turn. */
INLINE void run_tile(const struct linear_job *b, int R, enum kern_dtype dtype, int row,
                     struct outputs o, size_t ahead)
{
    size_t size = kern_dtype_bytes(dtype);
    size_t ldx = tile_x_stride(b);
    const char *x = tile_x(b, row);
    int line = LINE / (int)size;
    int left = b->w->k;
    const char *w[TILE_OUT];
    __m512 acc[TILE_ROWS][TILE_OUT];
    const char *later = NULL;
    int k = 0, n_later = 0;

    for (int i = 0; i < TILE_OUT; i++)
        w[i] = weight_row(b, o.j + i * o.stride, size);
    clear_tile(R, acc);
    if (!ahead && b->later)
        later = later_lines(b->later, left / line, &n_later);
    for (; left >= line; left -= line) {
        if (ahead)
            prefetch_lines(w, (size_t)k * size + ahead);
        else if (n_later-- > 0)
            _mm_prefetch(later + (ptrdiff_t)n_later * LINE, _MM_HINT_T1);
        for (int end = k + line; k < end; k += TILE_STEP)
            tile_step(R, dtype, acc, x, ldx, w, k, TILE_STEP);
    }
    for (; left > 0; left -= TILE_STEP, k += TILE_STEP)
        tile_step(R, dtype, acc, x, ldx, w, k, left);
    put_tile(b, R, row, o, acc);
}

#define RUN_TILE(R)                                                                               \
    static void run_tile_##R(const struct linear_job *b, int row, struct outputs o, size_t ahead) \
    {                                                                                             \
        if (tile_takes(KERN_F32) && b->w->dtype == KERN_F32)                                      \
            run_tile(b, R, KERN_F32, row, o, ahead);                                              \
        else if (tile_takes(KERN_F16) && b->w->dtype == KERN_F16)                                 \
            run_tile(b, R, KERN_F16, row, o, ahead);                                              \
        else                                                                                      \
            run_tile(b, R, KERN_BF16, row, o, ahead);                                             \
    }

RUN_TILE(1)
RUN_TILE(2)
RUN_TILE(3)
RUN_TILE(4)
RUN_TILE(5)
RUN_TILE(6)

typedef void run_tile_fn(const struct linear_job *b, int row, struct outputs o, size_t ahead);

static run_tile_fn *const run_tiles[TILE_ROWS] = {
    run_tile_1, run_tile_2, run_tile_3, run_tile_4, run_tile_5, run_tile_6,
};

/* One row of x. */
static void linear_row(const struct linear_job *b, int n0)
{
    int quarter = (b->n1 - n0 + TILE_OUT - 1) / TILE_OUT;

    for (int j = n0; j < n0 + quarter; j++)
        run_tile_1(b, 0, (struct outputs){j, quarter}, 0);
}

/* How many rows of x stay in the second cache beside the weights. */
static int rows_in_cache(const struct linear_job *b)
{
    size_t rows = X_BLOCK / (tile_x_stride(b) + 1) / TILE_ROWS * TILE_ROWS;

    return rows < 4 * TILE_ROWS ? 4 * TILE_ROWS : rows > INT16_MAX ? INT16_MAX : (int)rows;
}

/* Rows [row0, row1) of x times `groups` tiles of outputs from j on. */
static void linear_block(const struct linear_job *b, int row0, int row1, int j, int groups,
                         size_t ahead)
{
    for (int row = row0, R; row < row1; row += R) {
        R = tile_rows(row1 - row, TILE_ROWS);
        for (int g = 0; g < groups && j + g * TILE_OUT < b->n1; g++)
            run_tiles[R - 1](b, row, (struct outputs){j + g * TILE_OUT, 1},
                             row == row0 ? ahead : 0);
    }
}

static void linear_rows(const struct linear_job *b, int n0)
{
    size_t row_bytes = (size_t)b->w->k * kern_dtype_bytes(b->w->dtype);
    int groups = b->m <= FEW_ROWS ? 1 : GROUPS;
    size_t ahead = prefetch_distance(row_bytes, TILE_OUT * groups, PREFETCH);
    int block = rows_in_cache(b);

    for (int row = 0; row < b->m; row += block) {
        const void *after = b->m - row > block ? weight_row(b, n0, kern_dtype_bytes(b->w->dtype))
                            : b->later         ? b->later->after
                                               : NULL;

        for (int j = n0; j < b->n1; j += groups * TILE_OUT)
            linear_block(b, row, b->m - row < block ? b->m : row + block, j, groups,
                         prefetch_from(b, j, row_bytes, ahead, after));
    }
}

static void linear_any(const struct linear_job *b, int n0)
{
    if (b->m == 1)
        linear_row(b, n0);
    else
        linear_rows(b, n0);
}
#endif
