/* kernels/tile_avx512.h - linear() in 512-bit registers: tiles of R rows of x times 4 rows of W.
 *
 * Shared by the exact and the BF16 kernel. The including file, compiled with AVX-512 F, BW, DQ and
 * VL, defines beforehand
 *
 * - TILE_STEP: elements of k that one step takes;
 * - tile_x(b, row): where row `row` of the activations begins; tile_x_stride(b): bytes from row to
 *   row;
 * - tile_weights(dtype, w, n), tile_activations(x, at, end): a step's elements of a row of W and of
 *   x;
 * - tile_multiply(acc, x, w): adds their products to the lanes.
 *
 * W is read as it lies in memory. One row or two (decode) read four streams a quarter of the range
 * apart: the CPU's own prefetcher follows them, and no sooner than that is arithmetic in their way.
 * More rows read neighbouring rows of W, prefetched a few tiles ahead, once from memory and then
 * from the first cache; rows of x are taken in blocks that stay in the second cache. A tile always
 * runs over the whole of k, so no sum is ever cut. */
#ifndef KERNELS_TILE_AVX512_H
#define KERNELS_TILE_AVX512_H

#include <immintrin.h>

#include "kernels/lanes.h"
#include "kernels/linear_job.h"

enum {
    APART_ROWS = 2,       /* so few rows of x read W in four streams */
    TILE_ROWS = 6,        /* 6 x 4 accumulators, 4 weights and 1 activation fill the 32 registers */
    TILE_OUT = 4,         /* four outputs at once make the horizontal sum cheap */
    PREFETCH = 16 * 1024, /* bytes of W asked for ahead of their use */
    X_BLOCK = 256 * 1024, /* bytes of x that stay in the second cache */
    GROUPS = 4,           /* tiles of outputs that 6 rows of x meet in the first cache */
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

/* Elements of k, of which n are left, of R rows of x times four rows of W. */
INLINE void tile_step(int R, enum kern_dtype dtype, __m512 acc[][TILE_OUT], const char *x,
                      size_t ldx, const char *const w[TILE_OUT], int k, int n)
{
    __m512 v[TILE_OUT];

#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++)
        v[i] = tile_weights(dtype, w[i] + (size_t)k * kern_dtype_bytes(dtype), n);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++, x += ldx) {
        __m512 xr = tile_activations(x, k, k + n);

#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++)
            acc[r][i] = tile_multiply(acc[r][i], xr, v[i]);
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

/* What a tile asks for while it multiplies, into the second cache: it holds more requests in flight
 * than the first. `lines` for each line of its own rows; `later` ones of somebody else, one each.
 */
struct fetch {
    const char *at, *later;
    int lines, n_later;
};

INLINE void fetch_lines(struct fetch *f)
{
    for (int i = 0; i < f->lines; i++, f->at += LINE)
        _mm_prefetch(f->at, _MM_HINT_T1);
    if (--f->n_later >= 0)
        _mm_prefetch(f->later + (ptrdiff_t)f->n_later * LINE, _MM_HINT_T1);
}

INLINE void multiply_tile(int R, enum kern_dtype dtype, __m512 acc[TILE_ROWS][TILE_OUT],
                          const char *x, size_t ldx, const char *const w[TILE_OUT], int left,
                          struct fetch *f)
{
    int line = LINE / (int)kern_dtype_bytes(dtype), k = 0;

    clear_tile(R, acc);
    for (; left >= line; left -= line) {
        fetch_lines(f);
        for (int end = k + line; k < end; k += TILE_STEP)
            tile_step(R, dtype, acc, x, ldx, w, k, TILE_STEP);
    }
    for (; left > 0; left -= TILE_STEP, k += TILE_STEP)
        tile_step(R, dtype, acc, x, ldx, w, k, left);
}

/* Rows [row, row + R) times the outputs of GROUPS tiles from j on. One function for each R and
 * dtype: what differs from tile to tile has to fit into registers, or its turn costs as much as a
 * tenth of the products. */
INLINE void run_tiles(const struct linear_job *b, int R, enum kern_dtype dtype, int row, int j,
                      struct fetch f)
{
    size_t row_bytes = (size_t)b->w->k * kern_dtype_bytes(dtype), ldx = tile_x_stride(b);
    const char *x = tile_x(b, row), *first = weight_row(b, j, kern_dtype_bytes(dtype));
    __m512 acc[TILE_ROWS][TILE_OUT];

    for (int n = 0; n < GROUPS && j < b->n1; n++, j += TILE_OUT, first += TILE_OUT * row_bytes) {
        int last = b->n1 - 1 - j;
        const char *const w[TILE_OUT] = {
            first,
            first + (size_t)(last < 1 ? last : 1) * row_bytes,
            first + (size_t)(last < 2 ? last : 2) * row_bytes,
            first + (size_t)(last < 3 ? last : 3) * row_bytes,
        };

        multiply_tile(R, dtype, acc, x, ldx, w, b->w->k, &f);
        put_tile(b, R, row, (struct outputs){j, 1}, acc);
    }
}

/* R rows of x times outputs [j, end) and those one, two and three strides on. */
INLINE void run_apart(const struct linear_job *b, int R, enum kern_dtype dtype, int j, int end,
                      int stride)
{
    size_t ldx = tile_x_stride(b);
    struct fetch none = {0};
    __m512 acc[TILE_ROWS][TILE_OUT];

    for (; j < end; j++) {
        const char *w[TILE_OUT];

        for (int i = 0; i < TILE_OUT; i++)
            w[i] = weight_row(b, j + i * stride, kern_dtype_bytes(dtype));
        multiply_tile(R, dtype, acc, tile_x(b, 0), ldx, w, b->w->k, &none);
        put_tile(b, R, 0, (struct outputs){j, stride}, acc);
    }
}

/* The functions for one dtype of W. */
struct tiles {
    void (*apart[APART_ROWS])(const struct linear_job *b, int j, int end, int stride);
    void (*rows[TILE_ROWS])(const struct linear_job *b, int row, int j, struct fetch f);
};

#define RUN_TILES(R, dtype)                                                         \
    static void run_tiles_##dtype##_##R(const struct linear_job *b, int row, int j, \
                                        struct fetch f)                             \
    {                                                                               \
        run_tiles(b, R, KERN_##dtype, row, j, f);                                   \
    }

#define RUN_APART(R, dtype)                                                                     \
    static void run_apart_##dtype##_##R(const struct linear_job *b, int j, int end, int stride) \
    {                                                                                           \
        run_apart(b, R, KERN_##dtype, j, end, stride);                                          \
    }

#define TILES_OF(dtype)                                                        \
    RUN_APART(1, dtype)                                                        \
    RUN_APART(2, dtype)                                                        \
    RUN_TILES(1, dtype)                                                        \
    RUN_TILES(2, dtype)                                                        \
    RUN_TILES(3, dtype)                                                        \
    RUN_TILES(4, dtype)                                                        \
    RUN_TILES(5, dtype)                                                        \
    RUN_TILES(6, dtype)                                                        \
    static const struct tiles tiles_##dtype = {                                \
        {run_apart_##dtype##_1, run_apart_##dtype##_2},                        \
        {run_tiles_##dtype##_1, run_tiles_##dtype##_2, run_tiles_##dtype##_3,  \
         run_tiles_##dtype##_4, run_tiles_##dtype##_5, run_tiles_##dtype##_6}, \
    };

/* How many rows of x stay in the second cache beside the weights. */
static int rows_in_cache(const struct linear_job *b)
{
    size_t rows = X_BLOCK / (tile_x_stride(b) + 1) / TILE_ROWS * TILE_ROWS;

    return rows < 4 * TILE_ROWS ? 4 * TILE_ROWS : rows > INT16_MAX ? INT16_MAX : (int)rows;
}

/* How a block of rows of x is cut into tiles, and what each of them asks for. */
struct cut {
    int n, rows, larger; /* tiles of so many rows; the first `larger` have one more */
    int steps;           /* lines of a row of W, for all groups */
    int lines;           /* of its own block that a tile asks for at each of them */
};

static struct cut cut_rows(const struct linear_job *b, int rows)
{
    struct cut c = {.n = (rows + TILE_ROWS - 1) / TILE_ROWS};

    c.rows = rows / c.n;
    c.larger = rows % c.n;
    c.steps = b->w->k * (int)kern_dtype_bytes(b->w->dtype) / LINE * GROUPS;
    c.lines = (TILE_OUT + c.n - 1) / c.n;
    return c;
}

/* Every tile of a block asks for a part of what `ahead` bytes on follows the block's rows of W: one
 * that asked for all of it would outrun memory, and the others would leave it idle. */
static struct fetch fetch_of(const struct linear_job *b, const struct cut *c, int tile, int j,
                             size_t ahead)
{
    struct fetch f = {0};

    if (tile * c->lines < TILE_OUT) {
        f.lines = c->lines;
        f.at = weight_row(b, j, kern_dtype_bytes(b->w->dtype)) + ahead +
               (size_t)(tile * c->lines) * (size_t)c->steps * LINE;
    }
    if (tile > 0 && b->later)
        f.later = later_lines(b->later, c->steps, &f.n_later);
    return f;
}

/* The rows of a cut from `row` on times GROUPS tiles of outputs from j on. */
static void linear_block(const struct linear_job *b, const struct tiles *t, const struct cut *c,
                         int row, int j, size_t ahead)
{
    for (int i = 0, R; i < c->n; i++, row += R) {
        R = i < c->larger ? c->rows + 1 : c->rows;
        t->rows[R - 1](b, row, j, fetch_of(b, c, i, j, ahead));
    }
}

static void linear_rows(const struct linear_job *b, const struct tiles *t, int n0)
{
    size_t row_bytes = (size_t)b->w->k * kern_dtype_bytes(b->w->dtype);
    size_t ahead = prefetch_distance(row_bytes, TILE_OUT * GROUPS, PREFETCH);
    int block = rows_in_cache(b);

    for (int row = 0; row < b->m; row += block) {
        struct cut c = cut_rows(b, b->m - row < block ? b->m - row : block);
        const void *after = b->m - row > block ? weight_row(b, n0, kern_dtype_bytes(b->w->dtype))
                            : b->later         ? b->later->after
                                               : NULL;

        for (int j = n0; j < b->n1; j += GROUPS * TILE_OUT)
            linear_block(b, t, &c, row, j, prefetch_from(b, j, row_bytes, ahead, after));
    }
}

static void linear_tiles(const struct linear_job *b, const struct tiles *t, int n0)
{
    int quarter = (b->n1 - n0 + TILE_OUT - 1) / TILE_OUT;

    if (b->m <= APART_ROWS)
        t->apart[b->m - 1](b, n0, n0 + quarter, quarter);
    else
        linear_rows(b, t, n0);
}
#endif
