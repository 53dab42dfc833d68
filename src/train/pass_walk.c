/* train/pass_walk.c - a group goes forward in chunks of rows, phase by phase. Where it will go
 * back, the inputs of every layer are kept, and all chunks pass a layer before the next one: keys
 * and values of one layer are enough. Else a chunk passes all layers before the next chunk. */
#include <math.h>
#include <string.h>

#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "train/pass_impl.h"

enum {
    CHUNK_LEAST = 32,
    /* Of a phase, for each unit of a slice's work: it takes about a quarter of the slice. */
    PHASE_PRODUCTS = 24 * 1000 * 1000,
    TILE_LEAST = 8, /* rows whose logits a short slice has time for */
    TILE_SLICE = 5, /* that many units of work */
};

/* ---- places ---- */

float *input_of_layer(const struct pass *p, int layer, int row)
{
    size_t at = p->plan.inputs > 1 ? (size_t)layer * (size_t)p->plan.rows : 0;

    return p->a.inputs + (at + (size_t)row) * (size_t)p->config.hidden;
}

/* Row `row` of the arena in the place of a layer. */
static float *inner(const struct pass *p, float *base, int layer, int row, int width)
{
    size_t place = (size_t)(layer < p->plan.kept ? layer : p->plan.kept);

    return base + (place * (size_t)p->plan.rows + (size_t)row) * (size_t)width;
}

struct layer_rows rows_of_layer(const struct pass *p, int layer, int row)
{
    const struct model_config *c = &p->config;
    const struct arena_rows *a = &p->a;
    bool conv = c->is_conv[layer];
    int q = model_q_width(c), kv = model_kv_width(c), H = c->hidden;
    int q_place = c->n_conv_layers && 3 * H > q ? 3 * H : q, mixed = q > H ? q : H;
    struct layer_rows r = {.x = input_of_layer(p, layer, row),
                           .mid = inner(p, a->mid, layer, row, H),
                           .out = input_of_layer(p, layer + 1, row),
                           .gate = inner(p, a->gate, layer, row, c->ff),
                           .up = inner(p, a->up, layer, row, c->ff)};

    /* Places are as wide as the widest kind of layer; rows inside one are dense. */
    r.q = inner(p, a->q, layer, 0, q_place) + (size_t)row * (size_t)(conv ? 3 * H : q);
    r.mixed = inner(p, a->mixed, layer, 0, mixed) + (size_t)row * (size_t)(conv ? H : q);
    r.kv = inner(p, a->kv, layer, row, 2 * kv);
    r.q_raw = inner(p, a->q_raw, layer, row, c->qk_norm ? q : 0);
    r.k_raw = inner(p, a->k_raw, layer, row, c->qk_norm ? kv : 0);
    return r;
}

/* ---- chunks ---- */

/* Numerics bf16-1 does twice as much in the same time. */
long slice_work(const struct pass *p)
{
    long ms = p->slice < SLICE_MS ? 1 : (long)(p->slice / SLICE_MS) + 1;

    return p->kb->chain_pairs && p->job.model->dtype == KERN_BF16 ? 2 * ms : ms;
}

/* Rows of a chunk: all that a step takes, or so few that a phase fits into a slice. */
static int chunk_rows(const struct pass *p)
{
    const struct model_config *c = &p->config;
    long widest = (long)c->hidden * (2 * c->ff > 3 * c->hidden ? 2 * c->ff : 3 * c->hidden);
    long rows = slice_work(p) * PHASE_PRODUCTS / widest;

    if (p->deadline == 0 || rows > FORWARD_ROWS_MAX)
        return FORWARD_ROWS_MAX;
    return rows < CHUNK_LEAST ? CHUNK_LEAST : (int)rows;
}

static const struct group *walked(const struct pass *p)
{
    return &p->plan.groups[p->walk.group];
}

/* The rows [row, row + rows) of the group as runs of its sequences. */
static void find_runs(struct pass *p)
{
    const struct group *g = walked(p);
    int from = p->walk.row, end = from + p->walk.rows;

    p->n_runs = 0;
    for (int i = 0; i < g->n; i++) {
        int first = p->first_row[g->first + i] - g->row;
        int last = first + p->job.sequences[g->first + i].n;
        int at = first > from ? first : from, to = last < end ? last : end;

        if (at < to)
            p->runs[p->n_runs++] = (struct row_run){.seq = p->slots[i].seq,
                                                    .row = at - from,
                                                    .n = to - at,
                                                    .pos0 = at - first,
                                                    .adapter = p->job.adapter};
    }
}

static void begin_chunk(struct pass *p, int row, int layer)
{
    int left = walked(p)->rows - row, most = chunk_rows(p);

    p->walk.row = row;
    p->walk.rows = left < most ? left : most;
    p->walk.layer = layer;
    p->walk.phase = 0;
    find_runs(p);
}

void walk_begin(struct pass *p, int group, bool logits)
{
    p->walk = (struct walk){.group = group, .logits = logits};
    begin_chunk(p, 0, -1);
}

/* Where the chunk's rows lie in the arena. */
static int arena_row(const struct pass *p)
{
    return p->job.backward ? p->walk.row : 0;
}

/* ---- operations ---- */

static void embed_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    const struct kern_matrix *w = &p->job.model->embed;
    size_t row_bytes = (size_t)w->k * kern_dtype_bytes(w->dtype);
    const int32_t *token = p->token + walked(p)->row + p->walk.row;
    float *x = input_of_layer(p, 0, arena_row(p));

    (void)worker;
    for (int r = item * ROW_ITEM; r < end_of(item, ROW_ITEM, p->walk.rows); r++)
        p->k->to_f32(x + (size_t)r * (size_t)w->k,
                     (const char *)w->w + (size_t)token[r] * row_bytes, w->dtype, (size_t)w->k);
}

static void run_phase(struct pass *p)
{
    struct layer_rows r = rows_of_layer(p, p->walk.layer, arena_row(p));
    const struct layer *l = &p->job.model->layers[p->walk.layer];
    const struct model_config *c = &p->config;

    if (l->is_conv && p->walk.phase == LAYER_PROJECT && c->conv_taps > 1)
        for (int i = 0; i < p->n_runs; i++)
            if (p->runs[i].pos0 == 0)
                memset(kv_seq_conv_state(p->runs[i].seq, l->cache_index), 0,
                       (size_t)(c->conv_taps - 1) * (size_t)c->hidden * sizeof(float));
    layer_phase_run(p->forward, p->job.model, p->walk.layer, (enum layer_phase)p->walk.phase,
                    p->runs, p->n_runs, p->walk.rows, &r);
    p->walk.phase++;
}

/* ---- log-probabilities ---- */

static void find_wanted(struct pass *p)
{
    const int32_t *target = p->target + walked(p)->row + p->walk.row;

    p->walk.n_wanted = 0;
    for (int r = 0; r < p->walk.rows; r++)
        if (target[r] != NO_TARGET)
            p->active[p->walk.n_wanted++] = r;
}

static void final_norm_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    const struct model *m = p->job.model;
    int H = p->config.hidden;

    (void)worker;
    for (int i = item * ROW_ITEM; i < end_of(item, ROW_ITEM, p->walk.n_wanted); i++)
        p->k->rmsnorm(p->hidden + (size_t)i * (size_t)H, H,
                      input_of_layer(p, p->config.n_layers, arena_row(p) + p->active[i]), H,
                      m->final_norm, m->dtype, 1, H, p->config.norm_eps);
}

static void take_answer(struct pass *p, const struct logits_row *a, int row)
{
    float lp = a->finite ? logits_logprob(a, a->target_logit) : NAN;

    p->logprob[row] = lp;
    p->max[row] = a->max;
    p->inv[row] = (float)(1.0 / a->sum);
    p->finite &= isfinite(lp);
    if (a->entropy && a->finite)
        p->entropy[row] = (float)logits_entropy(a);
}

static int head_rows(const struct pass *p)
{
    long rows = slice_work(p) * TILE_LEAST / TILE_SLICE;

    if (p->deadline == 0 || rows > HEAD_TILE)
        return HEAD_TILE;
    return rows < TILE_LEAST ? TILE_LEAST : (int)rows;
}

static void run_logits(struct pass *p)
{
    int at = p->walk.phase, most = head_rows(p);
    int n = p->walk.n_wanted - at < most ? p->walk.n_wanted - at : most;
    int row = walked(p)->row + p->walk.row;

    for (int i = 0; i < n; i++) {
        struct logits_row *a = &p->answers[i];

        a->target = p->target[row + p->active[at + i]];
        a->n_top = 0;
        a->full = kept_logits(p, row + p->active[at + i]);
        a->adapter = p->job.adapter;
        a->temperature = p->job.temperature;
        a->entropy = p->job.entropy;
    }
    logits_run(p->logits, p->job.model, p->hidden + (size_t)at * (size_t)p->config.hidden, n,
               p->answers);
    for (int i = 0; i < n; i++)
        take_answer(p, &p->answers[i], row + p->active[at + i]);
    p->walk.phase += n;
}

/* Behind the last layer; true: the chunk is done. */
static bool head_of_chunk(struct pass *p)
{
    if (!p->walk.logits)
        return true;
    if (p->walk.phase == 0) {
        find_wanted(p);
        pool_run(p->pool, final_norm_item, p, blocks_of(p->walk.n_wanted, ROW_ITEM));
    }
    if (p->walk.phase < p->walk.n_wanted)
        run_logits(p);
    return p->walk.phase >= p->walk.n_wanted;
}

/* The chunk has passed its layer: what comes next; true: nothing. */
static bool next_place(struct pass *p)
{
    int layer = p->walk.layer, n_layers = p->config.n_layers;
    int next = p->walk.row + p->walk.rows;
    bool last_chunk = next == walked(p)->rows;

    if (!p->job.backward && layer < n_layers) {
        p->walk.layer++;
        p->walk.phase = 0;
        return false;
    }
    if (layer == n_layers && last_chunk)
        return true;
    if (!p->job.backward)
        begin_chunk(p, next, -1);
    else if (last_chunk)
        begin_chunk(p, 0, layer + 1);
    else
        begin_chunk(p, next, layer);
    return false;
}

bool walk_step(struct pass *p)
{
    struct walk *w = &p->walk;

    if (w->layer < 0) {
        begin_chunk(p, w->row, -1); /* sized by this slice */
        pool_run(p->pool, embed_item, p, blocks_of(w->rows, ROW_ITEM));
        return next_place(p);
    }
    if (w->layer == p->config.n_layers)
        return head_of_chunk(p) && next_place(p);
    run_phase(p);
    return w->phase == LAYER_PHASES && next_place(p);
}

/* ---- inner activations again ---- */

void replay_begin(struct pass *p, int group, int layer)
{
    p->walk = (struct walk){.group = group};
    begin_chunk(p, 0, layer);
}

bool replay_step(struct pass *p)
{
    struct walk *w = &p->walk;

    run_phase(p);
    if (w->phase <= LAYER_GATE)
        return false;
    if (w->row + w->rows == walked(p)->rows)
        return true;
    begin_chunk(p, w->row + w->rows, w->layer);
    return false;
}
