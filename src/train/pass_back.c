/* train/pass_back.c - the order of the backward half: groups, then head, layers, embedding. */
#include <string.h>

#include "base/clock.h"
#include "model/model.h"
#include "train/pass_impl.h"

/* Of a chain item for each unit of a slice's work: it takes about a third of the slice. */
enum { ITEM_PRODUCTS = 20 * 1000 * 1000 };

const struct layer *layer_at_hand(const struct pass *p)
{
    return &p->job.model->layers[p->back.layer];
}

struct layer_grads *grads_at_hand(const struct pass *p)
{
    return &p->grads->layers[p->back.layer];
}

/* ---- items ---- */

struct batch {
    pool_fn *fn;
    void *arg;
    int first;
};

static void batch_item(void *arg, int item, int worker)
{
    const struct batch *b = arg;

    b->fn(b->arg, b->first + item, worker);
}

/* Where the pace of the operation at hand is kept. */
static double *pace_at(struct pass *p)
{
    int op = p->back.op;

    return &p->pace[p->stage == STAGE_HEAD    ? op
                    : p->stage == STAGE_LAYER ? HEAD_OPS + op
                                              : HEAD_OPS + LAYER_OPS];
}

/* Items for one loop: all that the rest of the slice has time for, so that workers seldom wait for
 * each other; one each where the operation has not run before. */
static int items_in_time(const struct pass *p, double pace, int left)
{
    double time = p->deadline ? (double)(p->deadline - clock_mono_ns()) : 0;
    double items = pace > 0 ? time / pace : 0;
    int most = left;

    if (p->deadline && items < left)
        most = (int)items / p->n_workers * p->n_workers;
    if (most < p->n_workers)
        most = p->n_workers;
    return most < left ? most : left;
}

static void run_batch(struct pass *p, struct batch *b, int count, double *pace)
{
    int64_t start = p->deadline ? clock_mono_ns() : 0;

    pool_run(p->pool, batch_item, b, count);
    if (p->deadline)
        *pace = (double)(clock_mono_ns() - start) / count;
}

bool back_items(struct pass *p, pool_fn *fn, void *arg, int n)
{
    double *pace = pace_at(p);

    while (p->back.item < n) {
        struct batch b = {fn, arg, p->back.item};
        int count = items_in_time(p, *pace, n - b.first);

        run_batch(p, &b, count, pace);
        p->back.item += count;
        if (p->back.item < n && p->deadline && clock_mono_ns() >= p->deadline)
            return false;
    }
    p->back.item = 0;
    return true;
}

static void chains_run(void *arg, int item, int worker)
{
    const struct pass *p = arg;

    chains_item(&p->chains, p->kb, item, p->worker[worker].chain);
}

/* No item is longer than two thirds of a worker's share, so that all end at nearly the same time,
 * nor than a slice lets it be. */
static long longest_item(const struct pass *p)
{
    long share = chains_products(&p->chains) * 2 / (3 * (long)p->n_workers);
    long most = p->deadline ? slice_work(p) * ITEM_PRODUCTS : share;

    return share < most ? share : most;
}

bool back_chains(struct pass *p)
{
    if (p->back.item == 0)
        chains_limit(&p->chains, longest_item(p));
    return back_items(p, chains_run, p, chains_items(&p->chains));
}

/* ---- order ---- */

static void begin_group(struct pass *p, int group)
{
    const struct group *g = &p->plan.groups[group];

    p->back = (struct back){.group = group};
    memset(p->pace, 0, sizeof p->pace);
    for (int i = 0; i < g->n; i++)
        p->ends[i] = p->first_row[g->first + i] - g->row + p->job.sequences[g->first + i].n;
    if (p->plan.n_groups > 1) {
        p->stage = STAGE_AGAIN;
        walk_begin(p, group, false);
        return;
    }
    p->stage = STAGE_HEAD;
    head_begin(p);
}

void back_begin(struct pass *p)
{
    begin_group(p, 0);
}

/* The place that layers share holds the last one of them that went forward. */
static void begin_layer(struct pass *p, int layer)
{
    p->back.layer = layer;
    p->back.op = p->back.item = 0;
    p->stage = STAGE_LAYER;
    if (layer < p->plan.kept || layer == p->config.n_layers - 1)
        return;
    p->stage = STAGE_REPLAY;
    replay_begin(p, p->back.group, layer);
}

static void end_group(struct pass *p)
{
    const struct group *g = group_at_hand(p);
    size_t H = (size_t)p->config.hidden;

    if (p->grads->embed)
        pool_memcpy(p->pool, p->d_embed + (size_t)g->row * H, p->a.dx,
                    (size_t)g->rows * H * sizeof(float));
    if (p->back.group + 1 < p->plan.n_groups)
        begin_group(p, p->back.group + 1);
    else
        p->stage = STAGE_EMBED;
}

void back_step(struct pass *p)
{
    switch (p->stage) {
    case STAGE_AGAIN:
        if (walk_step(p)) {
            p->stage = STAGE_HEAD;
            head_begin(p);
        }
        break;
    case STAGE_HEAD:
        if (head_step(p))
            begin_layer(p, p->config.n_layers - 1);
        break;
    case STAGE_REPLAY:
        if (replay_step(p))
            p->stage = STAGE_LAYER;
        break;
    case STAGE_LAYER:
        if (!layer_step(p))
            break;
        if (p->back.layer > 0)
            begin_layer(p, p->back.layer - 1);
        else
            end_group(p);
        break;
    case STAGE_EMBED:
        if (embed_step(p))
            p->stage = STAGE_DONE;
        break;
    default:
        break;
    }
}
