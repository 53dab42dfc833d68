/* kernels/attention_body.h - attention with keys in lanes, written once against v16.h.
 *
 * A tile is up to ATT_ROWS query rows (positions and the heads of the group, in that order). For
 * each page and each tile: scores of 64 keys, one step of d at a time, for all rows of the tile;
 * weights; then V times weights, one key at a time. In the last page the rows end at different
 * keys: the keys that all of them see are done together, the few after them row by row, so that no
 * row ever reads a value after its own position. The including file sets ATT_ROWS and ATT_COLS
 * (registers a row) so that the accumulators fit. */

enum { COLS = KV_BLOCK / LANES, BLOCK_ROWS = 96 };

struct query {
    const float *q;
    float *out; /* the weighted sum of V so far */
    int pos;
    float max, sum;
};

struct page {
    const float *k, *v;
    const float *next; /* K of the page after this one, or this K again */
    bool once; /* the first tile that reads the page: it comes from memory, not from a cache */
    int first; /* absolute position of slot 0 */
    int head_dim;
    float scale;
};

/* Keys of the page that this row sees; 64 or more: all. */
INLINE int keys_of(const struct query *q, const struct page *g)
{
    int n = q->pos + 1 - g->first;

    return n < KV_BLOCK ? n : KV_BLOCK;
}

/* K and V of a page have one size: while a line of one is read, the same line of what comes next is
 * asked for. (One sequence at 2,000 positions: 9.9 ms a step without, 8.8 with.) */
INLINE void prefetch(const float *at)
{
    __builtin_prefetch(at, 0, 2);
}

/* Registers [col, col + C) of the keys. */
INLINE void score_cols(int R, int C, float p[][KV_BLOCK], const struct query *q,
                       const struct page *g, int col)
{
    v16 acc[ATT_ROWS][ATT_COLS];
    const float *k = g->k + col * LANES;
    const float *v = g->v + col * g->head_dim * LANES;

#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++)
            acc[r][i] = v16_set(0);
    for (int d = 0; d < g->head_dim; d++, k += KV_BLOCK, v += C * LANES) {
        v16 key[ATT_COLS];

#pragma GCC unroll 4
        for (int i = 0; i < C; i++) {
            key[i] = v16_load(k + i * LANES);
            if (g->once)
                prefetch(v + i * LANES);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            v16 x = v16_set(q[r].q[d]);

#pragma GCC unroll 4
            for (int i = 0; i < C; i++)
                acc[r][i] = v16_fma(x, key[i], acc[r][i]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++)
            v16_store(p[r] + (col + i) * LANES, v16_mul(acc[r][i], v16_set(g->scale)));
}

INLINE int cols_of(int keys)
{
    return (keys + LANES - 1) / LANES;
}

/* The largest of the first `keys` scores and of `max`; a NaN never wins. */
INLINE float largest_score(const float p[KV_BLOCK], int keys, float max)
{
    v16 low = v16_set(-INFINITY);
    v16 top = v16_set(max);

    for (int i = 0; i < keys / LANES; i++)
        top = v16_max(v16_load(p + i * LANES), top);
    if (keys % LANES)
        top = v16_max(v16_select(v16_first(keys % LANES), v16_load(p + keys / LANES * LANES), low),
                      top);
    return v16_largest(top);
}

/* Scores become weights; returns their sum. */
INLINE float weigh(float p[KV_BLOCK], int keys, float max)
{
    v16 lanes = v16_set(0);

    for (int i = 0; i < cols_of(keys); i++) {
        v16 e = v16_exp(v16_sub(v16_load(p + i * LANES), v16_set(max)));

        e = v16_select(v16_first(keys - i * LANES), e, v16_set(0));
        v16_store(p + i * LANES, e);
        lanes = v16_add(lanes, e);
    }
    return v16_sum(lanes);
}

/* The same for R rows; shrink[r]: the factor for what row r has summed before this page. */
INLINE void weigh_rows(int R, float p[][KV_BLOCK], struct query *q, const struct page *g,
                       float shrink[LANES])
{
    for (int r = 0; r < R; r++) {
        float max = largest_score(p[r], keys_of(q + r, g), q[r].max);

        shrink[r] = q[r].max - max;
        q[r].max = max;
    }
    v16_store(shrink, v16_exp(v16_load(shrink)));
    for (int r = 0; r < R; r++)
        q[r].sum = fmaf(q[r].sum, shrink[r], weigh(p[r], keys_of(q + r, g), q[r].max));
}

/* Adds keys [j0, j1) to columns [d, d + n) of R rows, whose sums shrink first. */
INLINE void value_cols(int R, const struct query *q, const float p[][KV_BLOCK],
                       const float shrink[], const struct page *g, int j0, int j1, int d, int n)
{
    v16 acc[ATT_ROWS][ATT_COLS];

#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < ATT_COLS; i++)
            acc[r][i] =
                v16_mul(v16_load_n(q[r].out + d + i * LANES, n - i * LANES), v16_set(shrink[r]));
    for (int j = j0; j < j1; j++) {
        const float *row = g->v + (ptrdiff_t)j * g->head_dim + d;
        v16 v[ATT_COLS];

#pragma GCC unroll 4
        for (int i = 0; i < ATT_COLS; i++) {
            v[i] = v16_load_n(row + i * LANES, n - i * LANES);
            if (g->once)
                prefetch(g->next + (row - g->v) + i * LANES);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            v16 w = v16_set(p[r][j]);

#pragma GCC unroll 4
            for (int i = 0; i < ATT_COLS; i++)
                acc[r][i] = v16_fma(w, v[i], acc[r][i]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int i = 0; i < ATT_COLS; i++)
            v16_store_n(q[r].out + d + i * LANES, acc[r][i], n - i * LANES);
}

/* Only registers in which the last row, which sees the most keys, sees one: at least the first. */
INLINE void score_rows(int R, float p[][KV_BLOCK], const struct query *q, const struct page *g)
{
    int cols = cols_of(keys_of(q + R - 1, g)), col = 0;

    do
        switch (ATT_COLS < cols - col ? ATT_COLS : cols - col) {
        case 4:
            score_cols(R, ATT_COLS, p, q, g, col);
            break;
        case 3:
            score_cols(R, ATT_COLS < 3 ? ATT_COLS : 3, p, q, g, col);
            break;
        case 2:
            score_cols(R, ATT_COLS < 2 ? ATT_COLS : 2, p, q, g, col);
            break;
        default:
            score_cols(R, 1, p, q, g, col);
        }
    while ((col += ATT_COLS) < cols);
}

INLINE void value_rows(int R, const struct query *q, const float p[][KV_BLOCK],
                       const float shrink[], const struct page *g, int j0, int j1)
{
    int d = 0;

    for (; d + ATT_COLS * LANES <= g->head_dim; d += ATT_COLS * LANES)
        value_cols(R, q, p, shrink, g, j0, j1, d, ATT_COLS * LANES);
    if (d < g->head_dim)
        value_cols(R, q, p, shrink, g, j0, j1, d, g->head_dim - d);
}

/* One page for R rows, all of which see at least its first key. Rows are in rising position. */
INLINE void page_rows(int R, struct query *q, const struct page *g)
{
    float p[ATT_ROWS][KV_BLOCK];
    float shrink[LANES] = {0};
    const float one = 1;
    int common = keys_of(q, g);

    score_rows(R, p, q, g);
    weigh_rows(R, p, q, g, shrink);
    value_rows(R, q, p, shrink, g, 0, common);
    for (int r = 1; r < R; r++)
        if (keys_of(q + r, g) > common)
            value_rows(1, q + r, p + r, &one, g, common, keys_of(q + r, g));
}

#define PAGE_ROWS(R)                                                 \
    static void page_rows_##R(struct query *q, const struct page *g) \
    {                                                                \
        page_rows(R, q, g);                                          \
    }

PAGE_ROWS(1)
PAGE_ROWS(2)
PAGE_ROWS(3)
PAGE_ROWS(4)
PAGE_ROWS(5)
PAGE_ROWS(6)

typedef void page_rows_fn(struct query *q, const struct page *g);

static page_rows_fn *const page_rows_of[ATT_ROWS] = {
    page_rows_1, page_rows_2, page_rows_3, page_rows_4, page_rows_5, page_rows_6,
};

/* One page for the rows of one tile. Where it lies across the page's border, its first rows see no
 * key of the page and take no part in it. */
static void page_tile(struct query *q, int n, const struct page *g)
{
    int skip = 0;

    while (skip < n && keys_of(q + skip, g) <= 0)
        skip++;
    if (skip < n)
        page_rows_of[n - skip - 1](q + skip, g);
}

/* All pages for n rows, every tile of them while a page is in the cache: with the tiles outside,
 * each would fetch all pages again. */
static void attend_rows(struct query *q, int n, int head_dim, const float *const *k_pages,
                        const float *const *v_pages, float scale)
{
    int last = q[n - 1].pos / KV_BLOCK;

    for (int b = 0; b <= last; b++) {
        struct page g = {.k = k_pages[b],
                         .v = v_pages[b],
                         .next = k_pages[b < last ? b + 1 : b],
                         .once = true,
                         .first = b * KV_BLOCK,
                         .head_dim = head_dim,
                         .scale = scale};

        for (int at = 0, m; at < n; at += m, g.once = false) {
            m = tile_rows(n - at, ATT_ROWS);
            page_tile(q + at, m, &g);
        }
    }
}

static void divide_by_sum(const struct query *q, int head_dim)
{
    for (int d = 0; d < head_dim; d += LANES) {
        v16 o = v16_load_n(q->out + d, head_dim - d);
        v16_store_n(q->out + d, v16_div(o, v16_set(q->sum)), head_dim - d);
    }
}

static void attention(float *out, int ldo, const float *q, int ldq, int rows, int pos0, int group,
                      int head_dim, const float *const *k_pages, const float *const *v_pages,
                      float scale, void *scratch)
{
    int total = rows * group;
    struct query block[BLOCK_ROWS];

    (void)scratch;
    for (int first = 0, n; first < total; first += n) {
        n = total - first < BLOCK_ROWS ? total - first : BLOCK_ROWS;
        for (int i = 0; i < n; i++) {
            ptrdiff_t r = (first + i) / group;
            ptrdiff_t head = (ptrdiff_t)((first + i) % group) * head_dim;

            block[i] = (struct query){.q = q + r * ldq + head,
                                      .out = out + r * ldo + head,
                                      .pos = pos0 + (int)r,
                                      .max = -INFINITY};
            memset(block[i].out, 0, (size_t)head_dim * sizeof *block[i].out);
        }
        attend_rows(block, n, head_dim, k_pages, v_pages, scale);
        for (int i = 0; i < n; i++)
            divide_by_sum(block + i, head_dim);
    }
}
