/* model/step_linear.c - one phase of matrix products, cut into items of (row tile, output range).
 */
#include <string.h>

#include "base/pool.h"
#include "model/model.h"
#include "model/step.h"

enum {
    /* A narrow step: one item a worker and phase, so that its prefetch streams run through and the
     * same core writes the same columns in every layer. (Eight rows of SmolLM2-135M: 14.6 ms a step
     * with three items a worker, none across two matrices; 13.4 with one.) Wide items even out what
     * a phase leaves at its end; so do narrow ones of matrices far larger than any cache. */
    NARROW_SLICE_BYTES = 16 * 1024 * 1024,
    NARROW_ITEMS = 1,
    PANEL = 16, /* output ranges are cut at multiples of this */
    WIDE_SLICE_MAX = 128,
    WIDE_ITEMS = 16, /* fewer would leave a worker idle at the end of a phase */
    PREPARE_ROWS = 16,
    LINE_FLOATS = 16, /* of a cache line */
};

/* A phase with its cuts. */
struct plan {
    const struct step *s;
    const struct linear_phase *p;
    const float *x; /* operand of a wide step, ready to read */
    int ldx;
    const char *px;  /* prepared rows or NULL */
    size_t px_row;   /* bytes of one prepared row; 0: the kernels read x itself */
    uint64_t number; /* of this phase */
    int tile_rows, n_tiles;
    int slice;    /* outputs of one item, of all matrices in a row */
    int n_items;  /* of one row tile */
    int start[4]; /* where each matrix begins in that row; [n_cut]: its end */
    int n_cut;    /* matrices that are cut: one of two for swiglu */
};

static int round_up(int v, int to)
{
    return (v + to - 1) / to * to;
}

static int clamp(long v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : (int)v;
}

/* ---- cuts ---- */

static void cut_tiles(struct plan *pl)
{
    const struct linear_phase *p = pl->p;
    int most;

    pl->n_tiles = 1;
    pl->tile_rows = p->rows;
    if (pl->s->narrow)
        return;
    most =
        clamp((long)(pl->s->f->tile_bytes / ((size_t)p->k * sizeof(float))), 48, FORWARD_ROWS_MAX);
    pl->n_tiles = (p->rows + most - 1) / most;
    pl->tile_rows = round_up((p->rows + pl->n_tiles - 1) / pl->n_tiles, 6);
    pl->n_tiles = (p->rows + pl->tile_rows - 1) / pl->tile_rows;
}

static void cut_outputs(struct plan *pl)
{
    const struct linear_phase *p = pl->p;
    size_t row_bytes = (size_t)p->k * kern_dtype_bytes(p->out[0].w->dtype) * (p->swiglu ? 2 : 1);
    long total, even;
    int most = WIDE_SLICE_MAX, items = pl->s->narrow ? NARROW_ITEMS : WIDE_ITEMS;

    pl->n_cut = p->swiglu ? 1 : p->n_out;
    pl->start[0] = 0;
    for (int i = 0; i < pl->n_cut; i++)
        pl->start[i + 1] = pl->start[i] + round_up(p->out[i].w->n, PANEL);
    total = pl->start[pl->n_cut];
    if (pl->s->narrow)
        most = round_up(clamp((long)(NARROW_SLICE_BYTES / row_bytes), 1, 1 << 20), PANEL);
    even = (total * pl->n_tiles + (long)items * pl->s->f->n_workers - 1) /
           ((long)items * pl->s->f->n_workers);
    pl->slice = clamp((even + PANEL - 1) / PANEL * PANEL, PANEL, most);
    pl->n_items = (int)((total + pl->slice - 1) / pl->slice);
}

/* ---- operand ---- */

static void prepare_rows(void *arg, int item, int worker)
{
    struct plan *pl = arg;
    const struct linear_phase *p = pl->p;
    struct forward *f = pl->s->f;
    int m0 = item * PREPARE_ROWS;
    int m1 = m0 + PREPARE_ROWS < p->rows ? m0 + PREPARE_ROWS : p->rows;

    (void)worker;
    if (p->norm)
        f->k->rmsnorm(f->norm + (size_t)m0 * (size_t)p->k, p->k, p->x + (size_t)m0 * (size_t)p->ldx,
                      p->ldx, p->norm, pl->s->m->dtype, m1 - m0, p->k, f->config.norm_eps);
    if (pl->px)
        f->k->linear_x_prepare(f->px, pl->x, pl->ldx, m0, m1, p->k);
}

/* Wide: a short phase of its own. Narrow: each worker does it for itself, see narrow_operand. */
static void plan_operand(struct plan *pl)
{
    struct forward *f = pl->s->f;
    const struct linear_phase *p = pl->p;

    pl->number = ++f->phase;
    pl->px_row = kern_x_row_bytes(f->k, p->out[0].w);
    pl->x = p->x;
    pl->ldx = p->ldx;
    if (pl->s->narrow)
        return;
    if (p->norm) {
        pl->x = f->norm;
        pl->ldx = p->k;
    }
    if (pl->px_row > 0)
        pl->px = f->px;
    if (p->norm || pl->px)
        pool_run(f->pool, prepare_rows, pl, (p->rows + PREPARE_ROWS - 1) / PREPARE_ROWS);
}

/* A narrow step is so short that the way of its rows from core to core shows. Lines that another
 * core wrote, and lines about to be written, are asked for together, long before they are used. */
static void fetch_rows(const float *x, int ldx, int rows, int n)
{
    for (int r = 0; r < rows; r++, x += ldx)
        for (int i = 0; i < n; i += LINE_FLOATS)
            __builtin_prefetch(x + i, 0, 3);
}

__attribute__((target("prfchw"))) static void claim_rows(float *y, int ldy, int rows, int n)
{
    for (int r = 0; r < rows; r++, y += ldy)
        for (int i = 0; i < n; i += LINE_FLOATS)
            __builtin_prefetch(y + i, 1, 3);
}

static struct operand narrow_operand(const struct plan *pl, struct worker_scratch *w)
{
    const struct linear_phase *p = pl->p;
    const struct kernels *k = pl->s->f->k;
    struct operand o = {.x = p->x, .ldx = p->ldx};
    bool fresh = w->operand != pl->number;

    w->operand = pl->number;
    if (fresh)
        fetch_rows(p->x, p->ldx, p->rows, p->k);
    if (p->norm) {
        o.x = w->norm;
        o.ldx = p->k;
        if (fresh)
            k->rmsnorm(w->norm, p->k, p->x, p->ldx, p->norm, pl->s->m->dtype, p->rows, p->k,
                       pl->s->f->config.norm_eps);
    }
    if (pl->px_row > 0) {
        o.px = w->px;
        if (fresh)
            k->linear_x_prepare(w->px, o.x, o.ldx, 0, p->rows, p->k);
    }
    return o;
}

/* ---- items ---- */

/* Outputs [n0, n1) of matrix `which` of the phase. */
struct piece {
    int which, n0, n1;
};

enum { PIECES_MAX = 3 };

/* What an item multiplies, in this order: of swiglu's two matrices the same outputs. */
static int cut_item(const struct plan *pl, int item, struct piece pieces[PIECES_MAX])
{
    const struct linear_phase *p = pl->p;
    int at = item % pl->n_items * pl->slice, n = 0;

    for (int i = 0; i < pl->n_cut; i++) {
        int n0 = at > pl->start[i] ? at - pl->start[i] : 0;
        int n1 = at + pl->slice - pl->start[i];

        n1 = n1 < p->out[i].w->n ? n1 : p->out[i].w->n;
        if (n0 < n1)
            pieces[n++] = (struct piece){i, n0, n1};
    }
    if (p->swiglu && n > 0)
        pieces[n++] = (struct piece){1, pieces[0].n0, pieces[0].n1};
    return n;
}

static const void *first_row(const struct plan *pl, const struct piece *c)
{
    const struct kern_matrix *w = pl->p->out[c->which].w;

    return (const char *)w->w + (size_t)c->n0 * (size_t)w->k * kern_dtype_bytes(w->dtype);
}

/* The weights that this worker reads first in the phase after this one, or NULL. */
static const void *next_phase(const struct plan *pl, int worker)
{
    const struct linear_phase *p = pl->p;
    struct linear_phase next;
    struct plan after = {.s = pl->s, .p = &next};
    struct piece pieces[PIECES_MAX];

    step_next_products(pl->s->m, p, &next);
    if (next.n_out == 0)
        return NULL;
    cut_tiles(&after);
    cut_outputs(&after);
    int item = pool_part(worker, pl->s->f->n_workers, after.n_items);

    return cut_item(&after, item, pieces) ? first_row(&after, &pieces[0]) : NULL;
}

/* Those it reads after this item: of its next one, or of the next phase. */
static const void *next_item(const struct plan *pl, int item, int worker)
{
    struct piece pieces[PIECES_MAX];

    if (item + 1 == pool_part(worker + 1, pl->s->f->n_workers, pl->n_items))
        return next_phase(pl, worker);
    return cut_item(pl, item + 1, pieces) ? first_row(pl, &pieces[0]) : NULL;
}

static void multiply(const struct plan *pl, const struct piece *c, const struct operand *o, int row,
                     int rows, struct worker_scratch *w, struct kern_ahead *ahead)
{
    const struct linear_out *out = &pl->p->out[c->which];

    if (pl->s->narrow)
        claim_rows(out->y + c->n0, out->ldy, rows, c->n1 - c->n0);
    pl->s->f->k->linear(out->y + (size_t)row * (size_t)out->ldy, out->ldy, o->x, o->ldx, o->px,
                        rows, out->w, c->n0, c->n1, out->bias, pl->p->accumulate, w->linear, ahead);
}

static void gate_rows(const struct plan *pl, int row, int rows, int n0, int n1)
{
    const struct linear_out *gate = &pl->p->out[0], *up = &pl->p->out[1];

    for (int r = row; r < row + rows; r++) {
        float *g = gate->y + (size_t)r * (size_t)gate->ldy + n0;

        pl->s->f->k->swiglu(g, g, up->y + (size_t)r * (size_t)up->ldy + n0, (size_t)(n1 - n0));
    }
}

static void linear_item(void *arg, int item, int worker)
{
    const struct plan *pl = arg;
    const struct linear_phase *p = pl->p;
    struct worker_scratch *w = &pl->s->f->worker[worker];
    int row = item / pl->n_items * pl->tile_rows;
    int rows = p->rows - row < pl->tile_rows ? p->rows - row : pl->tile_rows;
    struct operand o = {.x = pl->x + (size_t)row * (size_t)pl->ldx, .ldx = pl->ldx};
    struct kern_ahead *ahead = NULL;
    struct piece pieces[PIECES_MAX];
    int n = cut_item(pl, item, pieces);

    if (pl->s->narrow) {
        o = narrow_operand(pl, w);
        ahead = step_ahead(pl->s, w, p);
    } else if (pl->px) {
        o.px = pl->px + (size_t)row * pl->px_row;
    }
    for (int i = 0; i < n; i++) {
        if (ahead)
            ahead->after = i + 1 < n ? first_row(pl, &pieces[i + 1]) : next_item(pl, item, worker);
        multiply(pl, &pieces[i], &o, row, rows, w, ahead);
    }
    if (p->swiglu && n > 0)
        gate_rows(pl, row, rows, pieces[0].n0, pieces[0].n1);
}

void step_linear(const struct step *s, const struct linear_phase *p)
{
    struct plan pl = {.s = s, .p = p};

    if (p->rows == 0)
        return;
    plan_operand(&pl);
    cut_tiles(&pl);
    cut_outputs(&pl);
    if (s->narrow)
        pool_run_near(s->f->pool, linear_item, &pl, pl.n_items);
    else
        pool_run(s->f->pool, linear_item, &pl, pl.n_tiles * pl.n_items);
}
