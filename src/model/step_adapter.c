/* model/step_adapter.c - a phase of matrix products whose rows may have adapters:
 * y = (W x) + s (B (A x)), then what the phase does with y.
 *
 * Without an adapter in the step this is step_linear. With one, products, updates and the end of
 * the phase (residual, gate) are parts of their own; each does to a row what step_linear would, so
 * rows without an adapter keep their bits. Updates are cut into items of up to NARROW_ROWS rows of
 * one adapter and one matrix; A and B are rounded where the kernels round a product's weights. */
#include <string.h>

#include "base/pool.h"
#include "model/adapter.h"
#include "model/model.h"
#include "model/step.h"

enum {
    ROW_ITEM = 16,
    SCALED = 16,
    ITEMS_MAX = 3 * (FORWARD_ROWS_MAX + 1),
};

/* Rows of one adapter in the buffers of a phase. */
struct block {
    const struct adapter *adapter;
    const struct lora *lora;
    const struct linear_out *out;
    int row, n;
};

struct updates {
    const struct step *s;
    const struct linear_phase *p;
    struct block block[ITEMS_MAX];
    int n;
};

/* ---- updates ---- */

/* y + (s x), two roundings. Blocks of a fixed length become vectors. */
static void add_scaled(float *restrict y, const float *restrict x, float s, int n)
{
    int i = 0;

    for (; i + SCALED <= n; i += SCALED)
        for (int l = 0; l < SCALED; l++)
            y[i + l] = y[i + l] + s * x[i + l];
    for (; i < n; i++)
        y[i] = y[i] + s * x[i];
}

/* The rows of a block as A reads them. The items of one block, a matrix each, follow one another:
 * what the first of a worker's has made lies in its scratch for the others. */
static struct operand rows_of(const struct updates *u, const struct block *b,
                              struct worker_scratch *w, bool rounded)
{
    const struct linear_phase *p = u->p;
    const struct forward *f = u->s->f;
    struct operand o = {.x = p->x + (size_t)b->row * (size_t)p->ldx, .ldx = p->ldx};
    bool fresh = w->lora_phase != f->phase || w->lora_row != b->row;

    w->lora_phase = f->phase;
    w->lora_row = b->row;
    if (p->norm && fresh)
        f->k->rmsnorm(w->lora_x, p->k, o.x, p->ldx, p->norm, u->s->m->dtype, b->n, p->k,
                      f->config.norm_eps);
    if (p->norm) {
        o.x = w->lora_x;
        o.ldx = p->k;
    }
    if (!rounded)
        return o;
    if (fresh)
        f->k->linear_x_prepare(w->px, o.x, o.ldx, 0, b->n, p->k);
    o.px = w->px;
    return o;
}

static void update_item(void *arg, int item, int worker)
{
    const struct updates *u = arg;
    const struct block *b = &u->block[item];
    const struct kernels *k = u->s->f->k;
    struct worker_scratch *w = &u->s->f->worker[worker];
    bool rounded = adapter_is_rounded(k, b->out->w);
    struct kern_matrix ma = adapter_factor(b->adapter, &b->lora->a, rounded);
    struct kern_matrix mb = adapter_factor(b->adapter, &b->lora->b, rounded);
    struct operand x = rows_of(u, b, w, rounded);

    k->linear(w->lora_a, ma.n, x.x, x.ldx, x.px, b->n, &ma, 0, ma.n, NULL, false, w->linear, NULL);
    if (rounded)
        k->linear_x_prepare(w->lora_px, w->lora_a, mb.k, 0, b->n, mb.k);
    k->linear(w->lora_b, mb.n, w->lora_a, mb.k, rounded ? w->lora_px : NULL, b->n, &mb, 0, mb.n,
              NULL, false, w->linear, NULL);
    for (int i = 0; i < b->n; i++)
        add_scaled(b->out->y + (size_t)(b->row + i) * (size_t)b->out->ldy,
                   w->lora_b + (size_t)i * (size_t)mb.n, b->lora->scale, mb.n);
}

static void add_blocks(struct updates *u, const struct adapter *a, int row, int n)
{
    const struct linear_phase *p = u->p;

    for (int i = 0; i < p->n_out; i++) {
        const struct lora *lora = adapter_lora(a, p->layer_index, p->layer, p->out[i].w);

        for (int at = 0; lora && at < n; at += NARROW_ROWS)
            u->block[u->n++] = (struct block){a, lora, &p->out[i], row + at,
                                              n - at < NARROW_ROWS ? n - at : NARROW_ROWS};
    }
}

/* Neighbours with one adapter are done together: A and B are read once for them. */
static void update(const struct step *s, const struct linear_phase *p)
{
    struct updates u = {.s = s, .p = p, .n = 0};

    for (int i = 0; i < p->n_runs;) {
        const struct adapter *a = p->runs[i].adapter;
        int row = p->runs[i].row, end = row;

        for (; i < p->n_runs && p->runs[i].adapter == a && p->runs[i].row == end; i++)
            end += p->runs[i].n;
        if (a)
            add_blocks(&u, a, row, end - row);
    }
    if (u.n > 0)
        pool_run_near(s->f->pool, update_item, &u, u.n);
}

/* ---- the end of a phase ---- */

struct finish {
    const struct step *s;
    const struct linear_phase *p;
    const float *y; /* accumulate: [rows,n], dense */
};

static void finish_item(void *arg, int item, int worker)
{
    const struct finish *fin = arg;
    const struct linear_phase *p = fin->p;
    const struct linear_out *to = &p->out[0];
    size_t n = (size_t)to->w->n;

    (void)worker;
    for (int r = item * ROW_ITEM; r < (item + 1) * ROW_ITEM && r < p->rows; r++) {
        float *y = to->y + (size_t)r * (size_t)to->ldy;

        if (p->swiglu)
            fin->s->f->k->swiglu(y, y, p->out[1].y + (size_t)r * (size_t)p->out[1].ldy, n);
        else
            fin->s->f->k->add(y, fin->y + (size_t)r * n, n);
    }
}

static void run_parts(const struct step *s, const struct linear_phase *p)
{
    struct linear_phase plain = *p;
    struct finish fin = {.s = s, .p = p};

    plain.accumulate = plain.swiglu = false;
    if (p->accumulate) { /* such a phase has no norm, so the buffer of normed rows is free */
        plain.out[0].y = s->f->norm;
        plain.out[0].ldy = p->out[0].w->n;
        fin.y = s->f->norm;
    }
    step_linear(s, &plain);
    update(s, &plain);
    if (p->accumulate || p->swiglu)
        pool_run(s->f->pool, finish_item, &fin, (p->rows + ROW_ITEM - 1) / ROW_ITEM);
}

void step_project(const struct step *s, const struct linear_phase *p)
{
    bool adapted = false;

    for (int i = 0; i < p->n_runs && !adapted; i++)
        adapted = p->runs[i].adapter != NULL;
    if (adapted && p->rows > 0)
        run_parts(s, p);
    else
        step_linear(s, p);
}
