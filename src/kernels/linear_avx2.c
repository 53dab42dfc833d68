/* linear(), numerics exact-1, for AVX2, FMA and F16C: the 16 lanes of an output are two registers.
 *
 * Lanes never meet before the end, so a tile walks k twice, once for lanes 0-7 and once for lanes
 * 8-15: 3 rows of x times 4 rows of W are then 12 accumulators, and 3 activations and 1 weight fill
 * the 16 registers. Few rows read W as it lies in memory; many rows a widened panel, k cut into
 * blocks and the lanes carried, as in linear_avx512.c. */
#include <immintrin.h>

#include "kernels/lanes.h"
#include "kernels/linear_job.h"
#include "kernels/variants.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    HALF = 8,             /* lanes of one register */
    TILE_ROWS = 3,        /* see above */
    TILE_OUT = 4,         /* four outputs at once make the horizontal sum cheap */
    DIRECT_ROWS = 12,     /* up to here W is widened in registers, beyond in a panel */
    STRIP = 6,            /* rows of x that stay in the first cache for a whole panel ... */
    SHORT_K = 768,        /* ... when they are not longer than this; else one tile of rows */
    X_BLOCK = 256 * 1024, /* bytes of x that stay in the second cache */
    MIN_ROWS = 96,        /* fewer would not pay for widening a panel */
    PANEL = 16,           /* rows of W in a panel */
    K_BLOCK = 1536,       /* 3 rows of x of this length are 18 KB; a longer k is cut ... */
    K_BLOCK_LONG = 1024,  /* ... into blocks that leave room for the carried lanes */
    ROW_BLOCK = 192,      /* rows of x that share a widened panel when lanes are carried */
    PREFETCH = 16 * 1024, /* bytes of W asked for ahead of their use */
    PANEL_STEP = TILE_OUT * HALF, /* floats of one step of a tile */
    CARRY = LANES * PANEL         /* floats carried per row of x */
};

_Static_assert((PANEL * K_BLOCK + ROW_BLOCK * CARRY) * sizeof(float) <= LINEAR_SCRATCH,
               "panel and carried lanes fit the scratch memory");

typedef __m256 tile_acc[TILE_ROWS][TILE_OUT]; /* one half of the lanes */

/* ---- the canonical tree ---- */

/* b[q] of four outputs for the two groups of four in one half: [q even: 4 outputs | q odd: 4]. */
INLINE __m256 sum_groups(const __m256 a[TILE_OUT])
{
    __m256 s = _mm256_add_ps(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
    __m256 t = _mm256_add_ps(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
    __m256d u = _mm256_castps_pd(s);
    __m256d v = _mm256_castps_pd(t);

    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(u, v)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(u, v)));
}

INLINE __m128 load_bias(const struct linear_job *b, int j, ptrdiff_t stride)
{
    float v[TILE_OUT] = {0};

    for (int i = 0; i < TILE_OUT && j + i * stride < b->n1; i++)
        v[i] = weight_f32(b->bias, b->w->dtype, (size_t)j + (size_t)i * (size_t)stride);
    return _mm_loadu_ps(v);
}

/* Four sums of one row to outputs j, j + stride, ...; those from n1 on do not exist. */
INLINE void put_sums(const struct linear_job *b, int row, int j, ptrdiff_t stride, __m128 v)
{
    float *y = b->y + row * b->ldy + j;
    float sums[TILE_OUT];

    if (b->bias)
        v = _mm_add_ps(v, load_bias(b, j, stride));
    if (stride == 1 && b->n1 - j >= TILE_OUT) {
        _mm_storeu_ps(y, b->accumulate ? _mm_add_ps(_mm_loadu_ps(y), v) : v);
        return;
    }
    _mm_storeu_ps(sums, v);
    for (int i = 0; i < TILE_OUT && j + i * stride < b->n1; i++)
        y[i * stride] = b->accumulate ? y[i * stride] + sums[i] : sums[i];
}

/* lo, hi: sum_groups of lanes 0-7 and 8-15. */
INLINE __m128 join(__m256 lo, __m256 hi)
{
    __m256 c = _mm256_add_ps(lo, hi); /* [b0 + b2 | b1 + b3] */

    return _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
}

/* ---- steps of a tile ---- */

INLINE __m256i mask_of(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE __m256 widen(const void *w, enum kern_dtype dtype)
{
    if (dtype == KERN_F32)
        return _mm256_loadu_ps(w);
    __m128i h = _mm_loadu_si128(w);
    if (dtype == KERN_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* The first n weights, and zeros. */
INLINE __m256 widen_part(const void *w, enum kern_dtype dtype, int n)
{
    float v[HALF] = {0};

    for (int i = 0; i < n && i < HALF; i++)
        v[i] = weight_f32(w, dtype, (size_t)i);
    return _mm256_loadu_ps(v);
}

INLINE void clear(int R, tile_acc acc)
{
#pragma GCC unroll 3
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++)
            acc[r][i] = _mm256_setzero_ps();
}

/* The same with weights from a panel: the activations stay in registers, a weight is loaded once.
 */
INLINE void fma_panel_step(int R, tile_acc acc, const __m256 x[TILE_ROWS], const float *panel)
{
#pragma GCC unroll 4
    for (ptrdiff_t i = 0; i < TILE_OUT; i++) {
        __m256 w = _mm256_load_ps(panel + i * HALF);

#pragma GCC unroll 3
        for (int r = 0; r < R; r++)
            acc[r][i] = _mm256_fmadd_ps(x[r], w, acc[r][i]);
    }
}

INLINE void load_rows(int R, __m256 v[TILE_ROWS], const float *x, ptrdiff_t ldx, int n)
{
#pragma GCC unroll 3
    for (int r = 0; r < R; r++)
        v[r] =
            n >= HALF ? _mm256_loadu_ps(x + r * ldx) : _mm256_maskload_ps(x + r * ldx, mask_of(n));
}

/* ---- few rows: W straight from memory ---- */

/* n elements from k on of R rows and of four rows of W, for one half of the lanes. */
INLINE void direct_step(int R, enum kern_dtype dtype, tile_acc acc, const float *x, ptrdiff_t ldx,
                        const char *const w[TILE_OUT], int k, int n)
{
    __m256 v[TILE_ROWS];

    load_rows(R, v, x + k, ldx, n);
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++) {
        const char *at = w[i] + (size_t)k * kern_dtype_bytes(dtype);
        __m256 wi = n >= HALF ? widen(at, dtype) : widen_part(at, dtype, n);

#pragma GCC unroll 3
        for (int r = 0; r < R; r++)
            acc[r][i] = _mm256_fmadd_ps(v[r], wi, acc[r][i]);
    }
}

/* The prefetch goes to the second cache: it holds more requests in flight than the first. */
INLINE void prefetch_rows(const char *const w[TILE_OUT], size_t at)
{
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++)
        _mm_prefetch(w[i] + at, _MM_HINT_T1);
}

/* The last, partial 16 elements: this half has n of them, perhaps none; zeros fill it. */
INLINE void direct_tail(int R, enum kern_dtype dtype, tile_acc acc, const float *x, ptrdiff_t ldx,
                        const char *const w[TILE_OUT], int k, int n)
{
    if (n >= HALF)
        direct_step(R, dtype, acc, x, ldx, w, k, HALF);
    else
        direct_step(R, dtype, acc, x, ldx, w, k, n > 0 ? n : 0);
}

/* Both halves of a tile of R <= 3 rows, one after the other; the second one finds W in the cache.
 * `ahead` bytes from here lie the rows of a later tile; 0: nothing to prefetch. */
INLINE void direct_tile(const struct linear_job *b, int R, enum kern_dtype dtype, int row, int j,
                        size_t ahead)
{
    const float *x = b->x + row * b->ldx;
    size_t size = kern_dtype_bytes(dtype);
    int whole = b->w->k / LANES * LANES;
    const char *w[TILE_OUT];
    __m256 sums[2][TILE_ROWS];

    for (int i = 0; i < TILE_OUT; i++)
        w[i] = weight_row(b, j + i, size);
    for (int h = 0; h < 2; h++, ahead = 0) {
        tile_acc acc;

        clear(R, acc);
        for (int k = h * HALF; k < whole; k += LANES) {
            if (ahead)
                prefetch_rows(w, (size_t)k * size + ahead);
            direct_step(R, dtype, acc, x, b->ldx, w, k, HALF);
        }
        if (whole < b->w->k)
            direct_tail(R, dtype, acc, x, b->ldx, w, whole + h * HALF, b->w->k - whole - h * HALF);
        for (int r = 0; r < R; r++)
            sums[h][r] = sum_groups(acc[r]);
    }
    for (int r = 0; r < R; r++)
        put_sums(b, row + r, j, 1, join(sums[0][r], sums[1][r]));
}

/* One row: four streams of W `stride` rows apart, which the CPU's own prefetcher follows. */
INLINE void direct_row(const struct linear_job *b, enum kern_dtype dtype, int j, int stride)
{
    size_t size = kern_dtype_bytes(dtype);
    int whole = b->w->k / LANES * LANES;
    const char *w[TILE_OUT];
    tile_acc lo;
    tile_acc hi;

    for (int i = 0; i < TILE_OUT; i++)
        w[i] = weight_row(b, j + i * stride, size);
    clear(1, lo);
    clear(1, hi);
    for (int k = 0; k < whole; k += LANES) {
        direct_step(1, dtype, lo, b->x, 0, w, k, HALF);
        direct_step(1, dtype, hi, b->x, 0, w, k + HALF, HALF);
    }
    if (whole < b->w->k) {
        direct_tail(1, dtype, lo, b->x, 0, w, whole, b->w->k - whole);
        direct_tail(1, dtype, hi, b->x, 0, w, whole + HALF, b->w->k - whole - HALF);
    }
    put_sums(b, 0, j, stride, join(sum_groups(lo[0]), sum_groups(hi[0])));
}

#define DIRECT_TILE(R)                                                                    \
    static void direct_tile_##R(const struct linear_job *b, int row, int j, size_t ahead) \
    {                                                                                     \
        if (b->w->dtype == KERN_BF16)                                                     \
            direct_tile(b, R, KERN_BF16, row, j, ahead);                                  \
        else if (b->w->dtype == KERN_F16)                                                 \
            direct_tile(b, R, KERN_F16, row, j, ahead);                                   \
        else                                                                              \
            direct_tile(b, R, KERN_F32, row, j, ahead);                                   \
    }

DIRECT_TILE(1)
DIRECT_TILE(2)
DIRECT_TILE(3)

typedef void direct_tile_fn(const struct linear_job *b, int row, int j, size_t ahead);

static direct_tile_fn *const direct_tiles[TILE_ROWS] = {
    direct_tile_1,
    direct_tile_2,
    direct_tile_3,
};

/* Rows [row0, row1), which stay in the first cache, times `groups` tiles of outputs from j on. */
static void direct_strip(const struct linear_job *b, int row0, int row1, int j, int groups,
                         size_t ahead)
{
    for (int g = 0; g < groups && j + g * TILE_OUT < b->n1; g++)
        for (int row = row0, R; row < row1; row += R) {
            R = tile_rows(row1 - row, TILE_ROWS);
            /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): R is in [1, TILE_ROWS] */
            direct_tiles[R - 1](b, row, j + g * TILE_OUT, row == row0 ? ahead : 0);
        }
}

static void direct_rows(const struct linear_job *b, int n0)
{
    size_t row_bytes = (size_t)b->w->k * kern_dtype_bytes(b->w->dtype);
    int groups = b->m <= STRIP ? 1 : PANEL / TILE_OUT;
    size_t ahead = prefetch_distance(row_bytes, TILE_OUT * groups, PREFETCH);

    for (int j = n0; j < b->n1; j += TILE_OUT * groups)
        for (int row = 0, R; row < b->m; row += R) {
            R = tile_rows(b->m - row, STRIP);
            direct_strip(b, row, row + R, j, groups, row == 0 ? ahead : 0);
        }
}

static void direct_one(const struct linear_job *b, int n0)
{
    int quarter = (b->n1 - n0 + TILE_OUT - 1) / TILE_OUT;

    for (int j = n0; j < n0 + quarter; j++) {
        if (b->w->dtype == KERN_BF16)
            direct_row(b, KERN_BF16, j, quarter);
        else if (b->w->dtype == KERN_F16)
            direct_row(b, KERN_F16, j, quarter);
        else
            direct_row(b, KERN_F32, j, quarter);
    }
}

/* ---- many rows: W widened into a panel ---- */

INLINE int steps_of(const struct k_block *kb)
{
    return (kb->k + LANES - 1) / LANES;
}

/* panel[group][half][step][output of the group][lane of the half] of rows j .. j+15 of W. */
INLINE void widen_panel(float *panel, const struct linear_job *b, enum kern_dtype dtype, int j,
                        const struct k_block *kb)
{
    size_t size = kern_dtype_bytes(dtype);
    ptrdiff_t half = (ptrdiff_t)steps_of(kb) * TILE_OUT * HALF;

    for (int i = 0; i < PANEL && j + i < b->n1; i++) {
        const char *w = weight_row(b, j + i, size) + (size_t)kb->k0 * size;
        ptrdiff_t group = i / TILE_OUT;
        ptrdiff_t output = i % TILE_OUT;
        float *to = panel + group * 2 * half + output * HALF;
        int k = 0;

        for (; k + LANES <= kb->k; k += LANES, to += PANEL_STEP) {
            _mm256_store_ps(to, widen(w + (size_t)k * size, dtype));
            _mm256_store_ps(to + half, widen(w + (size_t)(k + HALF) * size, dtype));
        }
        if (k < kb->k) {
            _mm256_store_ps(to, widen_part(w + (size_t)k * size, dtype, kb->k - k));
            _mm256_store_ps(to + half,
                            widen_part(w + (size_t)(k + HALF) * size, dtype, kb->k - k - HALF));
        }
    }
}

static void widen_panel_any(float *panel, const struct linear_job *b, int j,
                            const struct k_block *kb)
{
    if (b->w->dtype == KERN_BF16)
        widen_panel(panel, b, KERN_BF16, j, kb);
    else if (b->w->dtype == KERN_F16)
        widen_panel(panel, b, KERN_F16, j, kb);
    else
        widen_panel(panel, b, KERN_F32, j, kb);
}

/* Lanes [h, h + 8) of a tile over one block of k. */
INLINE void panel_half(const struct linear_job *b, int R, const struct k_block *kb, const float *x,
                       const float *panel, float *carry, int h, tile_acc acc)
{
    int k = h;
    __m256 v[TILE_ROWS];

    if (kb->first)
        clear(R, acc);
    else
        for (ptrdiff_t r = 0; r < R; r++)
            for (ptrdiff_t i = 0; i < TILE_OUT; i++)
                acc[r][i] = _mm256_load_ps(carry + r * CARRY + i * LANES + h);
    for (; k + HALF <= kb->k; k += LANES, panel += PANEL_STEP) {
        load_rows(R, v, x + k, b->ldx, HALF);
        fma_panel_step(R, acc, v, panel);
    }
    if (k < steps_of(kb) * LANES) {
        load_rows(R, v, x + k, b->ldx, kb->k - k);
        fma_panel_step(R, acc, v, panel);
    }
    if (!kb->last)
        for (ptrdiff_t r = 0; r < R; r++)
            for (ptrdiff_t i = 0; i < TILE_OUT; i++)
                _mm256_store_ps(carry + r * CARRY + i * LANES + h, acc[r][i]);
}

INLINE void panel_tile(const struct linear_job *b, int R, const struct k_block *kb, int row, int j,
                       const float *panel, float *carry)
{
    const float *x = b->x + row * b->ldx + kb->k0;
    __m256 lo[TILE_ROWS];
    tile_acc acc;

    panel_half(b, R, kb, x, panel, carry, 0, acc);
#pragma GCC unroll 3
    for (int r = 0; r < R; r++)
        lo[r] = sum_groups(acc[r]);
    panel += (ptrdiff_t)steps_of(kb) * TILE_OUT * HALF;
    panel_half(b, R, kb, x, panel, carry, HALF, acc);
    if (kb->last)
#pragma GCC unroll 3
        for (int r = 0; r < R; r++)
            put_sums(b, row + r, j, 1, join(lo[r], sum_groups(acc[r])));
}

#define PANEL_TILE(R)                                                                         \
    static void panel_tile_##R(const struct linear_job *b, const struct k_block *kb, int row, \
                               int j, const float *panel, float *carry)                       \
    {                                                                                         \
        panel_tile(b, R, kb, row, j, panel, carry);                                           \
    }

PANEL_TILE(1)
PANEL_TILE(2)
PANEL_TILE(3)

typedef void panel_tile_fn(const struct linear_job *b, const struct k_block *kb, int row, int j,
                           const float *panel, float *carry);

static panel_tile_fn *const panel_tiles[TILE_ROWS] = {
    panel_tile_1,
    panel_tile_2,
    panel_tile_3,
};

/* Rows [row0, row1), at most STRIP of them, times the panel. carry belongs to row0. */
static void panel_strip(const struct linear_job *b, const struct k_block *kb, int row0, int row1,
                        int j, const float *panel, float *carry, struct ahead *next)
{
    ptrdiff_t group = (ptrdiff_t)steps_of(kb) * TILE_OUT * LANES;

    for (int i = 0; i < PANEL && j + i < b->n1; i += TILE_OUT)
        for (int row = row0, R; row < row1; row += R) {
            R = tile_rows(row1 - row, TILE_ROWS);
            ahead_fetch(next);
            panel_tiles[R - 1](b, kb, row, j + i, panel + i / TILE_OUT * group,
                               carry + (ptrdiff_t)(row - row0) * CARRY + (ptrdiff_t)i * LANES);
        }
}

static void panel_rows(const struct linear_job *b, const struct k_block *kb, int row0, int row1,
                       int j, const float *panel, float *carry, struct ahead *next)
{
    for (int row = row0, R; row < row1; row += R) {
        R = tile_rows(row1 - row, kb->k <= SHORT_K ? STRIP : TILE_ROWS);
        panel_strip(b, kb, row, row + R, j, panel, carry + (ptrdiff_t)(row - row0) * CARRY, next);
    }
}

/* Rows of x that share a widened panel. */
static int rows_in_cache(const struct linear_job *b, int block)
{
    int rows = (int)(X_BLOCK / ((size_t)block * sizeof(float) + 1)) / STRIP * STRIP;

    if (rows < MIN_ROWS)
        rows = MIN_ROWS;
    return b->w->k > block && rows > ROW_BLOCK ? ROW_BLOCK : rows;
}

static void linear_panel(const struct linear_job *b, int n0, float *scratch)
{
    int block = k_block_length(b->w->k, b->w->k <= K_BLOCK ? K_BLOCK : K_BLOCK_LONG, LANES);
    int rows = rows_in_cache(b, block);
    float *carry = scratch + (size_t)PANEL * K_BLOCK;

    for (int row = 0; row < b->m; row += rows) {
        int row1 = b->m - row < rows ? b->m : row + rows;
        int tiles = (row1 - row + TILE_ROWS - 1) / TILE_ROWS * (PANEL / TILE_OUT);

        for (int j = n0; j < b->n1; j += PANEL)
            for (struct k_block kb = k_block_first(b->w->k, block); kb.k > 0;
                 kb = k_block_next(&kb, b->w->k, block)) {
                struct ahead next = ahead_of(b, j, PANEL, &kb, block, tiles);

                widen_panel_any(scratch, b, j, &kb);
                panel_rows(b, &kb, row, row1, j, scratch, carry, &next);
            }
    }
}

void linear_avx2(float *y, int ldy, const float *x, int ldx, const void *px, int m,
                 const struct kern_matrix *w, int n0, int n1, const void *bias, bool accumulate,
                 void *scratch, struct kern_ahead *ahead)
{
    struct linear_job b = {.y = y,
                           .x = x,
                           .w = w,
                           .bias = bias,
                           .ldy = ldy,
                           .ldx = ldx,
                           .m = m,
                           .n1 = n1,
                           .accumulate = accumulate};

    (void)px;
    (void)ahead;
    if (m == 1)
        direct_one(&b, n0);
    else if (m <= DIRECT_ROWS)
        direct_rows(&b, n0);
    else
        linear_panel(&b, n0, scratch);
}
