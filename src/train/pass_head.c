/* train/pass_head.c - from coefficients of log-probabilities to the gradient of the residual stream
 * after the last layer.
 *
 * Only rows with a target and a coefficient take part, packed one after the other. Their logits are
 * computed again, where the forward half could not keep them, HEAD_ROWS x HEAD_BLOCK at a time, and
 * become d logits = c (onehot - p) in place, c = coef / temperature; an entropy H adds - q p (log p
 * + H), q = entropy_coef / temperature. Vocabulary blocks rise inside a tile of rows, tiles rise:
 * so d h is one chain over the vocabulary and d W one over the rows. */
#include <math.h>
#include <string.h>

#include "model/adapter.h"
#include "model/forward.h"
#include "model/model.h"
#include "train/pass_impl.h"

enum { COLUMNS = 64 }; /* of one item of the final norm's gradient */

static const struct lora *head_lora(const struct pass *p)
{
    const struct adapter *a = p->job.adapter;

    return a && a->head.a.n ? &a->head : NULL;
}

static int call_row(const struct pass *p, int i)
{
    return group_at_hand(p)->row + p->active[i];
}

/* ---- normed rows, packed ---- */

static void norm_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    const struct model *m = p->job.model;
    int H = p->config.hidden, from = item * ROW_ITEM;
    int n = end_of(item, ROW_ITEM, p->back.n_active) - from;
    float *h = p->a.h + (size_t)from * (size_t)H;
    const struct lora *l = head_lora(p);

    for (int i = from; i < from + n; i++)
        p->k->rmsnorm(p->a.h + (size_t)i * (size_t)H, H,
                      input_of_layer(p, p->config.n_layers, p->active[i]), H, m->final_norm,
                      m->dtype, 1, H, p->config.norm_eps);
    if (!l)
        return;
    float *u = p->a.lora_u + (size_t)from * (size_t)p->plan.rank;
    float *scaled = u + (size_t)p->plan.rows * (size_t)p->plan.rank;

    p->k->linear(u, p->plan.rank, h, H, NULL, n, &l->a, 0, l->a.n, NULL, false,
                 p->worker[worker].linear, NULL);
    memcpy(scaled, u, (size_t)n * (size_t)p->plan.rank * sizeof *u);
    p->kb->scale(scaled, (size_t)n * (size_t)p->plan.rank, l->scale);
}

/* ---- one tile of rows, one block of the vocabulary ---- */

static int tile_rows(const struct pass *p)
{
    return p->back.tile_rows;
}

static int first_row_of(const struct pass *p, int i)
{
    return call_row(p, i) - p->pos[call_row(p, i)];
}

/* The tile from back.tile on: where sequences end among its rows, and as many rows that no pair of
 * a sequence is cut in two. */
static void begin_tile(struct pass *p)
{
    int from = p->back.tile, left = p->back.n_active - from, n_ends = 0, run = 0;
    int most = left < HEAD_ROWS ? left : HEAD_ROWS;

    for (int i = 0; i < most; i++, run++)
        if (i > 0 && first_row_of(p, from + i) != first_row_of(p, from + i - 1)) {
            p->head_ends[n_ends++] = i;
            run = 0;
        }
    if (most < left && run % 2 == 1 &&
        first_row_of(p, from + most) == first_row_of(p, from + most - 1))
        most--;
    p->head_ends[n_ends] = most;
    p->back.tile_rows = most;
}

static int block_outs(const struct pass *p)
{
    int left = p->config.vocab - p->back.block;

    return left < HEAD_BLOCK ? left : HEAD_BLOCK;
}

/* Entries [first, first + n) of lm_head. */
static struct kern_matrix head_rows(const struct pass *p, int first, int n)
{
    struct kern_matrix w = p->job.model->head;

    w.w = (const char *)w.w + (size_t)first * (size_t)w.k * kern_dtype_bytes(w.dtype);
    w.n = n;
    return w;
}

static void add_lora(const struct pass *p, float *y, int row, int rows, int first, int n,
                     int worker)
{
    const struct lora *l = head_lora(p);
    struct kern_matrix b = l->b;
    float *by = p->worker[worker].lora;

    b.w = (const float *)b.w + (size_t)first * (size_t)b.k;
    b.n = n;
    p->k->linear(by, n, p->a.lora_u + (size_t)row * (size_t)p->plan.rank, p->plan.rank, NULL, rows,
                 &b, 0, n, NULL, false, p->worker[worker].linear, NULL);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < n; j++)
            y[r * HEAD_BLOCK + j] = y[r * HEAD_BLOCK + j] + l->scale * by[r * n + j];
}

static float entropy_coef(const struct pass *p, int at)
{
    return p->entropy_coef ? p->entropy_coef[at] : 0;
}

/* z: the logits that y was made of. */
static void add_entropy(const struct pass *p, float *y, const float *z, int at, int n)
{
    float t = p->job.temperature, q = entropy_coef(p, at) / t, inv = p->inv[at];
    float rest = (float)log((double)inv) + p->entropy[at];

    for (int j = 0; j < n; j++) {
        float x = z[j] / t - p->max[at];

        y[j] = y[j] - q * (kern_exp(x) * inv * (x + rest));
    }
}

/* Logits of packed rows become their gradients; the target's own term is added here. */
static void differentiate(const struct pass *p, float *y, int row, int rows, int first, int n)
{
    for (int r = 0; r < rows; r++, y += HEAD_BLOCK) {
        int at = call_row(p, row + r), target = p->target[at] - first;
        float c = p->coef[at] / p->job.temperature, z[HEAD_PART_OUTS];
        bool entropy = entropy_coef(p, at) != 0;

        if (entropy)
            memcpy(z, y, (size_t)n * sizeof *z);
        p->kb->softmax(y, n, p->job.temperature, p->max[at], p->inv[at], c);
        if (target >= 0 && target < n)
            y[target] = c + y[target];
        if (entropy)
            add_entropy(p, y, z, at, n);
    }
}

/* Rows rise: the last one tells. */
static bool all_kept(const struct pass *p, int row, int rows)
{
    return kept_logits(p, call_row(p, row + rows - 1)) != NULL;
}

static void copy_kept(const struct pass *p, float *y, int row, int rows, int first, int n)
{
    for (int r = 0; r < rows; r++, y += HEAD_BLOCK)
        memcpy(y, kept_logits(p, call_row(p, row + r)) + first, (size_t)n * sizeof *y);
}

static void compute_logits(const struct pass *p, float *y, int at, int rows, int first, int n,
                           int worker)
{
    struct kern_matrix w = head_rows(p, first, n);
    size_t px_row = kern_x_row_bytes(p->k, &w);

    p->k->linear(y, HEAD_BLOCK, p->a.h + (size_t)(p->back.tile + at) * (size_t)w.k, w.k,
                 px_row ? (char *)p->head_px + (size_t)at * px_row : NULL, rows, &w, 0, n, NULL,
                 false, p->worker[worker].linear, NULL);
    if (head_lora(p))
        add_lora(p, y, p->back.tile + at, rows, first, n, worker);
}

static void logits_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    int parts = blocks_of(block_outs(p), HEAD_PART_OUTS);
    int at = item / parts * HEAD_PART_ROWS, col = item % parts * HEAD_PART_OUTS;
    int rows = end_of(item / parts, HEAD_PART_ROWS, tile_rows(p)) - at;
    int n = end_of(item % parts, HEAD_PART_OUTS, block_outs(p)) - col;
    float *y = p->head + (size_t)at * HEAD_BLOCK + col;

    if (all_kept(p, p->back.tile + at, rows))
        copy_kept(p, y, p->back.tile + at, rows, p->back.block + col, n);
    else
        compute_logits(p, y, at, rows, p->back.block + col, n, worker);
    differentiate(p, y, p->back.tile + at, rows, p->back.block + col, n);
}

static bool run_logits(struct pass *p)
{
    int H = p->config.hidden;

    if (p->back.block == 0 && p->back.item == 0 &&
        kern_x_row_bytes(p->k, &p->job.model->head) > 0 && !all_kept(p, p->back.tile, tile_rows(p)))
        p->k->linear_x_prepare(p->head_px, p->a.h + (size_t)p->back.tile * (size_t)H, H, 0,
                               tile_rows(p), H);
    return back_items(p, logits_item, p,
                      blocks_of(tile_rows(p), HEAD_PART_ROWS) *
                          blocks_of(block_outs(p), HEAD_PART_OUTS));
}

static void chains_of_lora(struct pass *p, const struct lora *l)
{
    const struct lora_grad *g = &p->grads->head_lora;
    size_t at = (size_t)p->back.tile * (size_t)p->plan.rank;
    struct chain_target *t =
        chains_add(&p->chains, p->a.lora_du + at, p->plan.rank, tile_rows(p), l->a.n);

    t->clear = p->back.block == 0;
    chain_times(t, p->head, HEAD_BLOCK,
                (const float *)l->b.w + (size_t)p->back.block * (size_t)l->b.k, KERN_F32, l->b.k,
                block_outs(p));
    chain_of_weights(t, p->kb, p->job.model->head.dtype, NULL);
    if (!g->b)
        return;
    t = chains_add(&p->chains, g->b + (size_t)p->back.block * (size_t)l->b.k, l->b.k, block_outs(p),
                   l->b.k);
    chain_outer(t, p->head, HEAD_BLOCK,
                p->a.lora_u + (size_t)p->plan.rows * (size_t)p->plan.rank + at, p->plan.rank,
                tile_rows(p));
    chain_of_weights(t, p->kb, p->job.model->head.dtype, p->head_ends);
}

static void chains_of_block(struct pass *p)
{
    int H = p->config.hidden;
    struct kern_matrix w = head_rows(p, p->back.block, block_outs(p));
    size_t at = (size_t)p->back.tile * (size_t)H;
    struct chain_target *t;

    p->chains.n = 0;
    if (p->grads->head) { /* the largest items first: workers end at nearly the same time */
        t = chains_add(&p->chains, p->grads->head + (size_t)p->back.block * (size_t)H, H, w.n, H);
        chain_outer(t, p->head, HEAD_BLOCK, p->a.h + at, H, tile_rows(p));
        chain_of_weights(t, p->kb, w.dtype, p->head_ends);
    }
    t = chains_add(&p->chains, p->a.dh + at, H, tile_rows(p), H);
    t->clear = p->back.block == 0;
    chain_times(t, p->head, HEAD_BLOCK, w.w, w.dtype, w.k, w.n);
    chain_of_weights(t, p->kb, w.dtype, NULL);
    if (head_lora(p))
        chains_of_lora(p, head_lora(p));
}

static bool run_block(struct pass *p)
{
    if (p->back.item == 0)
        chains_of_block(p);
    return back_chains(p);
}

/* ---- behind the tiles ---- */

/* The rest of the adapter: d u has been summed over the whole vocabulary. */
static bool run_lora(struct pass *p)
{
    const struct lora *l = head_lora(p);
    int H = p->config.hidden, rank = p->plan.rank, n = p->back.n_active;
    struct chain_target *t;

    if (!l || n == 0)
        return true;
    if (p->back.item == 0) {
        p->kb->scale(p->a.lora_du, (size_t)n * (size_t)rank, l->scale);
        p->chains.n = 0;
        t = chains_add(&p->chains, p->a.dh, H, n, H);
        chain_times(t, p->a.lora_du, rank, l->a.w, KERN_F32, H, l->a.n);
        if (p->grads->head_lora.a) {
            t = chains_add(&p->chains, p->grads->head_lora.a, H, l->a.n, H);
            chain_outer(t, p->a.lora_du, rank, p->a.h, H, n);
        }
    }
    return back_chains(p);
}

static void clear_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    size_t H = (size_t)p->config.hidden;
    int from = item * ROW_ITEM, end = end_of(item, ROW_ITEM, group_at_hand(p)->rows);

    (void)worker;
    memset(p->a.dx + (size_t)from * H, 0, (size_t)(end - from) * H * sizeof(float));
}

static void final_norm_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    const struct model *m = p->job.model;
    int H = p->config.hidden;

    (void)worker;
    for (int i = item * ROW_ITEM; i < end_of(item, ROW_ITEM, p->back.n_active); i++)
        p->kb->rmsnorm(p->a.dx + (size_t)p->active[i] * (size_t)H, H,
                       p->a.dh + (size_t)i * (size_t)H, H,
                       input_of_layer(p, p->config.n_layers, p->active[i]), H, m->final_norm,
                       m->dtype, 1, H, p->config.norm_eps, &p->a.r[i], false);
}

static void final_weight_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    int H = p->config.hidden, c = item * COLUMNS;

    (void)worker;
    for (int i = 0; i < p->back.n_active; i++)
        p->kb->rmsnorm_weight(p->grads->final_norm + c, p->a.dh + (size_t)i * (size_t)H + c, H,
                              input_of_layer(p, p->config.n_layers, p->active[i]) + c, H,
                              &p->a.r[i], 1, end_of(item, COLUMNS, H) - c);
}

/* ---- order ---- */

void head_begin(struct pass *p)
{
    const struct group *g = group_at_hand(p);

    p->back.op = p->back.item = p->back.tile = p->back.block = 0;
    p->back.n_active = 0;
    for (int r = 0; r < g->rows; r++)
        if (p->target[g->row + r] != NO_TARGET &&
            (p->coef[g->row + r] != 0 || entropy_coef(p, g->row + r) != 0))
            p->active[p->back.n_active++] = r;
    begin_tile(p);
}

enum head_op { OP_NORM, OP_LOGITS, OP_BLOCK, OP_LORA, OP_CLEAR, OP_FINAL, OP_WEIGHT, OP_END };
_Static_assert((int)OP_END == HEAD_OPS, "each operation has a pace");

/* Logits and chains of one block after the other, of one tile after the other. */
static int after_block(struct pass *p)
{
    p->back.block += HEAD_BLOCK;
    if (p->back.block < p->config.vocab)
        return OP_LOGITS;
    p->back.block = 0;
    p->back.tile += p->back.tile_rows;
    if (p->back.tile == p->back.n_active)
        return OP_LORA;
    begin_tile(p);
    return OP_LOGITS;
}

static bool run_op(struct pass *p)
{
    int n = p->back.n_active;

    switch ((enum head_op)p->back.op) {
    case OP_NORM:
        return back_items(p, norm_item, p, blocks_of(n, ROW_ITEM));
    case OP_LOGITS:
        return n == 0 || run_logits(p);
    case OP_BLOCK:
        return n == 0 || run_block(p);
    case OP_LORA:
        return run_lora(p);
    case OP_CLEAR:
        return back_items(p, clear_item, p, blocks_of(group_at_hand(p)->rows, ROW_ITEM));
    case OP_FINAL:
        return back_items(p, final_norm_item, p, blocks_of(n, ROW_ITEM));
    default:
        return !p->grads->final_norm ||
               back_items(p, final_weight_item, p, blocks_of(p->config.hidden, COLUMNS));
    }
}

bool head_step(struct pass *p)
{
    if (!run_op(p))
        return false;
    if (p->back.op == OP_BLOCK && p->back.n_active > 0)
        p->back.op = after_block(p);
    else
        p->back.op++;
    return p->back.op == OP_END;
}
