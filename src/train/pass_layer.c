/* train/pass_layer.c - one layer backward: a list of operations, each a loop over items.
 *
 * In: dx, the gradient of the layer's output. Out: dx, the gradient of its input; the layer's
 * weight gradients have been added. The residual stream passes through: each half adds the gradient
 * of its branch to dx. docs/lessons/backward-pass.md derives every step. */
#include <string.h>

#include "model/adapter.h"
#include "model/model.h"
#include "train/pass_impl.h"

enum { COLUMNS = 64 }; /* of one item where columns are summed */

typedef bool op_fn(struct pass *p);

/* ---- the products of a phase: up to three matrices that read the same rows ---- */

struct part {
    const struct kern_matrix *w;
    const float *dy;
    int ldy;
    float *dw, *bias;
    enum projection which;
};

struct products {
    const float *x; /* [rows,k] */
    float *dx;      /* [rows,k] */
    int k;
    struct part part[3];
    int n;
};

static struct products products_in(const struct pass *p)
{
    const struct layer *l = layer_at_hand(p);
    const struct layer_grads *g = grads_at_hand(p);
    const struct arena_rows *a = &p->a;
    int q = model_q_width(&p->config), kv = model_kv_width(&p->config);
    struct products m = {.x = a->h, .dx = a->dh, .k = p->config.hidden, .n = 3};

    if (l->is_conv) {
        m.n = 1;
        m.part[0] = (struct part){&l->conv_in, a->dq,           3 * p->config.hidden,
                                  g->conv_in,  g->conv_in_bias, PROJ_CONV_IN};
        return m;
    }
    m.part[0] = (struct part){&l->q, l->q_norm ? a->d_mixed : a->dq, q, g->q, g->q_bias, PROJ_Q};
    m.part[1] = (struct part){
        &l->k, l->k_norm ? a->dk : a->dkv, l->k_norm ? kv : 2 * kv, g->k, g->k_bias, PROJ_K};
    m.part[2] = (struct part){&l->v, a->dkv + kv, 2 * kv, g->v, g->v_bias, PROJ_V};
    return m;
}

static struct products products_out(const struct pass *p)
{
    const struct layer *l = layer_at_hand(p);
    const struct layer_grads *g = grads_at_hand(p);
    const struct kern_matrix *w = l->is_conv ? &l->conv_out : &l->o;

    return (struct products){
        .x = rows_of_layer(p, p->back.layer, 0).mixed,
        .dx = p->a.d_mixed,
        .k = w->k,
        .part = {{w, p->a.dx, p->config.hidden, l->is_conv ? g->conv_out : g->o,
                  l->is_conv ? g->conv_out_bias : g->o_bias, l->is_conv ? PROJ_CONV_OUT : PROJ_O}},
        .n = 1};
}

static struct products products_gate(const struct pass *p)
{
    const struct layer *l = layer_at_hand(p);
    const struct layer_grads *g = grads_at_hand(p);

    return (struct products){
        .x = p->a.h,
        .dx = p->a.dh,
        .k = p->config.hidden,
        .part = {{&l->gate, p->a.d_act, p->config.ff, g->gate, g->gate_bias, PROJ_GATE},
                 {&l->up, p->a.act, p->config.ff, g->up, g->up_bias, PROJ_UP}},
        .n = 2};
}

static struct products products_down(const struct pass *p)
{
    const struct layer *l = layer_at_hand(p);
    const struct layer_grads *g = grads_at_hand(p);

    return (struct products){
        .x = p->a.act,
        .dx = p->a.d_act,
        .k = p->config.ff,
        .part = {{&l->down, p->a.dx, p->config.hidden, g->down, g->down_bias, PROJ_DOWN}},
        .n = 1};
}

static const struct lora *lora_of(const struct pass *p, const struct part *part)
{
    if (!p->job.adapter)
        return NULL;
    return adapter_lora(p->job.adapter, p->back.layer, layer_at_hand(p), part->w);
}

static float *lora_rows(const struct pass *p, float *base, int part)
{
    return base + (size_t)part * (size_t)p->plan.rows * (size_t)p->plan.rank;
}

/* ---- adapters: u = s A x, and du = s dy B ---- */

struct lora_rows {
    const struct pass *p;
    const struct products *m;
};

static void lora_item(void *arg, int item, int worker)
{
    const struct lora_rows *lr = arg;
    const struct pass *p = lr->p;
    int from = item * ROW_ITEM, n = end_of(item, ROW_ITEM, group_at_hand(p)->rows) - from;
    int rank = p->plan.rank, k = lr->m->k;
    const float *x = lr->m->x + (size_t)from * (size_t)k;
    const struct pass_scratch *w = &p->worker[worker];
    bool rounded = adapter_is_rounded(p->k, lr->m->part[0].w);

    if (rounded)
        p->k->linear_x_prepare(w->px, x, k, 0, n, k);
    for (int i = 0; i < lr->m->n; i++) {
        const struct lora *l = lora_of(p, &lr->m->part[i]);
        float *u = lora_rows(p, p->a.lora_u, i) + (size_t)from * (size_t)rank;

        if (!l)
            continue;
        struct kern_matrix a = adapter_factor(p->job.adapter, &l->a, rounded);

        p->k->linear(u, rank, x, k, rounded ? w->px : NULL, n, &a, 0, a.n, NULL, false, w->linear,
                     NULL);
        p->kb->scale(u, (size_t)n * (size_t)rank, l->scale);
    }
}

static bool run_lora_rows(struct pass *p, const struct products *m)
{
    struct lora_rows lr = {p, m};

    if (!p->job.adapter)
        return true;
    return back_items(p, lora_item, &lr, blocks_of(group_at_hand(p)->rows, ROW_ITEM));
}

static void add_lora_back(struct pass *p, const struct products *m)
{
    p->chains.n = 0;
    for (int i = 0; i < m->n; i++) {
        const struct part *part = &m->part[i];
        const struct lora *l = lora_of(p, part);
        struct chain_target *t;

        if (!l)
            continue;
        t = chains_add(&p->chains, lora_rows(p, p->a.lora_du, i), p->plan.rank,
                       group_at_hand(p)->rows, l->a.n);
        t->clear = true;
        t->factor = l->scale;
        chain_times(t, part->dy, part->ldy, l->b.w, KERN_F32, l->b.k, l->b.n);
        chain_of_weights(t, p->kb, part->w->dtype, NULL);
        t->rows = COLUMNS;
    }
}

static bool run_lora_back(struct pass *p, const struct products *m)
{
    if (!p->job.adapter)
        return true;
    if (p->back.item == 0)
        add_lora_back(p, m);
    return back_chains(p);
}

/* ---- dX, dW, biases, dA, dB ---- */

/* One chain over the outputs of all matrices, their adapters behind them. */
static void add_inputs(struct pass *p, const struct products *m)
{
    struct chain_target *t = chains_add(&p->chains, m->dx, m->k, group_at_hand(p)->rows, m->k);

    t->clear = true;
    for (int i = 0; i < m->n; i++) {
        const struct part *part = &m->part[i];

        chain_times(t, part->dy, part->ldy, part->w->w, part->w->dtype, part->w->k, part->w->n);
        chain_of_weights(t, p->kb, part->w->dtype, NULL);
    }
    for (int i = 0; i < m->n; i++) {
        const struct lora *l = lora_of(p, &m->part[i]);

        if (!l)
            continue;
        chain_times(t, lora_rows(p, p->a.lora_du, i), p->plan.rank, l->a.w, KERN_F32, l->a.k,
                    l->a.n);
        chain_of_weights(t, p->kb, m->part[i].w->dtype, NULL);
    }
}

static void add_lora(struct pass *p, const struct products *m, int i)
{
    const struct part *part = &m->part[i];
    const struct lora *l = lora_of(p, part);
    const struct lora_grad *g = &grads_at_hand(p)->lora[part->which];
    const float *u = lora_rows(p, p->a.lora_u, i), *du = lora_rows(p, p->a.lora_du, i);
    int rows = group_at_hand(p)->rows;
    struct chain_target *t;

    if (l && g->b) {
        t = chains_add(&p->chains, g->b, l->b.k, l->b.n, l->b.k);
        chain_outer(t, part->dy, part->ldy, u, p->plan.rank, rows);
        chain_of_weights(t, p->kb, part->w->dtype, p->ends);
    }
    if (l && g->a) {
        t = chains_add(&p->chains, g->a, l->a.k, l->a.n, l->a.k);
        chain_outer(t, du, p->plan.rank, m->x, m->k, rows);
        chain_of_weights(t, p->kb, part->w->dtype, p->ends);
    }
}

static void add_weight(struct pass *p, const struct products *m, const struct part *part)
{
    struct chain_target *t = chains_add(&p->chains, part->dw, m->k, part->w->n, m->k);

    chain_outer(t, part->dy, part->ldy, m->x, m->k, group_at_hand(p)->rows);
    chain_of_weights(t, p->kb, part->w->dtype, p->ends);
}

static bool run_products(struct pass *p, const struct products *m)
{
    int rows = group_at_hand(p)->rows;

    if (p->back.item == 0) {
        p->chains.n = 0; /* the smallest items last: workers end at nearly the same time */
        for (int i = 0; i < m->n; i++)
            if (m->part[i].dw)
                add_weight(p, m, &m->part[i]);
        add_inputs(p, m);
        for (int i = 0; i < m->n; i++) {
            const struct part *part = &m->part[i];

            if (part->bias)
                chain_columns(chains_add(&p->chains, part->bias, 1, part->w->n, 1), part->dy,
                              part->ldy, rows);
            add_lora(p, m, i);
        }
    }
    return back_chains(p);
}

#define PRODUCTS(name)                           \
    static bool name##_lora_rows(struct pass *p) \
    {                                            \
        struct products m = products_##name(p);  \
                                                 \
        return run_lora_rows(p, &m);             \
    }                                            \
    static bool name##_lora_back(struct pass *p) \
    {                                            \
        struct products m = products_##name(p);  \
                                                 \
        return run_lora_back(p, &m);             \
    }                                            \
    static bool name##_products(struct pass *p)  \
    {                                            \
        struct products m = products_##name(p);  \
                                                 \
        return run_products(p, &m);              \
    }

PRODUCTS(in)
PRODUCTS(out)
PRODUCTS(gate)
PRODUCTS(down)

/* ---- rows ---- */

static int row_items(const struct pass *p)
{
    return blocks_of(group_at_hand(p)->rows, ROW_ITEM);
}

static int rows_from(const struct pass *p, int item, size_t *from)
{
    *from = (size_t)item * ROW_ITEM;
    return end_of(item, ROW_ITEM, group_at_hand(p)->rows) - item * ROW_ITEM;
}

static void act_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    struct layer_rows r = rows_of_layer(p, p->back.layer, 0);
    size_t ff = (size_t)p->config.ff, from, n = (size_t)rows_from(p, item, &from);

    (void)worker;
    p->k->swiglu(p->a.act + from * ff, r.gate + from * ff, r.up + from * ff, n * ff);
}

static bool act(struct pass *p)
{
    return back_items(p, act_item, p, row_items(p));
}

/* d act becomes d gate, act becomes d up. */
static void swiglu_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    struct layer_rows r = rows_of_layer(p, p->back.layer, 0);
    size_t ff = (size_t)p->config.ff, from, n = (size_t)rows_from(p, item, &from);

    (void)worker;
    p->kb->swiglu(p->a.d_act + from * ff, p->a.act + from * ff, p->a.d_act + from * ff,
                  r.gate + from * ff, r.up + from * ff, n * ff);
}

static bool swiglu(struct pass *p)
{
    return back_items(p, swiglu_item, p, row_items(p));
}

/* ---- the two norms of the stream ---- */

struct stream_norm {
    const struct pass *p;
    const float *x; /* [rows,H] */
    const void *w;
    float *dw;
};

static struct stream_norm norm_of_half(const struct pass *p, bool ff)
{
    const struct layer *l = layer_at_hand(p);
    const struct layer_grads *g = grads_at_hand(p);
    struct layer_rows r = rows_of_layer(p, p->back.layer, 0);

    return (struct stream_norm){p, ff ? r.mid : r.x, ff ? l->norm_ff : l->norm_in,
                                ff ? g->norm_ff : g->norm_in};
}

static void norm_item(void *arg, int item, int worker)
{
    const struct stream_norm *s = arg;
    int H = s->p->config.hidden;
    size_t from;
    int n = rows_from(s->p, item, &from);

    (void)worker;
    s->p->k->rmsnorm(s->p->a.h + from * (size_t)H, H, s->x + from * (size_t)H, H, s->w,
                     s->p->job.model->dtype, n, H, s->p->config.norm_eps);
}

static void norm_back_item(void *arg, int item, int worker)
{
    const struct stream_norm *s = arg;
    const struct pass *p = s->p;
    int H = p->config.hidden;
    size_t from;
    int n = rows_from(p, item, &from);

    (void)worker;
    p->kb->rmsnorm(p->a.dx + from * (size_t)H, H, p->a.dh + from * (size_t)H, H,
                   s->x + from * (size_t)H, H, s->w, p->job.model->dtype, n, H, p->config.norm_eps,
                   p->a.r + from, true);
}

static void norm_weight_item(void *arg, int item, int worker)
{
    const struct stream_norm *s = arg;
    const struct pass *p = s->p;
    int H = p->config.hidden, c = item * COLUMNS;

    (void)worker;
    p->kb->rmsnorm_weight(s->dw + c, p->a.dh + c, H, s->x + c, H, p->a.r, group_at_hand(p)->rows,
                          end_of(item, COLUMNS, H) - c);
}

static bool run_norm(struct pass *p, bool ff)
{
    struct stream_norm s = norm_of_half(p, ff);

    return back_items(p, norm_item, &s, row_items(p));
}

static bool run_norm_back(struct pass *p, bool ff)
{
    struct stream_norm s = norm_of_half(p, ff);

    return back_items(p, norm_back_item, &s, row_items(p));
}

static bool run_norm_weight(struct pass *p, bool ff)
{
    struct stream_norm s = norm_of_half(p, ff);

    return !s.dw || back_items(p, norm_weight_item, &s, blocks_of(p->config.hidden, COLUMNS));
}

static bool norm_ff(struct pass *p)
{
    return run_norm(p, true);
}

static bool norm_ff_back(struct pass *p)
{
    return run_norm_back(p, true);
}

static bool norm_ff_weight(struct pass *p)
{
    return run_norm_weight(p, true);
}

static bool norm_in(struct pass *p)
{
    return run_norm(p, false);
}

static bool norm_in_back(struct pass *p)
{
    return run_norm_back(p, false);
}

static bool norm_in_weight(struct pass *p)
{
    return run_norm_weight(p, false);
}

/* ---- what looks at other positions ---- */

static bool attend_q(struct pass *p)
{
    if (layer_at_hand(p)->is_conv)
        return true;
    if (attend_whole_heads(p))
        return back_items(p, attend_head_item, p, attend_heads(p));
    return back_items(p, attend_q_item, p, attend_blocks(p));
}

static bool attend_kv(struct pass *p)
{
    return layer_at_hand(p)->is_conv || attend_whole_heads(p) ||
           back_items(p, attend_kv_item, p, attend_blocks(p));
}

static bool rotate(struct pass *p)
{
    return layer_at_hand(p)->is_conv || back_items(p, rotate_item, p, rotate_items(p));
}

static bool head_norm(struct pass *p)
{
    return layer_at_hand(p)->is_conv || !layer_at_hand(p)->q_norm ||
           back_items(p, head_norm_item, p, head_norm_items(p));
}

static bool convolve(struct pass *p)
{
    return !layer_at_hand(p)->is_conv || back_items(p, convolve_item, p, convolve_items(p));
}

/* ---- order ---- */

static op_fn *const ops[] = {
    act,
    down_lora_rows,
    down_lora_back,
    down_products,
    swiglu,
    norm_ff,
    gate_lora_rows,
    gate_lora_back,
    gate_products,
    norm_ff_back,
    norm_ff_weight,
    out_lora_rows,
    out_lora_back,
    out_products,
    attend_q,
    attend_kv,
    rotate,
    head_norm,
    convolve,
    norm_in,
    in_lora_rows,
    in_lora_back,
    in_products,
    norm_in_back,
    norm_in_weight,
};
_Static_assert(sizeof ops / sizeof *ops == LAYER_OPS, "each operation has a pace");

bool layer_step(struct pass *p)
{
    if (!ops[p->back.op](p))
        return false;
    p->back.op++;
    return p->back.op == LAYER_OPS;
}

/* ---- the embedding, after all groups: rows rising, so the order does not depend on groups ---- */

static void embed_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    size_t H = (size_t)p->config.hidden, c = (size_t)item * COLUMNS;
    size_t n = (size_t)end_of(item, COLUMNS, p->config.hidden) - c;

    (void)worker;
    for (int r = 0; r < p->rows; r++)
        p->k->add(p->grads->embed + (size_t)p->token[r] * H + c, p->d_embed + (size_t)r * H + c, n);
}

bool embed_step(struct pass *p)
{
    return !p->grads->embed || back_items(p, embed_item, p, blocks_of(p->config.hidden, COLUMNS));
}
