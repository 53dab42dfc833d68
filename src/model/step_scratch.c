/* model/step_scratch.c - all memory of a forward object: one mapping, cut into pieces. Pages are
 * touched when first used, so a server that only decodes never pays for the rows of a wide step. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cutter.h"
#include "base/err.h"
#include "base/pool.h"
#include "model/adapter.h"
#include "model/step.h"

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static void cut_rows_of_step(struct forward *f, struct cutter *c)
{
    const struct model_config *g = &f->config;
    int n = FORWARD_ROWS_MAX, q = model_q_width(g);

    f->x = cutter_rows(c, 1, n, g->hidden);
    f->picked = cutter_rows(c, 1, n, g->hidden);
    f->norm = cutter_rows(c, 1, n, g->hidden);
    f->q = cutter_rows(c, 1, n, g->n_conv_layers ? larger(q, 3 * g->hidden) : q);
    f->kv = cutter_rows(c, 1, n, 2 * model_kv_width(g));
    f->mixed = cutter_rows(c, 1, n, larger(q, g->hidden));
    f->gate = cutter_rows(c, 1, n, g->ff);
    f->up = cutter_rows(c, 1, n, g->ff);
    f->px = cutter_take(c, 1, f->k->linear_x_bytes(n, model_widest_input(g)));
    f->pages = cutter_take(c, PAGES_AHEAD, sizeof *f->pages);
}

static void cut_worker(struct forward *f, struct worker_scratch *w, struct cutter *c)
{
    const struct model_config *g = &f->config;
    int widest = model_widest_input(g), group = g->n_heads / g->n_kv_heads;
    size_t pages = ((size_t)g->max_positions + KV_BLOCK - 1) / KV_BLOCK;

    w->norm = cutter_rows(c, 1, NARROW_ROWS, g->hidden);
    w->px = cutter_take(c, 1, f->k->linear_x_bytes(NARROW_ROWS, widest));
    w->linear = cutter_take(c, 1, LINEAR_SCRATCH);
    w->lora_x = cutter_rows(c, 1, NARROW_ROWS, widest);
    w->lora_a = cutter_rows(c, 1, NARROW_ROWS, ADAPTER_RANK_MAX);
    w->lora_px = cutter_take(c, 1, f->k->linear_x_bytes(NARROW_ROWS, ADAPTER_RANK_MAX));
    w->lora_b = cutter_rows(c, 1, NARROW_ROWS, larger(widest, 3 * g->hidden));
    w->attention = cutter_take(c, 1, f->k->attention_scratch(ATTEND_ROWS, group, g->head_dim));
    w->k_pages = cutter_take(c, pages, sizeof *w->k_pages);
    w->v_pages = cutter_take(c, pages, sizeof *w->v_pages);
}

static size_t cut_all(struct forward *f, char *base)
{
    struct cutter c = {.base = base};

    cut_rows_of_step(f, &c);
    for (int i = 0; i < f->n_workers; i++)
        cut_worker(f, &f->worker[i], &c);
    return c.used;
}

int scratch_init(struct forward *f, struct err *e)
{
    void *map;

    f->n_workers = pool_workers(f->pool);
    f->worker = calloc((size_t)f->n_workers, sizeof *f->worker);
    if (!f->worker)
        return err_nomem(e);
    f->memory_bytes = cut_all(f, NULL);
    map = mmap(NULL, f->memory_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return err_nomem(e);
    madvise(map, f->memory_bytes, MADV_HUGEPAGE);
    f->memory = map;
    cut_all(f, f->memory);
    return 0;
}

void scratch_release(struct forward *f)
{
    if (f->memory)
        munmap(f->memory, f->memory_bytes);
    free(f->worker);
}
