/* train/pass_mix.c - backward through what looks at other positions.
 *
 * Attention, in blocks of 64 positions counted from each sequence's first. Scores are computed
 * again as in the forward pass (one chain over d, then the scale); nothing of size positions^2 is
 * kept. Per query row: maximum and sum in the order of the forward pass, and mean = dout.out.
 *
 *     p = exp(s - max) / sum      ds = p (dout.v - mean) scale
 *     dq: key blocks rising, one chain over the keys of a block
 *     dk, dv: query blocks rising, inside a block the heads of the group, inside these its rows
 *
 * No two items share a sum. With enough short sequences for all workers an item is a whole head:
 * each pair of blocks is differentiated once, and its scores are kept from the statistics on. Else
 * there are two loops, one whose items write dq and one whose items write dk and dv, and each
 * differentiates every pair. */
#include <math.h>
#include <string.h>

#include "model/model.h"
#include "train/pass_impl.h"

enum {
    CHANNELS = 64,
    STRIP = 16, /* rows of the first strip, and of the second */
    STATS = 3,
    HEADS_OF_WORKER = 4, /* whole heads, at least, or some workers wait for others */
};

/* One block of queries of one head against one block of keys. */
struct attention {
    const struct pass *p;
    struct layer_rows r;
    int row, n; /* of the sequence in the group */
    int head;   /* key/value head */
    int group;  /* query heads that read it */
    int hd, ldq, ldkv;
    bool kept; /* scores are, each pair's in a place of its own */
    struct pass_scratch *w;
};

/* Item -> sequence, head and block; false: this sequence has no such block. */
static bool find_attention(const struct pass *p, int item, int worker, int blocks,
                           struct attention *a, int *block)
{
    const struct group *g = group_at_hand(p);
    const struct model_config *c = &p->config;
    int per_sequence = blocks * c->n_kv_heads, s = g->first + item / per_sequence;

    *a = (struct attention){.p = p,
                            .r = rows_of_layer(p, p->back.layer, 0),
                            .row = p->first_row[s] - g->row,
                            .n = p->job.sequences[s].n,
                            .head = item % c->n_kv_heads,
                            .group = c->n_heads / c->n_kv_heads,
                            .hd = c->head_dim,
                            .ldq = model_q_width(c),
                            .ldkv = 2 * model_kv_width(c),
                            .w = &p->worker[worker]};
    *block = item % per_sequence / c->n_kv_heads;
    return *block * KV_BLOCK < a->n;
}

static int longest_blocks(const struct pass *p)
{
    const struct group *g = group_at_hand(p);
    int n = 1;

    for (int i = g->first; i < g->first + g->n; i++)
        n = p->job.sequences[i].n > n ? p->job.sequences[i].n : n;
    return blocks_of(n, KV_BLOCK);
}

int attend_heads(const struct pass *p)
{
    return group_at_hand(p)->n * p->config.n_kv_heads;
}

bool attend_whole_heads(const struct pass *p)
{
    return longest_blocks(p) <= SHORT_BLOCKS && attend_heads(p) >= HEADS_OF_WORKER * p->n_workers;
}

int attend_blocks(const struct pass *p)
{
    return longest_blocks(p) * attend_heads(p);
}

static int block_rows(const struct attention *a, int block)
{
    int left = a->n - block * KV_BLOCK;

    return left < KV_BLOCK ? left : KV_BLOCK;
}

/* Row `t` of the sequence in a buffer of q's shape, head g of the group. */
static size_t q_at(const struct attention *a, int t, int g)
{
    return (size_t)(a->row + t) * (size_t)a->ldq + (size_t)((a->head * a->group + g) * a->hd);
}

/* Keys of a row in a buffer of kv's shape. */
static size_t k_at(const struct attention *a, int t)
{
    return (size_t)(a->row + t) * (size_t)a->ldkv + (size_t)(a->head * a->hd);
}

static float *stats_at(const struct attention *a, int t, int g)
{
    return a->p->a.stats + STATS * ((size_t)(a->row + t) * (size_t)a->p->config.n_heads +
                                    (size_t)(a->head * a->group + g));
}

/* [n][hd] rows become [hd][64], zeros past the end. */
static void transpose(const struct attention *a, float *to, const float *from, int n)
{
    for (int d = 0; d < a->hd; d++, to += KV_BLOCK) {
        for (int j = 0; j < n; j++)
            to[j] = from[(ptrdiff_t)j * a->ldkv + d];
        memset(to + n, 0, (size_t)(KV_BLOCK - n) * sizeof *to);
    }
}

static void load_keys(const struct attention *a, int block)
{
    transpose(a, a->w->kt, a->r.kv + k_at(a, block * KV_BLOCK), block_rows(a, block));
}

static void load_values(const struct attention *a, int block)
{
    transpose(a, a->w->vt, a->r.kv + k_at(a, block * KV_BLOCK) + a->ldkv / 2, block_rows(a, block));
}

/* Where the scores of a pair of blocks are. */
static float *scores_at(const struct attention *a, int qb, int g, int kb)
{
    int pair = qb * (qb + 1) / 2 + kb;

    return a->w->s + (ptrdiff_t)(a->kept ? g * SHORT_PAIRS + pair : 0) * KV_BLOCK * KV_BLOCK;
}

/* to [rows][64] = x [rows,hd] times the first `keys` of a transposed block. */
static void times_keys(const struct attention *a, float *to, const float *x, const float *block,
                       int rows, int keys)
{
    struct chain c = {.c = to,
                      .ldc = KV_BLOCK,
                      .a = x,
                      .a_row = a->ldq,
                      .a_step = 1,
                      .b = block,
                      .b_dtype = KERN_F32,
                      .ldb = KV_BLOCK,
                      .m = rows,
                      .n = keys,
                      .steps = a->hd,
                      .clear = true};

    a->p->kb->chain(&c, a->w->chain);
}

/* The same for a block of queries. Where it meets its own keys, no row sees those past it: strips
 * of rows take no more than they see, up to whole tiles of the kernel. */
static void times_block(const struct attention *a, float *to, const float *x, const float *block,
                        int rows, bool own)
{
    int from = 0;

    for (int keys = own ? STRIP : KV_BLOCK; from < rows; from = keys, keys *= 2) {
        int end = keys < rows ? keys : rows;

        times_keys(a, to + (ptrdiff_t)from * KV_BLOCK, x + (ptrdiff_t)from * a->ldq, block,
                   end - from, keys);
    }
}

/* Block qb of queries, `rows` of them, with block kb of keys. */
static struct attention_tile tile_of(const struct attention *a, int qb, int g, int kb)
{
    int seen = (qb - kb) * KV_BLOCK + 1;

    return (struct attention_tile){.s = scores_at(a, qb, g, kb),
                                   .dp = a->w->ds,
                                   .rows = block_rows(a, qb),
                                   .keys = seen < KV_BLOCK ? seen : KV_BLOCK,
                                   .scale = 1.0f / sqrtf((float)a->hd),
                                   .stats = stats_at(a, qb * KV_BLOCK, g),
                                   .ld = (ptrdiff_t)STATS * a->p->config.n_heads};
}

static void score(const struct attention *a, const struct attention_tile *t, int qb, int g, int kb)
{
    times_block(a, t->s, a->r.q + q_at(a, qb * KV_BLOCK, g), a->w->kt, t->rows, qb == kb);
}

/* The tile's s becomes p, its dp becomes ds. */
static struct attention_tile differentiate(const struct attention *a, int qb, int g, int kb)
{
    const struct pass *p = a->p;
    struct attention_tile t = tile_of(a, qb, g, kb);

    if (!a->kept)
        score(a, &t, qb, g, kb);
    times_block(a, t.dp, p->a.d_mixed + q_at(a, qb * KV_BLOCK, g), a->w->vt, t.rows, qb == kb);
    p->kb->attention(&t);
    return t;
}

/* ---- statistics of the rows ---- */

/* Maximum and sum of each row go on over one more block of keys. */
static void grow_stats(const struct attention *a, int qb, int g, int kb)
{
    struct attention_tile t = tile_of(a, qb, g, kb);

    score(a, &t, qb, g, kb);
    a->p->kb->attention_stats(&t);
}

static void finish_stats(const struct attention *a, int t0, int rows, int g)
{
    const struct pass *p = a->p;

    for (int i = 0; i < rows; i++) {
        float *st = stats_at(a, t0 + i, g);

        st[1] = 1.0f / st[1];
        st[2] =
            p->kb->dot(p->a.d_mixed + q_at(a, t0 + i, g), a->r.mixed + q_at(a, t0 + i, g), a->hd);
    }
}

static void begin_stats(const struct attention *a, int t0, int rows)
{
    for (int i = 0; i < rows; i++)
        for (int g = 0; g < a->group; g++) {
            stats_at(a, t0 + i, g)[0] = -INFINITY;
            stats_at(a, t0 + i, g)[1] = 0;
        }
}

/* Of the rows of query blocks [from, end). */
static void make_stats(const struct attention *a, int from, int end)
{
    for (int qb = from; qb < end; qb++)
        begin_stats(a, qb * KV_BLOCK, block_rows(a, qb));
    for (int kb = 0; kb < end; kb++) {
        load_keys(a, kb);
        for (int qb = kb > from ? kb : from; qb < end; qb++)
            for (int g = 0; g < a->group; g++)
                grow_stats(a, qb, g, kb);
    }
    for (int qb = from; qb < end; qb++)
        for (int g = 0; g < a->group; g++)
            finish_stats(a, qb * KV_BLOCK, block_rows(a, qb), g);
}

/* ---- dq ---- */

static void add_dq(const struct attention *a, const struct attention_tile *t, int qb, int g, int kb)
{
    struct chain c = {.c = a->p->a.dq + q_at(a, qb * KV_BLOCK, g),
                      .ldc = a->ldq,
                      .a = t->dp,
                      .a_row = KV_BLOCK,
                      .a_step = 1,
                      .b = a->r.kv + k_at(a, kb * KV_BLOCK),
                      .b_dtype = KERN_F32,
                      .ldb = a->ldkv,
                      .m = t->rows,
                      .n = a->hd,
                      .steps = block_rows(a, kb),
                      .clear = kb == 0};

    a->p->kb->chain(&c, a->w->chain);
}

void attend_q_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    struct attention a;
    int block;

    if (!find_attention(p, item, worker, longest_blocks(p), &a, &block))
        return;
    make_stats(&a, block, block + 1);
    for (int kb = 0; kb <= block; kb++) {
        load_keys(&a, kb);
        load_values(&a, kb);
        for (int g = 0; g < a.group; g++) {
            struct attention_tile t = differentiate(&a, block, g, kb);

            add_dq(&a, &t, block, g, kb);
        }
    }
}

/* ---- dk, dv ---- */

/* to [keys,hd] = or += weights^T x: weights [rows][64], x of q's shape. */
static void add_outer(const struct attention *a, float *to, const float *weights, const float *x,
                      int keys, int rows, bool clear)
{
    struct chain c = {.c = to,
                      .ldc = a->ldkv,
                      .a = weights,
                      .a_row = 1,
                      .a_step = KV_BLOCK,
                      .b = x,
                      .b_dtype = KERN_F32,
                      .ldb = a->ldq,
                      .m = keys,
                      .n = a->hd,
                      .steps = rows,
                      .clear = clear};

    a->p->kb->chain(&c, a->w->chain);
}

/* One block of keys against all queries that see it. */
static void attend_keys(const struct attention *a, int kb, bool with_dq)
{
    const struct pass *p = a->p;
    float *dk = p->a.dkv + k_at(a, kb * KV_BLOCK), *dv = dk + a->ldkv / 2;
    int keys = block_rows(a, kb);

    if (!a->kept)
        load_keys(a, kb);
    load_values(a, kb);
    for (int qb = kb; qb < blocks_of(a->n, KV_BLOCK); qb++)
        for (int g = 0; g < a->group; g++) {
            struct attention_tile t = differentiate(a, qb, g, kb);
            size_t at = q_at(a, qb * KV_BLOCK, g);
            bool clear = qb == kb && g == 0;

            if (with_dq)
                add_dq(a, &t, qb, g, kb);
            add_outer(a, dv, t.s, p->a.d_mixed + at, keys, t.rows, clear);
            add_outer(a, dk, t.dp, a->r.q + at, keys, t.rows, clear);
        }
}

void attend_kv_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    struct attention a;
    int kb;

    if (find_attention(p, item, worker, longest_blocks(p), &a, &kb))
        attend_keys(&a, kb, false);
}

/* ---- a whole head ---- */

void attend_head_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    struct attention a;
    int first, blocks;

    if (!find_attention(p, item, worker, 1, &a, &first))
        return;
    a.kept = true;
    blocks = blocks_of(a.n, KV_BLOCK);
    make_stats(&a, 0, blocks);
    for (int kb = 0; kb < blocks; kb++)
        attend_keys(&a, kb, true);
}

/* ---- rope and the norm of heads ---- */

int rotate_items(const struct pass *p)
{
    return blocks_of(group_at_hand(p)->rows, ROW_ITEM);
}

/* The transpose of a rotation is the rotation by the negative angle. */
static void rotate_row(const struct pass *p, int row, int worker)
{
    const struct model_config *c = &p->config;
    const struct layer *l = layer_at_hand(p);
    struct layer_rows r = rows_of_layer(p, p->back.layer, row);
    int q = model_q_width(c), kv = model_kv_width(c), hd = c->head_dim;
    float *dq = p->a.dq + (size_t)row * (size_t)q, *dk = p->a.dkv + (size_t)row * 2 * (size_t)kv;
    float *scale = p->a.r + (size_t)row * (size_t)(c->n_heads + c->n_kv_heads);
    float *back = p->worker[worker].sin;
    const float *cos, *sin;

    layer_phases_rope(p->forward, p->pos[group_at_hand(p)->row + row], &cos, &sin);
    for (int j = 0; j < hd / 2; j++)
        back[j] = -sin[j];
    p->k->rope(dq, c->n_heads, hd, cos, back);
    p->k->rope(dk, c->n_kv_heads, hd, cos, back);
    if (!l->q_norm)
        return;
    p->kb->rmsnorm(p->a.d_mixed + (size_t)row * (size_t)q, hd, dq, hd, r.q_raw, hd, l->q_norm,
                   p->job.model->dtype, c->n_heads, hd, c->norm_eps, scale, false);
    p->kb->rmsnorm(p->a.dk + (size_t)row * (size_t)kv, hd, dk, hd, r.k_raw, hd, l->k_norm,
                   p->job.model->dtype, c->n_kv_heads, hd, c->norm_eps, scale + c->n_heads, false);
}

void rotate_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;

    for (int r = item * ROW_ITEM; r < end_of(item, ROW_ITEM, group_at_hand(p)->rows); r++)
        rotate_row(p, r, worker);
}

int head_norm_items(const struct pass *p)
{
    (void)p;
    return 2; /* q and k: a weight gradient is one chain over rows and heads */
}

void head_norm_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    const struct model_config *c = &p->config;
    int q = model_q_width(c), kv = model_kv_width(c), hd = c->head_dim;
    float *to = item == 0 ? grads_at_hand(p)->q_norm : grads_at_hand(p)->k_norm;

    (void)worker;
    for (int row = 0; to && row < group_at_hand(p)->rows; row++) {
        struct layer_rows r = rows_of_layer(p, p->back.layer, row);
        const float *scale = p->a.r + (size_t)row * (size_t)(c->n_heads + c->n_kv_heads);

        if (item == 0)
            p->kb->rmsnorm_weight(to, p->a.dq + (size_t)row * (size_t)q, hd, r.q_raw, hd, scale,
                                  c->n_heads, hd);
        else
            p->kb->rmsnorm_weight(to, p->a.dkv + (size_t)row * 2 * (size_t)kv, hd, r.k_raw, hd,
                                  scale + c->n_heads, c->n_kv_heads, hd);
    }
}

/* ---- short convolution ---- */

int convolve_items(const struct pass *p)
{
    return blocks_of(p->config.hidden, CHANNELS);
}

void convolve_item(void *arg, int item, int worker)
{
    const struct pass *p = arg;
    const struct group *g = group_at_hand(p);
    const struct layer *l = layer_at_hand(p);
    struct layer_grads *to = grads_at_hand(p);
    int H = p->config.hidden;

    (void)worker;
    for (int i = g->first; i < g->first + g->n; i++) {
        int row = p->first_row[i] - g->row;
        struct layer_rows r = rows_of_layer(p, p->back.layer, row);
        struct conv_back c = {.d = p->a.dq + (size_t)row * 3 * (size_t)H,
                              .ldd = 3 * (ptrdiff_t)H,
                              .dz = p->a.d_mixed + (size_t)row * (size_t)H,
                              .lddz = H,
                              .bcx = r.q,
                              .ldb = 3 * (ptrdiff_t)H,
                              .rows = p->job.sequences[i].n,
                              .H = H,
                              .K = p->config.conv_taps,
                              .taps = l->conv_taps,
                              .bias = l->conv_bias,
                              .dtype = p->job.model->dtype,
                              .d_taps = to->conv_taps,
                              .d_bias = to->conv_bias};

        p->kb->short_conv(&c, item * CHANNELS, end_of(item, CHANNELS, H));
    }
}
