/* linear(), numerics exact-1, with one 512-bit register for the 16 lanes of one output.
 *
 * A tile is R rows of x times 4 rows of W. Few rows (decode): the tile reads W as it lies in
 * memory, widening in registers, and prefetches the rows of a later tile. Many rows (prefill): 16
 * rows of W are widened once into a panel, in the order the tile reads them, and k is cut into
 * blocks so that the rows of x stay in the first cache; the lanes are carried from block to block,
 * so the order of every sum stays the same. */
#include "kernels/tile_avx512.h"
#include "kernels/variants.h"

enum {
    FULL = 0xffff,    /* mask of a whole step */
    DIRECT_ROWS = 12, /* up to here widening in registers beats a panel */
    APART = 2,
    PANEL = 16,           /* rows of W in a panel */
    K_BLOCK = 768,        /* 6 rows of x of this length are 18 KB */
    ROW_BLOCK = 192,      /* rows of x that share a widened panel when lanes are carried */
    PREFETCH = 16 * 1024, /* bytes of W asked for ahead of their use */
    CARRY = LANES * PANEL /* floats carried per row of x */
};

_Static_assert((PANEL * K_BLOCK + ROW_BLOCK * CARRY) * sizeof(float) <= LINEAR_SCRATCH,
               "panel and carried lanes fit the scratch memory");

INLINE __m512 widen16(__m256i h, enum kern_dtype dtype)
{
    if (dtype == KERN_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE __m512 widen(const void *w, enum kern_dtype dtype)
{
    if (dtype == KERN_F32)
        return _mm512_loadu_ps(w);
    return widen16(_mm256_loadu_si256(w), dtype);
}

INLINE __m512 widen_tail(const void *w, enum kern_dtype dtype, __mmask16 mask)
{
    if (dtype == KERN_F32)
        return _mm512_maskz_loadu_ps(mask, w);
    return widen16(_mm256_maskz_loadu_epi16(mask, w), dtype);
}

/* One step of a tile: 16 elements of R rows of x (those of `mask`) and of four rows of W. */
INLINE void fma_step(int R, __m512 acc[TILE_ROWS][TILE_OUT], const float *x, ptrdiff_t ldx,
                     const __m512 w[TILE_OUT], __mmask16 mask)
{
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        const float *at = x + r * ldx;
        __m512 v = mask == FULL ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps(mask, at);

#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++)
            acc[r][i] = _mm512_fmadd_ps(v, w[i], acc[r][i]);
    }
}

INLINE __mmask16 tail_mask(int k)
{
    return (__mmask16)((1u << (k % LANES)) - 1);
}

/* ---- few rows: W straight from memory ---- */

/* Elements k .. k+15 of the tile, or those of `mask`. */
INLINE void direct_step(const struct linear_job *b, int R, enum kern_dtype dtype, const float *x,
                        const char *const w[TILE_OUT], int k, __mmask16 mask,
                        __m512 acc[TILE_ROWS][TILE_OUT])
{
    size_t at = (size_t)k * dtype_size(dtype);
    __m512 v[TILE_OUT];

#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++)
        v[i] = mask == FULL ? widen(w[i] + at, dtype) : widen_tail(w[i] + at, dtype, mask);
    fma_step(R, acc, x + k, b->ldx, v, mask);
}

/* The prefetch goes to the second cache: it holds more requests in flight than the first. */
INLINE void prefetch_rows(const char *const w[TILE_OUT], size_t at)
{
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++)
        _mm_prefetch(w[i] + at, _MM_HINT_T1);
}

INLINE void direct_tile(const struct linear_job *b, int R, enum kern_dtype dtype, int row,
                        struct outputs o, size_t ahead)
{
    const float *x = b->x + row * b->ldx;
    size_t size = dtype_size(dtype);
    int line = 64 / (int)size;
    const char *w[TILE_OUT];
    __m512 acc[TILE_ROWS][TILE_OUT];
    int k = 0;

    for (int i = 0; i < TILE_OUT; i++)
        w[i] = weight_row(b, o.j + i * o.stride, size);
    clear_tile(R, acc);
    for (; k + line <= b->w->k; k += line) {
        if (ahead)
            prefetch_rows(w, (size_t)k * size + ahead);
        for (int i = 0; i < line; i += LANES)
            direct_step(b, R, dtype, x, w, k + i, FULL, acc);
    }
    for (; k + LANES <= b->w->k; k += LANES)
        direct_step(b, R, dtype, x, w, k, FULL, acc);
    if (k < b->w->k)
        direct_step(b, R, dtype, x, w, k, tail_mask(b->w->k), acc);
    put_tile(b, R, row, o, acc);
}

#define DIRECT_TILE(R)                                                                 \
    static void direct_tile_##R(const struct linear_job *b, int row, struct outputs o, \
                                size_t ahead)                                          \
    {                                                                                  \
        if (b->w->dtype == KERN_BF16)                                                  \
            direct_tile(b, R, KERN_BF16, row, o, ahead);                               \
        else if (b->w->dtype == KERN_F16)                                              \
            direct_tile(b, R, KERN_F16, row, o, ahead);                                \
        else                                                                           \
            direct_tile(b, R, KERN_F32, row, o, ahead);                                \
    }

DIRECT_TILE(1)
DIRECT_TILE(2)
DIRECT_TILE(3)
DIRECT_TILE(4)
DIRECT_TILE(5)
DIRECT_TILE(6)

typedef void direct_tile_fn(const struct linear_job *b, int row, struct outputs o, size_t ahead);

static direct_tile_fn *const direct_tiles[TILE_ROWS + 1] = {
    NULL, direct_tile_1, direct_tile_2, direct_tile_3, direct_tile_4, direct_tile_5, direct_tile_6,
};

static void linear_direct(const struct linear_job *b, int n0)
{
    int outputs = b->n1 - n0;
    bool apart = b->m < APART;
    int stride = apart ? (outputs + TILE_OUT - 1) / TILE_OUT : 1;
    int end = apart ? n0 + stride : b->n1;
    size_t ahead = apart ? 0 : prefetch_distance(b->w, dtype_size(b->w->dtype), TILE_OUT, PREFETCH);

    for (int j = n0; j < end; j += apart ? 1 : TILE_OUT)
        for (int row = 0, R; row < b->m; row += R) {
            R = tile_rows(b->m - row, TILE_ROWS);
            direct_tiles[R](b, row, (struct outputs){j, stride}, row == 0 ? ahead : 0);
        }
}

/* ---- many rows: W widened into a panel ---- */

/* panel[group][step][output of the group][lane] of rows j .. j+15 of W, zeros past the end of k. */
INLINE void widen_panel(float *panel, const struct linear_job *b, enum kern_dtype dtype, int j,
                        const struct k_block *kb)
{
    size_t size = dtype_size(dtype);
    int steps = (kb->k + LANES - 1) / LANES;

    for (int i = 0; i < PANEL && j + i < b->n1; i++) {
        const char *w = weight_row(b, j + i, size) + (size_t)kb->k0 * size;
        float *to = panel + ((ptrdiff_t)(i / TILE_OUT) * steps * TILE_OUT + i % TILE_OUT) * LANES;
        int k = 0;

        for (; k + LANES <= kb->k; k += LANES, to += TILE_OUT * LANES)
            _mm512_store_ps(to, widen(w + (size_t)k * size, dtype));
        if (k < kb->k)
            _mm512_store_ps(to, widen_tail(w + (size_t)k * size, dtype, tail_mask(kb->k)));
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

INLINE void load_carry(int R, __m512 acc[TILE_ROWS][TILE_OUT], const float *carry)
{
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++)
            acc[r][i] = _mm512_load_ps(carry + r * CARRY + i * LANES);
}

INLINE void store_carry(int R, float *carry, __m512 acc[TILE_ROWS][TILE_OUT])
{
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++)
            _mm512_store_ps(carry + r * CARRY + i * LANES, acc[r][i]);
}

INLINE void load_panel(__m512 v[TILE_OUT], const float *panel)
{
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++)
        v[i] = _mm512_load_ps(panel + i * LANES);
}

INLINE void panel_tile(const struct linear_job *b, int R, const struct k_block *kb, int row, int j,
                       const float *panel, float *carry)
{
    const float *x = b->x + row * b->ldx + kb->k0;
    __m512 acc[TILE_ROWS][TILE_OUT];
    __m512 v[TILE_OUT];
    int k = 0;

    if (kb->first)
        clear_tile(R, acc);
    else
        load_carry(R, acc, carry);
    for (; k + LANES <= kb->k; k += LANES, panel += TILE_OUT * LANES) {
        load_panel(v, panel);
        fma_step(R, acc, x + k, b->ldx, v, FULL);
    }
    if (k < kb->k) {
        load_panel(v, panel);
        fma_step(R, acc, x + k, b->ldx, v, tail_mask(kb->k));
    }
    if (kb->last)
        put_tile(b, R, row, (struct outputs){j, 1}, acc);
    else
        store_carry(R, carry, acc);
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
PANEL_TILE(4)
PANEL_TILE(5)
PANEL_TILE(6)

typedef void panel_tile_fn(const struct linear_job *b, const struct k_block *kb, int row, int j,
                           const float *panel, float *carry);

static panel_tile_fn *const panel_tiles[TILE_ROWS + 1] = {
    NULL, panel_tile_1, panel_tile_2, panel_tile_3, panel_tile_4, panel_tile_5, panel_tile_6,
};

/* Rows [row0, row1) times the panel at hand, while the weights of the next panel are on their way.
 * carry: [row - row0][output][lane]. */
static void panel_rows(const struct linear_job *b, const struct k_block *kb, int row0, int row1,
                       int j, const float *panel, float *carry, struct ahead *next)
{
    ptrdiff_t group = (ptrdiff_t)((kb->k + LANES - 1) / LANES) * TILE_OUT * LANES;

    for (int row = row0, R; row < row1; row += R) {
        R = tile_rows(row1 - row, TILE_ROWS);
        for (int i = 0; i < PANEL && j + i < b->n1; i += TILE_OUT) {
            ahead_fetch(next);
            panel_tiles[R](b, kb, row, j + i, panel + i / TILE_OUT * group,
                           carry + (ptrdiff_t)(row - row0) * CARRY + i * LANES);
        }
    }
}

static void linear_panel(const struct linear_job *b, int n0, float *scratch)
{
    int block = k_block_length(b->w->k, K_BLOCK, LANES);
    int rows = b->w->k <= block ? b->m : ROW_BLOCK;
    float *carry = scratch + PANEL * K_BLOCK;

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

void linear_avx512(float *y, int ldy, const float *x, int ldx, const void *px, int m,
                   const struct kern_matrix *w, int n0, int n1, const void *bias, bool accumulate,
                   void *scratch)
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
    if (m <= DIRECT_ROWS)
        linear_direct(&b, n0);
    else
        linear_panel(&b, n0, scratch);
}
