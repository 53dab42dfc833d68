/* model/step_ahead.c - what a worker of a narrow step asks for while it multiplies.
 *
 * A step of many sequences is bound by arithmetic in its products and by memory in its attention:
 * while the products run, keys and values of the next attention come. (32 sequences of SmolLM2-135M
 * at 100 positions: 52.2 ms a step without, 48.8 with.) And no phase begins with weights that
 * nobody has asked for. */
#include "base/pool.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/step.h"

enum {
    LEAST_ROWS = 7, /* fewer run as one tile: their products are bound by memory themselves */
    BYTES_AHEAD = 12 << 20, /* more would leave the caches before it is read */
};

static void add_page(struct step *s, const float *from, size_t floats, size_t *bytes)
{
    struct kern_range r = {from, floats * sizeof *from};

    if (s->n_pages == PAGES_AHEAD || *bytes + r.bytes > BYTES_AHEAD)
        return;
    *bytes += r.bytes;
    s->f->pages[s->n_pages++] = r;
}

/* The last page of keys is asked for whole: its positions lie apart. */
static void add_pages(struct step *s, const struct row_run *r, int head, size_t *bytes)
{
    size_t hd = (size_t)s->f->config.head_dim;

    for (int at = 0, b = 0; at < r->pos0; at += KV_BLOCK, b++) {
        int n = r->pos0 - at < KV_BLOCK ? r->pos0 - at : KV_BLOCK;

        add_page(s, kv_seq_k_page(r->seq, b, 0, head), hd * KV_BLOCK, bytes);
        add_page(s, kv_seq_v_page(r->seq, b, 0, head), hd * (size_t)n, bytes);
    }
}

/* The tiles of one head of a run read the same pages: the first of them counts. */
void step_list_pages(struct step *s)
{
    const struct model_config *c = &s->f->config;
    int heads = c->n_kv_heads, W = s->f->n_workers, worker = 0;
    size_t bytes = 0;

    s->f->steps++;
    if (s->rows < LEAST_ROWS || c->n_layers == c->n_conv_layers)
        return;
    for (int i = 0; i < s->n_spans; i++)
        for (int h = 0; h < heads; h++) {
            while (worker < W && i * heads + h >= pool_part(worker, W, s->n_spans * heads))
                s->f->worker[worker++].first_page = s->n_pages;
            add_pages(s, &s->spans[s->n_spans - 1 - i], h, &bytes);
        }
    while (worker < W)
        s->f->worker[worker++].first_page = s->n_pages;
    for (int w = 0; w < W; w++)
        s->f->worker[w].end_page = w + 1 < W ? s->f->worker[w + 1].first_page : s->n_pages;
}

static const struct layer *next_attention(const struct model *m, const struct layer *l)
{
    const struct layer *end = m->layers + m->config.n_layers;

    while (l < end && l->is_conv)
        l++;
    return l < end ? l : NULL;
}

static void begin(const struct step *s, struct worker_scratch *w, const struct layer *l)
{
    const struct kv_seq *seq = s->spans[0].seq;
    struct kern_ahead none = {0};

    w->ahead = none;
    if (!l || s->n_pages == 0)
        return;
    w->ahead.ranges = s->f->pages;
    w->ahead.next = w->first_page;
    w->ahead.n = w->end_page;
    w->ahead.offset = (size_t)((const char *)kv_seq_k_page(seq, 0, l->cache_index, 0) -
                               (const char *)kv_seq_k_page(seq, 0, 0, 0));
}

struct kern_ahead *step_ahead(const struct step *s, struct worker_scratch *w,
                              const struct linear_phase *p)
{
    const struct layer *l = p->layer;
    const struct layer *next = next_attention(s->m, p->norm == l->norm_in ? l : l + 1);
    uint64_t of = s->f->steps * (MODEL_LAYERS_MAX + 1) +
                  (next ? (uint64_t)(next - s->m->layers) : MODEL_LAYERS_MAX);

    if (w->ahead_of != of || s->n_pages == 0)
        begin(s, w, next);
    w->ahead_of = of;
    return &w->ahead;
}

static void add_product(struct linear_phase *p, const struct kern_matrix *w)
{
    p->out[p->n_out++].w = w;
    p->k = w->k;
}

static void add_first_products(struct linear_phase *p, const struct layer *l)
{
    if (l->is_conv) {
        add_product(p, &l->conv_in);
        return;
    }
    add_product(p, &l->k);
    add_product(p, &l->v);
    add_product(p, &l->q);
}

void step_next_products(const struct model *m, const struct linear_phase *p,
                        struct linear_phase *next)
{
    const struct layer *l = p->layer;
    const struct kern_matrix *w = p->out[0].w;

    *next = (struct linear_phase){.rows = p->rows};
    if (w == &l->k || w == &l->q) {
        add_product(next, &l->o);
    } else if (w == &l->conv_in) {
        add_product(next, &l->conv_out);
    } else if (w == &l->o || w == &l->conv_out) {
        add_product(next, &l->gate);
        add_product(next, &l->up);
        next->swiglu = true;
    } else if (w == &l->gate) {
        add_product(next, &l->down);
    } else if (l + 1 < m->layers + m->config.n_layers) {
        add_first_products(next, l + 1);
    }
}
