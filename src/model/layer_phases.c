/* model/layer_phases.c - the phases of step.h, with the buffers of a step replaced by those that
 * keep what they get. */
#include "model/layer_phases.h"

#include <string.h>

#include "base/pool.h"
#include "model/model.h"
#include "model/step.h"

enum { ROW_ITEM = 16 };

int layer_phases_reserve(struct forward *f, int n, struct err *e)
{
    return rope_table_grow(&f->rope, n, e);
}

void layer_phases_rope(const struct forward *f, int pos, const float **cos, const float **sin)
{
    *cos = f->rope.cos + (size_t)pos * (size_t)f->rope.half;
    *sin = f->rope.sin + (size_t)pos * (size_t)f->rope.half;
}

/* A phase over all rows of the layer, everything else zero. */
static struct linear_phase phase_of(const struct step *s, const struct layer *l, const float *x,
                                    int k)
{
    return (struct linear_phase){.x = x,
                                 .ldx = k,
                                 .k = k,
                                 .rows = s->rows,
                                 .layer = l,
                                 .layer_index = (int)(l - s->m->layers),
                                 .runs = s->spans,
                                 .n_runs = s->n_spans};
}

static void copy_rows(const struct step *s, float *to, int ld_to, const float *from, int ld_from,
                      int n)
{
    if (ld_to == n && ld_from == n) {
        pool_memcpy(s->f->pool, to, from, (size_t)s->rows * (size_t)n * sizeof *to);
        return;
    }
    for (size_t r = 0; r < (size_t)s->rows; r++)
        memcpy(to + r * (size_t)ld_to, from + r * (size_t)ld_from, (size_t)n * sizeof *to);
}

static void project(const struct step *s, const struct layer *l, const struct layer_rows *r)
{
    const struct model_config *c = &s->f->config;
    int H = c->hidden, kv = model_kv_width(c), q = model_q_width(c);
    struct linear_phase p = phase_of(s, l, r->x, H);

    p.norm = l->norm_in;
    if (l->is_conv) {
        p.out[0] = (struct linear_out){&l->conv_in, l->conv_in_bias, r->q, 3 * H};
        p.n_out = 1;
        step_project(s, &p);
        return;
    }
    p.out[0] = (struct linear_out){&l->k, l->k_bias, r->kv, 2 * kv};
    p.out[1] = (struct linear_out){&l->v, l->v_bias, r->kv + kv, 2 * kv};
    p.out[2] = (struct linear_out){&l->q, l->q_bias, r->q, q};
    p.n_out = 3;
    step_project(s, &p);
    if (l->q_norm) {
        copy_rows(s, r->q_raw, q, r->q, q, q);
        copy_rows(s, r->k_raw, kv, r->kv, 2 * kv, kv);
    }
}

static void mix(const struct step *s, const struct layer *l)
{
    if (l->is_conv)
        step_convolve(s, l);
    else
        step_attend(s, l, s->spans, s->n_spans, false);
}

static void project_out(const struct step *s, const struct layer *l, const struct layer_rows *r)
{
    int H = s->f->config.hidden;
    const struct kern_matrix *w = l->is_conv ? &l->conv_out : &l->o;
    struct linear_phase p = phase_of(s, l, r->mixed, w->k);

    copy_rows(s, r->mid, H, r->x, H, H);
    p.out[0] = (struct linear_out){w, l->is_conv ? l->conv_out_bias : l->o_bias, r->mid, H};
    p.n_out = 1;
    p.accumulate = true;
    step_project(s, &p);
}

static void project_gate(const struct step *s, const struct layer *l, const struct layer_rows *r)
{
    int ff = s->f->config.ff;
    struct linear_phase p = phase_of(s, l, r->mid, s->f->config.hidden);

    p.norm = l->norm_ff;
    p.out[0] = (struct linear_out){&l->gate, l->gate_bias, r->gate, ff};
    p.out[1] = (struct linear_out){&l->up, l->up_bias, r->up, ff};
    p.n_out = 2;
    step_project(s, &p);
}

struct activation {
    const struct step *s;
    const struct layer_rows *r;
    float *to;
};

static void activate_item(void *arg, int item, int worker)
{
    const struct activation *a = arg;
    size_t ff = (size_t)a->s->f->config.ff, at = (size_t)item * ROW_ITEM * ff;
    int left = a->s->rows - item * ROW_ITEM;

    (void)worker;
    a->s->f->k->swiglu(a->to + at, a->r->gate + at, a->r->up + at,
                       (size_t)(left < ROW_ITEM ? left : ROW_ITEM) * ff);
}

static void project_down(const struct step *s, const struct layer *l, const struct layer_rows *r)
{
    int H = s->f->config.hidden, ff = s->f->config.ff;
    struct linear_phase p = phase_of(s, l, s->f->gate, ff);
    struct activation a = {s, r, s->f->gate};

    pool_run(s->f->pool, activate_item, &a, (s->rows + ROW_ITEM - 1) / ROW_ITEM);
    copy_rows(s, r->out, H, r->mid, H, H);
    p.out[0] = (struct linear_out){&l->down, l->down_bias, r->out, H};
    p.n_out = 1;
    p.accumulate = true;
    step_project(s, &p);
}

void layer_phase_run(struct forward *f, const struct model *m, int layer, enum layer_phase phase,
                     const struct row_run *runs, int n_runs, int rows, const struct layer_rows *r)
{
    const struct layer *l = &m->layers[layer];
    struct forward kept = *f; /* the same object, but for the buffers that r replaces */
    struct step s = {.f = &kept, .m = m, .rows = rows, .spans = runs, .n_spans = n_runs};

    kept.q = r->q;
    kept.kv = r->kv;
    kept.mixed = r->mixed;
    s.narrow = rows <= NARROW_ROWS;
    if (phase == LAYER_PROJECT)
        project(&s, l, r);
    else if (phase == LAYER_STORE && !l->is_conv)
        step_store_kv(&s, l);
    else if (phase == LAYER_MIX)
        mix(&s, l);
    else if (phase == LAYER_OUT)
        project_out(&s, l, r);
    else if (phase == LAYER_GATE)
        project_gate(&s, l, r);
    else if (phase == LAYER_DOWN)
        project_down(&s, l, r);
    f->phase = kept.phase;
}
