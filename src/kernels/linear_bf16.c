/* linear(), numerics bf16-1: the BF16 dot instruction, whose scalar model is linear_bf16_ref.c.
 *
 * The tile is the one of the exact kernels with 32 elements a step and nothing to widen. Few rows
 * read W as it lies in memory; many rows read a copy of 16 rows of W in the order of the tile,
 * 64-byte aligned and padded with zeros. F16 and F32 weights, and calls without prepared rows, run
 * the exact kernels. */
#include "kernels/tile_avx512.h"
#include "kernels/variants.h"

enum {
    STEP = 2 * LANES,
    DIRECT_ROWS = 12,    /* up to here W is read in place */
    PANEL = 16,          /* rows of W in a panel */
    K_BLOCK = 1536,      /* 6 rows of x of this length are 18 KB */
    ROW_BLOCK = 192,     /* rows of x that share a panel when lanes are carried */
    PREFETCH = 8 * 1024, /* bytes of W asked for ahead of their use */
    CARRY = LANES * PANEL,
};

_Static_assert(PANEL *K_BLOCK * sizeof(uint16_t) + ROW_BLOCK * CARRY * sizeof(float) <=
                   LINEAR_SCRATCH,
               "panel and carried lanes fit the scratch memory");

static size_t row_elements(int k)
{
    return ((size_t)k + STEP - 1) / STEP * STEP;
}

static __mmask32 tail_mask(int k)
{
    return (__mmask32)((1u << (k % STEP)) - 1);
}

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
        if (k % STEP && k % STEP <= LANES)
            _mm256_storeu_si256((__m256i *)(to + row_elements(k) - LANES), _mm256_setzero_si256());
    }
}

/* One step of a tile: 32 elements of R rows of x and of four rows of W. */
INLINE void dot_step(int R, __m512 acc[TILE_ROWS][TILE_OUT], const uint16_t *x, size_t ldx,
                     const __m512i w[TILE_OUT])
{
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        __m512bh v = (__m512bh)_mm512_loadu_si512(x + (size_t)r * ldx);

#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++)
            acc[r][i] = _mm512_dpbf16_ps(acc[r][i], v, (__m512bh)w[i]);
    }
}

/* ---- few rows: W straight from memory ---- */

INLINE void direct_tile(const struct linear_job *b, int R, int row, int j, size_t ahead)
{
    size_t ldx = row_elements(b->w->k);
    const uint16_t *x = (const uint16_t *)b->px + (size_t)row * ldx;
    const uint16_t *w[TILE_OUT];
    __m512 acc[TILE_ROWS][TILE_OUT];
    __m512i v[TILE_OUT];
    int k = 0;

    for (int i = 0; i < TILE_OUT; i++)
        w[i] = (const uint16_t *)weight_row(b, j + i, sizeof(uint16_t));
    clear_tile(R, acc);
    for (; k + STEP <= b->w->k; k += STEP) {
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            v[i] = _mm512_loadu_si512(w[i] + k);
            if (ahead)
                _mm_prefetch((const char *)(w[i] + k) + ahead, _MM_HINT_T0);
        }
        dot_step(R, acc, x + k, ldx, v);
    }
    if (k < b->w->k) {
        for (int i = 0; i < TILE_OUT; i++)
            v[i] = _mm512_maskz_loadu_epi16(tail_mask(b->w->k), w[i] + k);
        dot_step(R, acc, x + k, ldx, v);
    }
    put_tile(b, R, row, (struct outputs){j, 1}, acc);
}

#define DIRECT_TILE(R)                                                                    \
    static void direct_tile_##R(const struct linear_job *b, int row, int j, size_t ahead) \
    {                                                                                     \
        direct_tile(b, R, row, j, ahead);                                                 \
    }

DIRECT_TILE(1)
DIRECT_TILE(2)
DIRECT_TILE(3)
DIRECT_TILE(4)
DIRECT_TILE(5)
DIRECT_TILE(6)

typedef void direct_tile_fn(const struct linear_job *b, int row, int j, size_t ahead);

static direct_tile_fn *const direct_tiles[TILE_ROWS + 1] = {
    NULL, direct_tile_1, direct_tile_2, direct_tile_3, direct_tile_4, direct_tile_5, direct_tile_6,
};

static void linear_direct(const struct linear_job *b, int n0)
{
    size_t ahead = prefetch_distance(b->w, sizeof(uint16_t), TILE_OUT, PREFETCH);

    for (int j = n0; j < b->n1; j += TILE_OUT)
        for (int row = 0, R; row < b->m; row += R) {
            R = tile_rows(b->m - row, TILE_ROWS);
            direct_tiles[R](b, row, j, row == 0 ? ahead : 0);
        }
}

/* ---- many rows: W copied into a panel ---- */

/* panel[group][step][output of the group][element of the step] of rows j .. j+15 of W. */
static void copy_panel(uint16_t *panel, const struct linear_job *b, int j, const struct k_block *kb)
{
    size_t group = row_elements(kb->k) * TILE_OUT;

    for (int i = 0; i < PANEL && j + i < b->n1; i++) {
        const uint16_t *w = (const uint16_t *)weight_row(b, j + i, sizeof *w) + kb->k0;
        uint16_t *to = panel + (size_t)(i / TILE_OUT) * group + i % TILE_OUT * STEP;
        int k = 0;

        for (; k + STEP <= kb->k; k += STEP, to += TILE_OUT * STEP)
            _mm512_store_si512(to, _mm512_loadu_si512(w + k));
        if (k < kb->k)
            _mm512_store_si512(to, _mm512_maskz_loadu_epi16(tail_mask(kb->k), w + k));
    }
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

INLINE void panel_tile(const struct linear_job *b, int R, const struct k_block *kb, int row, int j,
                       const uint16_t *panel, float *carry)
{
    size_t ldx = row_elements(b->w->k);
    const uint16_t *x = (const uint16_t *)b->px + (size_t)row * ldx + kb->k0;
    __m512 acc[TILE_ROWS][TILE_OUT];
    __m512i v[TILE_OUT];

    if (kb->first)
        clear_tile(R, acc);
    else
        load_carry(R, acc, carry);
    for (int k = 0; k < kb->k; k += STEP, panel += TILE_OUT * STEP) {
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++)
            v[i] = _mm512_load_si512(panel + i * STEP);
        dot_step(R, acc, x + k, ldx, v);
    }
    if (kb->last)
        put_tile(b, R, row, (struct outputs){j, 1}, acc);
    else
        store_carry(R, carry, acc);
}

#define PANEL_TILE(R)                                                                         \
    static void panel_tile_##R(const struct linear_job *b, const struct k_block *kb, int row, \
                               int j, const uint16_t *panel, float *carry)                    \
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
                           const uint16_t *panel, float *carry);

static panel_tile_fn *const panel_tiles[TILE_ROWS + 1] = {
    NULL, panel_tile_1, panel_tile_2, panel_tile_3, panel_tile_4, panel_tile_5, panel_tile_6,
};

/* Rows [row0, row1) times the panel at hand, while the weights of the next panel are on their way.
 * carry: [row - row0][output][lane]. */
static void panel_rows(const struct linear_job *b, const struct k_block *kb, int row0, int row1,
                       int j, const uint16_t *panel, float *carry, struct ahead *next)
{
    size_t group = row_elements(kb->k) * TILE_OUT;

    for (int row = row0, R; row < row1; row += R) {
        R = tile_rows(row1 - row, TILE_ROWS);
        for (int i = 0; i < PANEL && j + i < b->n1; i += TILE_OUT) {
            ahead_fetch(next);
            panel_tiles[R](b, kb, row, j + i, panel + (size_t)(i / TILE_OUT) * group,
                           carry + (ptrdiff_t)(row - row0) * CARRY + i * LANES);
        }
    }
}

static void linear_panel(const struct linear_job *b, int n0, void *scratch)
{
    int block = k_block_length(b->w->k, K_BLOCK, STEP);
    int rows = b->w->k <= block ? b->m : ROW_BLOCK;
    float *carry = (float *)((uint16_t *)scratch + PANEL * K_BLOCK);

    for (int row = 0; row < b->m; row += rows) {
        int row1 = b->m - row < rows ? b->m : row + rows;
        int tiles = (row1 - row + TILE_ROWS - 1) / TILE_ROWS * (PANEL / TILE_OUT);

        for (int j = n0; j < b->n1; j += PANEL)
            for (struct k_block kb = k_block_first(b->w->k, block); kb.k > 0;
                 kb = k_block_next(&kb, b->w->k, block)) {
                struct ahead next = ahead_of(b, j, PANEL, &kb, block, tiles);

                copy_panel(scratch, b, j, &kb);
                panel_rows(b, &kb, row, row1, j, scratch, carry, &next);
            }
    }
}

void linear_bf16(float *y, int ldy, const float *x, int ldx, const void *px, int m,
                 const struct kern_matrix *w, int n0, int n1, const void *bias, bool accumulate,
                 void *scratch)
{
    struct linear_job b = {.y = y,
                           .px = px,
                           .w = w,
                           .bias = bias,
                           .ldy = ldy,
                           .m = m,
                           .n1 = n1,
                           .accumulate = accumulate};

    if (!px || w->dtype != KERN_BF16)
        linear_avx512(y, ldy, x, ldx, px, m, w, n0, n1, bias, accumulate, scratch);
    else if (m <= DIRECT_ROWS)
        linear_direct(&b, n0);
    else
        linear_panel(&b, n0, scratch);
}
