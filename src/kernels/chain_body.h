/* kernels/chain_body.h - the chain of kernels/backward.h, written once against v16.h.
 *
 * Tiles of CHAIN_ROWS rows times CHAIN_COLS registers of columns, both set by the including file so
 * that they fit the registers. B is widened into panels of PANEL columns and STEPS steps, which
 * stay in the second cache for BLOCK_ROWS rows; A is read as it lies when its steps are neighbours,
 * else copied so that the values of one step of a tile are. Elements of C are loaded and stored
 * once a panel: the chain goes on where it stopped. */

enum {
    PANEL = 64,
    STEPS = 256,
    BLOCK_ROWS = 192, /* whose A is copied; of A as it lies all rows of a call */
    AHEAD = 16,       /* rows of B */
    LINE = 64,        /* bytes of a cache line */
    A_FLOATS = BLOCK_ROWS * STEPS + LANES, /* copying writes whole registers */
};

/* B of one panel, and A of one block of rows. */
struct packed {
    const float *a, *b;
    ptrdiff_t a_row, a_step;
    ptrdiff_t a_tile; /* from tile to tile */
    int steps;
    bool clear; /* C starts from zero with these steps */
};

/* C: registers of columns that hold any, so that narrow results (adapters) do no idle work. */
INLINE void chain_tile(int R, int C, float *c, ptrdiff_t ldc, const struct packed *k,
                       const float *a, const float *b, int n)
{
    v16 acc[CHAIN_ROWS][CHAIN_COLS];
    ptrdiff_t a_row = k->a_row, a_step = k->a_step;

#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++)
            acc[r][i] = k->clear ? v16_set(0) : v16_load_n(c + r * ldc + i * LANES, n - i * LANES);
    for (int t = 0; t < k->steps; t++, a += a_step, b += PANEL) {
        v16 vb[CHAIN_COLS];

#pragma GCC unroll 4
        for (int i = 0; i < C; i++)
            vb[i] = v16_load(b + i * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            v16 va = v16_set(a[r * a_row]);

#pragma GCC unroll 4
            for (int i = 0; i < C; i++)
                acc[r][i] = v16_fma(va, vb[i], acc[r][i]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++)
            v16_store_n(c + r * ldc + i * LANES, acc[r][i], n - i * LANES);
}

#define CHAIN_TILE(R)                                                                     \
    static void chain_tile_##R(int cols, float *c, ptrdiff_t ldc, const struct packed *k, \
                               const float *a, const float *b, int n)                     \
    {                                                                                     \
        if (cols >= CHAIN_COLS)                                                           \
            chain_tile(R, CHAIN_COLS, c, ldc, k, a, b, n);                                \
        else if (cols == 2 && CHAIN_COLS > 2)                                             \
            chain_tile(R, CHAIN_COLS > 2 ? 2 : 1, c, ldc, k, a, b, n);                    \
        else if (cols > 1)                                                                \
            chain_tile(R, CHAIN_COLS, c, ldc, k, a, b, n);                                \
        else                                                                              \
            chain_tile(R, 1, c, ldc, k, a, b, n);                                         \
    }

CHAIN_TILE(1)
CHAIN_TILE(2)
CHAIN_TILE(3)
CHAIN_TILE(4)
CHAIN_TILE(5)
CHAIN_TILE(6)

typedef void chain_tile_fn(int cols, float *c, ptrdiff_t ldc, const struct packed *k,
                           const float *a, const float *b, int n);

static chain_tile_fn *const chain_tiles[CHAIN_ROWS] = {
    chain_tile_1, chain_tile_2, chain_tile_3, chain_tile_4, chain_tile_5, chain_tile_6,
};

/* The panel's part of a row of B that is read AHEAD steps later. The rows lie too far apart for the
 * CPU's own prefetcher. */
INLINE void fetch_b(const char *row, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch(row + i, 0, 2);
}

/* Columns [j, j + PANEL) of steps [t0, t0 + steps), zeros past the end. */
INLINE void pack_rows(float *to, const struct chain *p, enum kern_dtype dtype, int t0, int steps,
                      int j)
{
    size_t size = kern_dtype_bytes(dtype), stride = (size_t)p->ldb * size;
    int n = p->n - j < PANEL ? p->n - j : PANEL;
    const char *row = (const char *)p->b + (size_t)t0 * stride + (size_t)j * size;

    for (int t = 0; t < steps; t++, to += PANEL, row += stride) {
        fetch_b(row + (t < steps - AHEAD ? AHEAD * stride : 0), (size_t)n * size);
        if (n == PANEL) {
#pragma GCC unroll 4
            for (int i = 0; i < PANEL; i += LANES)
                v16_store(to + i, v16_weights(row, dtype, (size_t)i, LANES));
            continue;
        }
        for (int i = 0; i < PANEL; i += LANES)
            v16_store(to + i, i < n ? v16_weights(row, dtype, (size_t)i, n - i) : v16_set(0));
    }
}

static void pack_b(float *to, const struct chain *p, int t0, int steps, int j)
{
    if (p->b_dtype == KERN_F32)
        pack_rows(to, p, KERN_F32, t0, steps, j);
    else if (p->b_dtype == KERN_F16)
        pack_rows(to, p, KERN_F16, t0, steps, j);
    else
        pack_rows(to, p, KERN_BF16, t0, steps, j);
}

/* The panel as the tiles read it: where B is one already and they read no further, as it lies. */
static const float *panel_b(float *scratch, const struct chain *p, int t0, int steps, int j)
{
    bool whole = p->n == PANEL || p->n == 2 * LANES || p->n == LANES;

    if (p->b_dtype == KERN_F32 && p->ldb == PANEL && whole)
        return (const float *)p->b + (ptrdiff_t)t0 * PANEL;
    pack_b(scratch, p, t0, steps, j);
    return scratch;
}

/* Rows [i0, i0 + rows): tiles of CHAIN_ROWS, in each step after step. */
static void pack_a(float *to, const struct chain *p, int i0, int rows, int t0, int steps)
{
    for (int i = 0; i < rows; i += CHAIN_ROWS) {
        const float *a = p->a + (i0 + i) * p->a_row + t0 * p->a_step;
        int n = rows - i < CHAIN_ROWS ? rows - i : CHAIN_ROWS;

        for (int t = 0; t < steps; t++, a += p->a_step, to += CHAIN_ROWS) {
            if (p->a_row == 1)
                v16_store(to, v16_load_part(a, n));
            else
                for (int r = 0; r < n; r++)
                    to[r] = a[r * p->a_row];
        }
    }
}

/* Steps that are neighbours, or whose rows are and that lie so near that they share the first cache
 * with a panel of B. */
static bool reads_in_place(const struct chain *p)
{
    return p->a_step == 1 || (p->a_row == 1 && p->a_step <= PANEL && p->steps <= PANEL);
}

static struct packed block_a(float *scratch, const struct chain *p, int i0, int rows, int t0,
                             int steps)
{
    if (reads_in_place(p))
        return (struct packed){.a = p->a + i0 * p->a_row + t0 * p->a_step,
                               .a_row = p->a_row,
                               .a_step = p->a_step,
                               .a_tile = CHAIN_ROWS * p->a_row,
                               .steps = steps};
    pack_a(scratch, p, i0, rows, t0, steps);
    return (struct packed){.a = scratch,
                           .a_row = 1,
                           .a_step = CHAIN_ROWS,
                           .a_tile = (ptrdiff_t)CHAIN_ROWS * steps,
                           .steps = steps};
}

static void chain_panel(const struct chain *p, const struct packed *k, int i0, int rows, int j)
{
    int cols = p->n - j < PANEL ? p->n - j : PANEL;
    const float *a = k->a;

    for (int i = 0; i < rows; i += CHAIN_ROWS, a += k->a_tile) {
        int R = rows - i < CHAIN_ROWS ? rows - i : CHAIN_ROWS;
        float *c = p->c + (i0 + i) * p->ldc + j;

        chain_fetch_c(c + R * p->ldc, p->ldc, rows - i - R, cols);
        for (int col = 0; col < cols; col += CHAIN_COLS * LANES)
            chain_tiles[R - 1]((cols - col + LANES - 1) / LANES, c + col, p->ldc, k, a, k->b + col,
                               cols - col);
    }
}

static void chain(const struct chain *p, void *scratch)
{
    float *a = scratch, *b = a + A_FLOATS;

    _Static_assert((A_FLOATS + PANEL * STEPS) * sizeof(float) <= CHAIN_SCRATCH, "scratch");
    for (int t = 0; t < p->steps; t += STEPS) {
        int steps = p->steps - t < STEPS ? p->steps - t : STEPS;
        struct packed k;

        for (int i = 0, rows; i < p->m; i += rows) {
            rows = reads_in_place(p) || p->m - i < BLOCK_ROWS ? p->m - i : BLOCK_ROWS;
            k = block_a(a, p, i, rows, t, steps);
            k.clear = p->clear && t == 0;
            for (int j = 0; j < p->n; j += PANEL) {
                k.b = panel_b(b, p, t, steps, j);
                chain_panel(p, &k, i, rows, j);
            }
        }
    }
}
