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
    PAIRS = 192,
    BLOCK_ROWS = 516,
    A_WORDS = (BLOCK_ROWS + LANES) * PAIRS,
    A_STRIDE = BLOCK_ROWS + LANES,
    AHEAD = 16,  /* rows of B asked for ahead of their use */
    AHEAD_A = 4, /* rows or pairs of A */
    LINE = 64,
};

/* What the tiles read. */
struct packed {
    uint32_t *a, *b;
    ptrdiff_t a_row, a_step; /* words */
    int pairs;
    bool clear; /* C starts from zero with these pairs */
};

INLINE __mmask16 first(int n)
{
    return (__mmask16)(n >= LANES ? 0xffff : n <= 0 ? 0 : (1u << n) - 1);
}

/* ---- tiles ---- */

/* C: registers of columns that hold any, so that narrow results (adapters) do no idle work. */
INLINE void chain_tile(int R, int C, float *c, ptrdiff_t ldc, const struct packed *k,
                       const uint32_t *a, int n)
{
    __m512 acc[ROWS][COLS];
    const uint32_t *b = k->b;
    ptrdiff_t a_row = k->a_row, a_step = k->a_step;

#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++)
            acc[r][i] = k->clear ? _mm512_setzero_ps()
                                 : _mm512_maskz_loadu_ps(first(n - i * LANES),
                                                         c + r * ldc + (ptrdiff_t)i * LANES);
    for (int t = 0; t < k->pairs; t++, a += a_step, b += PANEL) {
        __m512i vb[COLS];

#pragma GCC unroll 4
        for (int i = 0; i < C; i++)
            vb[i] = _mm512_loadu_si512(b + (ptrdiff_t)i * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            __m512i va = _mm512_set1_epi32((int)a[r * a_row]);

#pragma GCC unroll 4
            for (int i = 0; i < C; i++)
                acc[r][i] = _mm512_dpbf16_ps(acc[r][i], (__m512bh)va, (__m512bh)vb[i]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++)
            _mm512_mask_storeu_ps(c + r * ldc + (ptrdiff_t)i * LANES, first(n - i * LANES),
                                  acc[r][i]);
}

#define CHAIN_TILE(R)                                                                              \
    static void chain_tile_##R(float *c, ptrdiff_t ldc, const struct packed *k, const uint32_t *a, \
                               int n)                                                              \
    {                                                                                              \
        if (n > 2 * LANES)                                                                         \
            chain_tile(R, COLS, c, ldc, k, a, n);                                                  \
        else if (n > LANES)                                                                        \
            chain_tile(R, 2, c, ldc, k, a, n);                                                     \
        else                                                                                       \
            chain_tile(R, 1, c, ldc, k, a, n);                                                     \
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

/* The word of each column: its two steps, which are the halves of v. */
INLINE __m512i interleave(__m512i v)
{
    const __m512i half = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

    return _mm512_permutexvar_epi16(
        _mm512_or_si512(half, _mm512_slli_epi32(_mm512_add_epi32(half, _mm512_set1_epi32(16)), 16)),
        v);
}

/* 16 columns of a pair, those of `mask`, rounded; odd: its second step, or NULL. */
INLINE __m512i pair_f32(const float *even, const float *odd, __mmask16 mask)
{
    __m512 second = odd ? _mm512_maskz_loadu_ps(mask, odd) : _mm512_setzero_ps();

    return interleave((__m512i)_mm512_cvtne2ps_pbh(second, _mm512_maskz_loadu_ps(mask, even)));
}

INLINE __m512i pair_bf16(const uint16_t *even, const uint16_t *odd, __mmask16 mask)
{
    __m512i v = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, even));

    return interleave(_mm512_inserti64x4(
        v, odd ? _mm256_maskz_loadu_epi16(mask, odd) : _mm256_setzero_si256(), 1));
}

INLINE void fetch_row(const void *row, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE)
        _mm_prefetch((const char *)row + i, _MM_HINT_T1);
}

/* A pair of n columns. */
INLINE void put_pair(uint32_t *to, const char *even, const char *odd, enum kern_dtype dtype, int n)
{
#pragma GCC unroll 4
    for (int i = 0; i < PANEL; i += LANES) {
        if (i >= n)
            break;
        size_t at = (size_t)i * kern_dtype_bytes(dtype);
        const char *second = odd ? odd + at : NULL;
        __mmask16 mask = first(n - i);

        _mm512_storeu_si512(to + i,
                            dtype == KERN_BF16
                                ? pair_bf16((const void *)(even + at), (const void *)second, mask)
                                : pair_f32((const void *)(even + at), (const void *)second, mask));
    }
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

        if (pairs[v].t + AHEAD + 1 < p->steps) {
            fetch_row(even + AHEAD * stride, (size_t)n * size);
            fetch_row(even + (AHEAD + 1) * stride, (size_t)n * size);
        }
        if (n == PANEL && pairs[v].two)
            put_pair(to, even, even + stride, dtype, PANEL);
        else
            put_pair(to, even, pairs[v].two ? even + stride : NULL, dtype, n);
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

        if (r + AHEAD_A < rows)
            fetch_row(a + AHEAD_A * p->a_row, (size_t)steps * sizeof *a);
        for (int t = 0; t < steps; t += 2 * LANES) {
            __m512 low = _mm512_maskz_loadu_ps(first(steps - t), a + t);
            __m512 high = _mm512_maskz_loadu_ps(first(steps - t - LANES), a + t + LANES);

            _mm512_storeu_si512(to + t / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

/* Rows side by side: a pair of steps is two rows of memory. */
static void pack_columns(uint32_t *to, const struct chain *p, int i0, int rows,
                         const struct chain_pair *pairs, int n_pairs)
{
    for (int v = 0; v < n_pairs; v++, to += A_STRIDE) {
        const float *even = p->a + i0 + pairs[v].t * p->a_step;
        const float *odd = pairs[v].two ? even + p->a_step : NULL;

        if (v + AHEAD_A < n_pairs) {
            const float *later = even + (ptrdiff_t)AHEAD_A * 2 * p->a_step;

            fetch_row(later, (size_t)rows * sizeof *even);
            fetch_row(later + p->a_step, (size_t)rows * sizeof *even);
        }
        for (int i = 0; i < rows; i += LANES)
            _mm512_storeu_si512(to + i, pair_f32(even + i, odd ? odd + i : NULL, first(rows - i)));
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
    struct chain_pair pairs[PAIRS] = {{0}};
    int t = 0, segment = 0;

    _Static_assert((A_WORDS + PANEL * PAIRS) * sizeof(uint32_t) <= CHAIN_SCRATCH, "scratch");
    k.a_row = p->a_step == 1 ? PAIRS : 1;
    k.a_step = p->a_step == 1 ? 1 : A_STRIDE;
    for (k.clear = p->clear; (k.pairs = chain_next_pairs(p, &t, &segment, pairs, PAIRS)) > 0;
         k.clear = false)
        chain_block(p, &k, pairs);
}
