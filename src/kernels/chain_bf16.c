/* The chain of kernels/backward.h under numerics bf16-1, with the BF16 dot instruction.
 *
 * Tiles of 6 rows times 64 columns, as the exact chain. Both factors are copied, rounded, as 32-bit
 * words that hold a pair of steps: B into panels of 64 columns, A as it is read afterwards, rows
 * with their pairs side by side (dX) or pairs with their rows side by side (dW). */
#include <immintrin.h>

#include "kernels/backward_variants.h"
#include "kernels/lanes.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    ROWS = 6,
    COLS = 4, /* 24 of 32 registers */
    PANEL = COLS * LANES,
    PAIRS = 128,
    BLOCK_ROWS = 264,
    A_WORDS = (BLOCK_ROWS + LANES) * PAIRS,
    AHEAD = 16, /* rows of B asked for ahead of their use */
    LINE = 64,
};

/* What the tiles read. */
struct packed {
    uint32_t *a, *b;
    ptrdiff_t a_row, a_step; /* words */
    int pairs;
};

INLINE __mmask16 first(int n)
{
    return (__mmask16)(n >= LANES ? 0xffff : n <= 0 ? 0 : (1u << n) - 1);
}

/* ---- tiles ---- */

INLINE void chain_tile(int R, float *c, ptrdiff_t ldc, const struct packed *k, const uint32_t *a,
                       int n)
{
    __m512 acc[ROWS][COLS];
    const uint32_t *b = k->b;
    ptrdiff_t a_row = k->a_row, a_step = k->a_step;

#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < COLS; i++)
            acc[r][i] =
                _mm512_maskz_loadu_ps(first(n - i * LANES), c + r * ldc + (ptrdiff_t)i * LANES);
    for (int t = 0; t < k->pairs; t++, a += a_step, b += PANEL) {
        __m512i vb[COLS];

#pragma GCC unroll 4
        for (int i = 0; i < COLS; i++)
            vb[i] = _mm512_loadu_si512(b + (ptrdiff_t)i * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            __m512i va = _mm512_set1_epi32((int)a[r * a_row]);

#pragma GCC unroll 4
            for (int i = 0; i < COLS; i++)
                acc[r][i] = _mm512_dpbf16_ps(acc[r][i], (__m512bh)va, (__m512bh)vb[i]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < COLS; i++)
            _mm512_mask_storeu_ps(c + r * ldc + (ptrdiff_t)i * LANES, first(n - i * LANES),
                                  acc[r][i]);
}

#define CHAIN_TILE(R)                                                                              \
    static void chain_tile_##R(float *c, ptrdiff_t ldc, const struct packed *k, const uint32_t *a, \
                               int n)                                                              \
    {                                                                                              \
        chain_tile(R, c, ldc, k, a, n);                                                            \
    }

CHAIN_TILE(1)
CHAIN_TILE(2)
CHAIN_TILE(3)
CHAIN_TILE(4)
CHAIN_TILE(5)
CHAIN_TILE(6)

typedef void chain_tile_fn(float *c, ptrdiff_t ldc, const struct packed *k, const uint32_t *a,
                           int n);

static chain_tile_fn *const chain_tiles[ROWS] = {
    chain_tile_1, chain_tile_2, chain_tile_3, chain_tile_4, chain_tile_5, chain_tile_6,
};

/* ---- rounding and pairing ---- */

/* n of 16 values of a row as words whose upper half is zero. */
INLINE __m512i round_row(const void *row, enum kern_dtype dtype, int n)
{
    __m256i h;

    if (dtype == KERN_BF16)
        h = n >= LANES ? _mm256_loadu_si256(row) : _mm256_maskz_loadu_epi16(first(n), row);
    else
        h = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(first(n), row));
    return _mm512_cvtepu16_epi32(h);
}

INLINE __m512i pair_rows(const char *even, const char *odd, enum kern_dtype dtype, int n)
{
    __m512i v = round_row(even, dtype, n);

    if (odd)
        v = _mm512_or_si512(v, _mm512_slli_epi32(round_row(odd, dtype, n), 16));
    return v;
}

INLINE void fetch_row(const char *row, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE)
        _mm_prefetch(row + i, _MM_HINT_T1);
}

/* Columns [j, j + PANEL) of the pairs. */
INLINE void pack_b_of(uint32_t *to, const struct chain *p, enum kern_dtype dtype,
                      const struct chain_pair *pairs, int n_pairs, int j)
{
    size_t size = kern_dtype_bytes(dtype);
    ptrdiff_t stride = p->ldb * (ptrdiff_t)size;
    const char *b = (const char *)p->b + (size_t)j * size;
    int n = p->n - j < PANEL ? p->n - j : PANEL;

    for (int v = 0; v < n_pairs; v++, to += PANEL) {
        const char *even = b + pairs[v].t * stride;
        const char *odd = pairs[v].two ? even + stride : NULL;

        if (pairs[v].t + AHEAD + 1 < p->steps) {
            fetch_row(even + AHEAD * stride, (size_t)n * size);
            fetch_row(even + (AHEAD + 1) * stride, (size_t)n * size);
        }
        for (int i = 0; i < PANEL; i += LANES)
            _mm512_storeu_si512(to + i,
                                i < n ? pair_rows(even + (size_t)i * size,
                                                  odd ? odd + (size_t)i * size : NULL, dtype, n - i)
                                      : _mm512_setzero_si512());
    }
}

static void pack_b(uint32_t *to, const struct chain *p, const struct chain_pair *pairs, int n_pairs,
                   int j)
{
    if (p->b_dtype == KERN_BF16)
        pack_b_of(to, p, KERN_BF16, pairs, n_pairs, j);
    else
        pack_b_of(to, p, KERN_F32, pairs, n_pairs, j);
}

/* Steps side by side: a row of pairs is a row of A, rounded. */
static void pack_rows(uint32_t *to, const struct chain *p, int i0, int rows, int t0, int steps)
{
    for (int r = 0; r < rows; r++, to += PAIRS) {
        const float *a = p->a + (i0 + r) * p->a_row + t0;

        for (int t = 0; t < steps; t += LANES)
            _mm256_storeu_si256(
                (__m256i *)(to + t / 2),
                (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(first(steps - t), a + t)));
    }
}

/* Rows side by side: a pair of steps is two rows of memory. */
static void pack_columns(uint32_t *to, const struct chain *p, int i0, int rows,
                         const struct chain_pair *pairs, int n_pairs)
{
    for (int v = 0; v < n_pairs; v++, to += BLOCK_ROWS + LANES) {
        const char *even = (const char *)(p->a + i0 + pairs[v].t * p->a_step);
        const char *odd = pairs[v].two ? even + p->a_step * (ptrdiff_t)sizeof(float) : NULL;

        for (int i = 0; i < rows; i += LANES)
            _mm512_storeu_si512(to + i, pair_rows(even + (size_t)i * sizeof(float),
                                                  odd ? odd + (size_t)i * sizeof(float) : NULL,
                                                  KERN_F32, rows - i));
    }
}

/* ---- blocks ---- */

static void chain_panel(const struct chain *p, const struct packed *k, int i0, int rows, int j)
{
    int cols = p->n - j < PANEL ? p->n - j : PANEL;

    for (int i = 0; i < rows; i += ROWS) {
        int R = rows - i < ROWS ? rows - i : ROWS;
        float *c = p->c + (i0 + i) * p->ldc + j;

        chain_fetch_c(c + R * p->ldc, p->ldc, rows - i - R, cols);
        chain_tiles[R - 1](c, p->ldc, k, k->a + i * k->a_row, cols);
    }
}

static void chain_block(const struct chain *p, struct packed *k, const struct chain_pair *pairs)
{
    int last = k->pairs - 1, steps = pairs[last].t + 1 + pairs[last].two - pairs[0].t;

    for (int i = 0; i < p->m; i += BLOCK_ROWS) {
        int rows = p->m - i < BLOCK_ROWS ? p->m - i : BLOCK_ROWS;

        if (p->a_step == 1)
            pack_rows(k->a, p, i, rows, pairs[0].t, steps);
        else
            pack_columns(k->a, p, i, rows, pairs, k->pairs);
        for (int j = 0; j < p->n; j += PANEL) {
            pack_b(k->b, p, pairs, k->pairs, j);
            chain_panel(p, k, i, rows, j);
        }
    }
}

/* A whose rows lie as steps side by side has one segment alone (backward.h: dX). */
void chain_bf16(const struct chain *p, void *scratch)
{
    struct packed k = {.a = scratch, .b = (uint32_t *)scratch + A_WORDS};
    struct chain_pair pairs[PAIRS];
    int t = 0, segment = 0;

    _Static_assert((A_WORDS + PANEL * PAIRS) * sizeof(uint32_t) <= CHAIN_SCRATCH, "scratch");
    k.a_row = p->a_step == 1 ? PAIRS : 1;
    k.a_step = p->a_step == 1 ? 1 : BLOCK_ROWS + LANES;
    while ((k.pairs = chain_next_pairs(p, &t, &segment, pairs, PAIRS)) > 0)
        chain_block(p, &k, pairs);
}
