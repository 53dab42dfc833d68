/* model/step_mix.c - the parts of a layer that look at other positions. */
#include <math.h>

#include "base/pool.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/step.h"

enum { CONV_CHANNELS = 256 }; /* channels of one item */

struct mix {
    const struct step *s;
    const struct layer *l;
    const struct row_run *runs;
    int n_runs;
    bool store;
    int per_run; /* items of one run: heads x tiles, or channel ranges */
    int tile_rows;
    int n_tiles; /* tiles of the longest run */
};

static int longest(const struct row_run *runs, int n_runs)
{
    int n = 0;

    for (int i = 0; i < n_runs; i++)
        n = runs[i].n > n ? runs[i].n : n;
    return n;
}

/* Normed (where the family does) and rotated in place: `n` heads of one row at position pos. */
static void place_heads(const struct step *s, float *x, int n, const void *norm, int pos)
{
    const struct forward *f = s->f;
    int hd = f->config.head_dim;
    size_t at = (size_t)pos * (size_t)f->rope.half;

    if (norm)
        f->k->rmsnorm(x, hd, x, hd, norm, s->m->dtype, n, hd, f->config.norm_eps);
    f->k->rope(x, n, hd, f->rope.cos + at, f->rope.sin + at);
}

/* Rows [from, to) of a run, one KV head. */
static void store_rows(const struct step *s, const struct layer *l, const struct row_run *run,
                       int head, int from, int to)
{
    const struct forward *f = s->f;
    int hd = f->config.head_dim, width = model_kv_width(&f->config);

    for (int r = from; r < to; r++) {
        float *k = f->kv + (size_t)(run->row + r) * 2 * (size_t)width + (size_t)(head * hd);
        int pos = run->pos0 + r, block = pos / KV_BLOCK;

        place_heads(s, k, 1, l->k_norm, pos);
        f->k->kv_store(kv_seq_k_page(run->seq, block, l->cache_index, head),
                       kv_seq_v_page(run->seq, block, l->cache_index, head), pos % KV_BLOCK, k,
                       k + width, hd);
    }
}

static void store_item(void *arg, int item, int worker)
{
    const struct mix *mix = arg;
    const struct row_run *run = &mix->runs[item / mix->per_run];
    int tile = item % mix->per_run % mix->n_tiles, head = item % mix->per_run / mix->n_tiles;
    int from = tile * mix->tile_rows;
    int to = from + mix->tile_rows < run->n ? from + mix->tile_rows : run->n;

    (void)worker;
    store_rows(mix->s, mix->l, run, head, from, to);
}

static void run_heads(struct mix *mix, pool_fn *fn)
{
    mix->tile_rows = mix->s->narrow ? NARROW_ATTEND_ROWS : ATTEND_ROWS;
    mix->n_tiles = (longest(mix->runs, mix->n_runs) + mix->tile_rows - 1) / mix->tile_rows;
    mix->per_run = mix->n_tiles * mix->s->f->config.n_kv_heads;
    pool_run_near(mix->s->f->pool, fn, mix, mix->per_run * mix->n_runs);
}

void step_store_kv(const struct step *s, const struct layer *l)
{
    struct mix mix = {.s = s, .l = l, .runs = s->spans, .n_runs = s->n_spans};

    run_heads(&mix, store_item);
}

static void gather_pages(const struct mix *mix, struct worker_scratch *w, const struct row_run *run,
                         int head, int last_pos)
{
    for (int b = 0; b <= last_pos / KV_BLOCK; b++) {
        w->k_pages[b] = kv_seq_k_page(run->seq, b, mix->l->cache_index, head);
        w->v_pages[b] = kv_seq_v_page(run->seq, b, mix->l->cache_index, head);
    }
}

/* The rows of a prompt are the last run and its late tiles see the most keys: they come first, so
 * that no long item is left to the end. */
static void attend_item(void *arg, int item, int worker)
{
    const struct mix *mix = arg;
    const struct forward *f = mix->s->f;
    const struct model_config *c = &f->config;
    const struct row_run *run = &mix->runs[mix->n_runs - 1 - item / mix->per_run];
    int tile = mix->n_tiles - 1 - item % mix->per_run / c->n_kv_heads;
    int head = item % mix->per_run % c->n_kv_heads;
    int from = tile * mix->tile_rows, group = c->n_heads / c->n_kv_heads, ldq = model_q_width(c);
    int rows = run->n - from < mix->tile_rows ? run->n - from : mix->tile_rows;
    struct worker_scratch *w = &f->worker[worker];
    size_t at = (size_t)(run->row + from) * (size_t)ldq + (size_t)(head * group * c->head_dim);

    if (rows <= 0)
        return;
    if (mix->store)
        store_rows(mix->s, mix->l, run, head, 0, run->n);
    for (int r = 0; r < rows; r++)
        place_heads(mix->s, f->q + at + (size_t)r * (size_t)ldq, group, mix->l->q_norm,
                    run->pos0 + from + r);
    gather_pages(mix, w, run, head, run->pos0 + from + rows - 1);
    f->k->attention(f->mixed + at, ldq, f->q + at, ldq, rows, run->pos0 + from, group, c->head_dim,
                    w->k_pages, w->v_pages, 1.0f / sqrtf((float)c->head_dim), w->attention);
}

void step_attend(const struct step *s, const struct layer *l, const struct row_run *runs,
                 int n_runs, bool store)
{
    struct mix mix = {.s = s, .l = l, .runs = runs, .n_runs = n_runs, .store = store};

    run_heads(&mix, attend_item);
}

static void convolve_item(void *arg, int item, int worker)
{
    const struct mix *mix = arg;
    const struct forward *f = mix->s->f;
    const struct row_run *run = &mix->runs[item / mix->per_run];
    int H = f->config.hidden, c0 = item % mix->per_run * CONV_CHANNELS;
    int c1 = c0 + CONV_CHANNELS < H ? c0 + CONV_CHANNELS : H;

    (void)worker;
    f->k->short_conv(f->mixed + (size_t)run->row * (size_t)H, H,
                     f->q + (size_t)run->row * 3 * (size_t)H, 3 * H, run->n, H, f->config.conv_taps,
                     mix->l->conv_taps, mix->s->m->dtype, mix->l->conv_bias,
                     kv_seq_conv_state(run->seq, mix->l->cache_index), c0, c1);
}

void step_convolve(const struct step *s, const struct layer *l)
{
    struct mix mix = {.s = s, .l = l, .runs = s->spans, .n_runs = s->n_spans};

    mix.per_run = (s->f->config.hidden + CONV_CHANNELS - 1) / CONV_CHANNELS;
    pool_run(s->f->pool, convolve_item, &mix, mix.per_run * mix.n_runs);
}
