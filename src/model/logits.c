/* model/logits.c - one item is one vocabulary block for up to 64 rows; blocks are then combined in
 * order. Where rows have an adapter with lm_head, A x is computed for all of them first; each block
 * then adds s (B (A x)) to its rows. */
#include "model/logits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cutter.h"
#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "model/adapter.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/step.h"

enum { BLOCK = 1024, TILE_ROWS = 64 };

/* What one block says about one row. */
struct part {
    float max;
    int32_t argmax;
    float sum;       /* of exp(x - max) */
    double centered; /* of exp(x - max) (x - max), where it is wanted */
    int n_top;
    bool finite;
};

struct logits {
    struct forward *f;
    int n_blocks;
    struct part *parts;     /* [TILE_ROWS][n_blocks] */
    struct logits_top *top; /* [TILE_ROWS][n_blocks][LOGITS_TOP_MAX] */
    float *y;               /* [workers][TILE_ROWS][BLOCK] */
    float *by;              /* the same: B (A x) */
    float *ax;              /* [TILE_ROWS][ADAPTER_RANK_MAX] */
    char *px;               /* rows of the tile, prepared */
    char *memory;
    size_t memory_bytes;
};

static size_t cut_all(struct logits *l, char *base)
{
    const struct forward *f = l->f;
    struct cutter c = {.base = base};
    size_t cells = (size_t)TILE_ROWS * (size_t)l->n_blocks;
    size_t tiles = (size_t)f->n_workers * TILE_ROWS * BLOCK;

    l->parts = cutter_take(&c, cells, sizeof *l->parts);
    l->top = cutter_take(&c, cells * LOGITS_TOP_MAX, sizeof *l->top);
    l->y = cutter_take(&c, tiles, sizeof *l->y);
    l->by = cutter_take(&c, tiles, sizeof *l->by);
    l->ax = cutter_rows(&c, 1, TILE_ROWS, ADAPTER_RANK_MAX);
    l->px = cutter_take(&c, 1, f->k->linear_x_bytes(TILE_ROWS, f->config.hidden));
    return c.used;
}

struct logits *logits_new(struct forward *f, struct err *e)
{
    struct logits *l = calloc(1, sizeof *l);
    void *map;

    if (!l)
        goto nomem;
    l->f = f;
    l->n_blocks = (f->config.vocab + BLOCK - 1) / BLOCK;
    l->memory_bytes = cut_all(l, NULL);
    map = mmap(NULL, l->memory_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        goto nomem;
    l->memory = map;
    cut_all(l, l->memory);
    return l;
nomem:
    err_nomem(e);
    free(l);
    return NULL;
}

void logits_free(struct logits *l)
{
    if (!l)
        return;
    munmap(l->memory, l->memory_bytes);
    free(l);
}

float logits_logprob(const struct logits_row *r, float x)
{
    return (float)((double)(x - r->max) - r->log_sum);
}

double logits_entropy(const struct logits_row *r)
{
    return r->log_sum - r->centered / r->sum;
}

/* ---- one row of one block ---- */

/* In rising order. An entry of -inf has no part in it. */
static double sum_centered(const float *x, int n, float max)
{
    double sum = 0;

    for (int i = 0; i < n; i++) {
        float e = kern_exp(x[i] - max);

        if (e > 0)
            sum += (double)e * (double)(x[i] - max);
    }
    return sum;
}

/* Keeps the best n, best first. Equal logits stay in the order in which they come. */
static int insert_top(struct logits_top *top, int have, int n, int32_t token, float x)
{
    int at = have < n ? have : n - 1;

    if (have == n && !(x > top[n - 1].logit))
        return have;
    while (at > 0 && x > top[at - 1].logit) {
        top[at] = top[at - 1];
        at--;
    }
    top[at] = (struct logits_top){token, x};
    return have < n ? have + 1 : n;
}

static void reduce_row(const struct kernels *k, const float *x, int first, int n,
                       struct logits_row *row, struct part *part, struct logits_top *top)
{
    int at = 0;

    part->finite = k->below_infinity(x, n);
    part->max = -INFINITY;
    part->sum = 0;
    part->n_top = 0;
    if (row->full)
        memcpy(row->full + first, x, (size_t)n * sizeof *x);
    if (row->target >= first && row->target < first + n)
        row->target_logit = x[row->target - first];
    if (!part->finite)
        return;
    k->block_max(x, n, &part->max, &at);
    part->argmax = first + at;
    if (part->max > -INFINITY)
        part->sum = k->block_sum_exp(x, n, part->max);
    part->centered = row->entropy && part->max > -INFINITY ? sum_centered(x, n, part->max) : 0;
    for (int i = 0; row->n_top > 0 && i < n; i++)
        part->n_top = insert_top(top, part->n_top, row->n_top, first + i, x[i]);
}

/* ---- one tile of rows ---- */

/* Neighbours of the tile whose adapter is the same. */
struct head_run {
    const struct lora *lora;
    int row, n;
};

struct tile {
    struct logits *l;
    const struct model *m;
    const float *hidden;
    const char *px;
    struct logits_row *rows;
    int n;
    struct head_run runs[TILE_ROWS];
    int n_runs;
};

static void find_runs(struct tile *t)
{
    for (int r = 0, end; r < t->n; r = end) {
        const struct adapter *a = t->rows[r].adapter;

        for (end = r + 1; end < t->n && t->rows[end].adapter == a; end++)
            ;
        if (a && a->head.a.n)
            t->runs[t->n_runs++] = (struct head_run){&a->head, r, end - r};
    }
}

static void run_item(void *arg, int item, int worker)
{
    const struct tile *t = arg;
    const struct head_run *run = &t->runs[item];
    const struct forward *f = t->l->f;
    int H = t->m->head.k;

    f->k->linear(t->l->ax + (size_t)run->row * ADAPTER_RANK_MAX, ADAPTER_RANK_MAX,
                 t->hidden + (size_t)run->row * (size_t)H, H, NULL, run->n, &run->lora->a, 0,
                 run->lora->a.n, NULL, false, f->worker[worker].linear, NULL);
}

/* y += s (B (A x)) for vocabulary entries [first, first + n). */
static void add_heads(const struct tile *t, float *y, int first, int n, int worker)
{
    const struct forward *f = t->l->f;
    float *by = t->l->by + (size_t)worker * TILE_ROWS * BLOCK;

    for (int i = 0; i < t->n_runs; i++) {
        const struct head_run *run = &t->runs[i];
        struct kern_matrix b = run->lora->b;

        b.w = (const float *)b.w + (size_t)first * (size_t)b.k;
        b.n = n;
        f->k->linear(by, BLOCK, t->l->ax + (size_t)run->row * ADAPTER_RANK_MAX, ADAPTER_RANK_MAX,
                     NULL, run->n, &b, 0, n, NULL, false, f->worker[worker].linear, NULL);
        for (int r = 0; r < run->n; r++) {
            float *to = y + (size_t)(run->row + r) * BLOCK;

            for (int j = 0; j < n; j++)
                to[j] = to[j] + run->lora->scale * by[(size_t)r * BLOCK + (size_t)j];
        }
    }
}

static void divide(float *x, int n, float temperature)
{
    if (temperature == 0 || temperature == 1)
        return;
    for (int i = 0; i < n; i++)
        x[i] = x[i] / temperature;
}

static void block_item(void *arg, int item, int worker)
{
    const struct tile *t = arg;
    struct logits *l = t->l;
    const struct forward *f = l->f;
    struct kern_matrix w = t->m->head;
    int first = item * BLOCK, n = w.n - first < BLOCK ? w.n - first : BLOCK;
    float *y = l->y + (size_t)worker * TILE_ROWS * BLOCK;
    size_t row_bytes = (size_t)w.k * kern_dtype_bytes(w.dtype);

    w.w = (const char *)w.w + (size_t)first * row_bytes;
    w.n = n;
    struct kern_ahead next = {.after = (const char *)w.w + (size_t)n * row_bytes};

    f->k->linear(y, BLOCK, t->hidden, w.k, t->px, t->n, &w, 0, n, NULL, false,
                 f->worker[worker].linear, item + 1 < l->n_blocks ? &next : NULL);
    add_heads(t, y, first, n, worker);
    for (int r = 0; r < t->n; r++) {
        size_t cell = (size_t)r * (size_t)l->n_blocks + (size_t)item;

        divide(y + (size_t)r * BLOCK, n, t->rows[r].temperature);
        reduce_row(f->k, y + (size_t)r * BLOCK, first, n, &t->rows[r], &l->parts[cell],
                   l->top + cell * LOGITS_TOP_MAX);
    }
}

/* Blocks in rising order: max, sum and best entries of the whole row. */
static void combine_row(const struct logits *l, int r, struct logits_row *row)
{
    const struct part *parts = l->parts + (size_t)r * (size_t)l->n_blocks;
    const struct logits_top *top = l->top + (size_t)r * (size_t)l->n_blocks * LOGITS_TOP_MAX;
    double sum = 0, centered = 0;
    int have = 0;

    row->finite = true;
    row->max = -INFINITY;
    row->argmax = 0;
    for (int b = 0; b < l->n_blocks; b++) {
        row->finite &= parts[b].finite;
        if (parts[b].max > row->max) {
            row->max = parts[b].max;
            row->argmax = parts[b].argmax;
        }
    }
    row->finite &= row->max > -INFINITY;
    if (!row->finite) {
        row->n_top = 0;
        return;
    }
    for (int b = 0; b < l->n_blocks; b++) {
        double scale = (double)kern_exp(parts[b].max - row->max);

        sum += (double)parts[b].sum * scale;
        if (row->entropy && scale > 0)
            centered += scale * (parts[b].centered +
                                 (double)parts[b].sum * (double)(parts[b].max - row->max));
        for (int i = 0; i < parts[b].n_top; i++) {
            const struct logits_top *from = &top[(size_t)b * LOGITS_TOP_MAX + (size_t)i];

            have = insert_top(row->top, have, row->n_top, from->token, from->logit);
        }
    }
    row->n_top = have;
    row->sum = sum;
    row->log_sum = log(sum);
    row->centered = centered;
}

static void run_tile(struct logits *l, const struct model *m, const float *hidden, int n,
                     struct logits_row *rows)
{
    const struct forward *f = l->f;
    struct tile t = {.l = l, .m = m, .hidden = hidden, .rows = rows, .n = n};

    if (kern_x_row_bytes(f->k, &m->head) > 0) {
        f->k->linear_x_prepare(l->px, hidden, m->head.k, 0, n, m->head.k);
        t.px = l->px;
    }
    find_runs(&t);
    if (t.n_runs > 0)
        pool_run(f->pool, run_item, &t, t.n_runs);
    pool_run_near(f->pool, block_item, &t, l->n_blocks);
    for (int r = 0; r < n; r++)
        combine_row(l, r, &rows[r]);
}

void logits_run(struct logits *l, const struct model *m, const float *hidden, int n,
                struct logits_row *rows)
{
    for (int at = 0; at < n; at += TILE_ROWS)
        run_tile(l, m, hidden + (size_t)at * (size_t)m->head.k,
                 n - at < TILE_ROWS ? n - at : TILE_ROWS, rows + at);
}
