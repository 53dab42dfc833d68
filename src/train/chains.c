#include "train/chains.h"

enum {
    /* A block keeps a panel of B and its rows of A in the second cache; 256 rows, or 192 whose A is
     * copied, pay for copying the panel, 576 columns for copying A. */
    TALL = 256,
    NARROW = 384,
    WIDE = 576,
    FEW = 192,
    PAIRED = 516, /* rows where both are copied in pairs, which costs more */
    PANEL = 64,   /* columns that the kernels copy together */
    LEAST = 64,
    TILE = 6, /* rows of the kernels' tiles */
};

static const float one = 1;

static int blocks(int n, int size)
{
    return (n + size - 1) / size;
}

/* Blocks of nearly one size, at most a little over `most`. */
static int even_rows(int m, int most)
{
    int n = m > 0 ? blocks(m, most) : 1;

    return blocks(blocks(m, n), TILE) * TILE;
}

struct chain_target *chains_add(struct chains *s, float *c, ptrdiff_t ldc, int m, int n)
{
    struct chain_target *t = &s->target[s->n++];

    *t = (struct chain_target){.c = c,
                               .ldc = ldc,
                               .m = m,
                               .n = n,
                               .factor = 1,
                               .rows = even_rows(m, TALL),
                               .cols = NARROW};
    return t;
}

void chain_times(struct chain_target *t, const float *dy, ptrdiff_t ldy, const void *w,
                 enum kern_dtype dtype, ptrdiff_t ldw, int out)
{
    t->link[t->n_links++] = (struct chain_link){
        .a = dy, .a_row = ldy, .a_step = 1, .b = w, .b_dtype = dtype, .ldb = ldw, .steps = out};
}

void chain_outer(struct chain_target *t, const float *dy, ptrdiff_t ldy, const float *x,
                 ptrdiff_t ldx, int rows)
{
    t->rows = even_rows(t->m, FEW);
    t->cols = WIDE;
    t->link[t->n_links++] = (struct chain_link){
        .a = dy, .a_row = 1, .a_step = ldy, .b = x, .b_dtype = KERN_F32, .ldb = ldx, .steps = rows};
}

void chain_columns(struct chain_target *t, const float *dy, ptrdiff_t ldy, int rows)
{
    chain_outer(t, dy, ldy, &one, 0, rows);
    t->rows = TALL;
}

void chain_of_weights(struct chain_target *t, const struct kernels_back *k, enum kern_dtype weights,
                      const int *ends)
{
    struct chain_link *l = &t->link[t->n_links - 1];

    l->pairs = k->chain_pairs && weights == KERN_BF16;
    l->ends = ends;
    if (l->pairs) {
        t->rows = even_rows(t->m, PAIRED);
        t->cols = WIDE;
    }
}

static long steps_of(const struct chain_target *t)
{
    long steps = 0;

    for (int i = 0; i < t->n_links; i++)
        steps += t->link[i].steps;
    return steps;
}

static long products_of_item(const struct chain_target *t)
{
    return steps_of(t) * (t->rows < t->m ? t->rows : t->m) * (t->cols < t->n ? t->cols : t->n);
}

long chains_products(const struct chains *s)
{
    long n = 0;

    for (int i = 0; i < s->n; i++)
        n += steps_of(&s->target[i]) * s->target[i].m * s->target[i].n;
    return n;
}

void chains_limit(struct chains *s, long products)
{
    for (int i = 0; i < s->n; i++) {
        struct chain_target *t = &s->target[i];

        while (products_of_item(t) > products && t->rows > LEAST)
            t->rows = even_rows(t->rows, t->rows / 2);
        while (products_of_item(t) > products && t->cols > LEAST)
            t->cols = blocks(t->cols, 2 * PANEL) * PANEL;
    }
}

int chains_items(const struct chains *s)
{
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        const struct chain_target *t = &s->target[i];

        n += blocks(t->m, t->rows) * blocks(t->n, t->cols);
    }
    return n;
}

static void run_block(const struct chain_target *t, const struct kernels_back *k, int i, int j,
                      void *scratch)
{
    int m = t->m - i < t->rows ? t->m - i : t->rows;
    int n = t->n - j < t->cols ? t->n - j : t->cols;
    float *c = t->c + i * t->ldc + j;

    for (int l = 0; l < t->n_links; l++) {
        const struct chain_link *from = &t->link[l];
        struct chain p = {.c = c,
                          .ldc = t->ldc,
                          .a = from->a + i * from->a_row,
                          .a_row = from->a_row,
                          .a_step = from->a_step,
                          .b = (const char *)from->b + (size_t)j * kern_dtype_bytes(from->b_dtype),
                          .b_dtype = from->b_dtype,
                          .ldb = from->ldb,
                          .m = m,
                          .n = n,
                          .steps = from->steps,
                          .clear = t->clear && l == 0,
                          .ends = from->ends};

        if (from->pairs)
            k->chain_pairs(&p, scratch);
        else
            k->chain(&p, scratch);
    }
    for (int r = 0; t->factor != 1 && r < m; r++)
        k->scale(c + r * t->ldc, (size_t)n, t->factor);
}

void chains_item(const struct chains *s, const struct kernels_back *k, int item, void *scratch)
{
    const struct chain_target *t = s->target;

    for (;; t++) {
        int n = blocks(t->m, t->rows) * blocks(t->n, t->cols);

        if (item < n)
            break;
        item -= n;
    }
    run_block(t, k, item / blocks(t->n, t->cols) * t->rows, item % blocks(t->n, t->cols) * t->cols,
              scratch);
}
