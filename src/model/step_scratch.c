/* model/step_scratch.c - all memory of a forward object: one mapping, cut into pieces. Pages are
 * touched when first used, so a server that only decodes never pays for the rows of a wide step. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/pool.h"
#include "model/adapter.h"
#include "model/step.h"

enum { ALIGN = 128 };

/* First pass (base NULL): adds up. Second pass: hands out. */
struct cutter {
    char *base;
    size_t used;
};

static void *cut(struct cutter *c, size_t bytes)
{
    void *at = c->base ? c->base + c->used : NULL;

    c->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static float *cut_rows(struct cutter *c, int rows, int width)
{
    return cut(c, (size_t)rows * (size_t)width * sizeof(float));
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* The widest row that a linear layer of this model reads. */
static int widest_input(const struct model_config *c)
{
    return larger(larger(c->hidden, c->ff), model_q_width(c));
}

static void cut_rows_of_step(struct forward *f, struct cutter *c)
{
    const struct model_config *g = &f->config;
    int n = FORWARD_ROWS_MAX, q = model_q_width(g);

    f->x = cut_rows(c, n, g->hidden);
    f->picked = cut_rows(c, n, g->hidden);
    f->norm = cut_rows(c, n, g->hidden);
    f->q = cut_rows(c, n, g->n_conv_layers ? larger(q, 3 * g->hidden) : q);
    f->kv = cut_rows(c, n, 2 * model_kv_width(g));
    f->mixed = cut_rows(c, n, larger(q, g->hidden));
    f->gate = cut_rows(c, n, g->ff);
    f->up = cut_rows(c, n, g->ff);
    f->px = cut(c, f->k->linear_x_bytes(n, widest_input(g)));
}

static void cut_worker(struct forward *f, struct worker_scratch *w, struct cutter *c)
{
    const struct model_config *g = &f->config;
    int widest = widest_input(g), group = g->n_heads / g->n_kv_heads;
    size_t pages = ((size_t)g->max_positions + KV_BLOCK - 1) / KV_BLOCK;

    w->norm = cut_rows(c, NARROW_ROWS, g->hidden);
    w->px = cut(c, f->k->linear_x_bytes(NARROW_ROWS, widest));
    w->linear = cut(c, LINEAR_SCRATCH);
    w->lora_x = cut_rows(c, NARROW_ROWS, widest);
    w->lora_a = cut_rows(c, NARROW_ROWS, ADAPTER_RANK_MAX);
    w->lora_b = cut_rows(c, NARROW_ROWS, larger(widest, 3 * g->hidden));
    w->attention = cut(c, f->k->attention_scratch(ATTEND_ROWS, group, g->head_dim));
    w->k_pages = cut(c, pages * sizeof *w->k_pages);
    w->v_pages = cut(c, pages * sizeof *w->v_pages);
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
