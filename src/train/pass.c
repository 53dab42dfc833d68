/* train/pass.c - life of a pass: memory, states, slices. */
#include "train/pass.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cutter.h"
#include "base/err.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "train/pass_impl.h"

/* ---- scratch of the workers ---- */

static size_t cut_workers(struct pass *p, char *base)
{
    struct cutter c = {.base = base};
    size_t block = (size_t)p->config.head_dim * KV_BLOCK;

    for (int i = 0; i < p->n_workers; i++) {
        struct pass_scratch *w = &p->worker[i];

        w->linear = cutter_take(&c, 1, LINEAR_SCRATCH);
        w->chain = cutter_take(&c, 1, CHAIN_SCRATCH);
        w->px = cutter_take(&c, 1, p->k->linear_x_bytes(ROW_ITEM, model_widest_input(&p->config)));
        w->kt = cutter_take(&c, block, sizeof(float));
        w->vt = cutter_take(&c, block, sizeof(float));
        w->s = cutter_rows(&c, SHORT_PAIRS * p->config.n_heads / p->config.n_kv_heads, KV_BLOCK,
                           KV_BLOCK);
        w->ds = cutter_rows(&c, 1, KV_BLOCK, KV_BLOCK);
        w->sin = cutter_rows(&c, 1, 1, p->config.head_dim);
        w->lora = cutter_rows(&c, 1, HEAD_PART_ROWS, HEAD_PART_OUTS);
    }
    return c.used;
}

static int make_workers(struct pass *p, struct err *e)
{
    void *memory = NULL;

    p->n_workers = pool_workers(p->pool);
    p->worker = calloc((size_t)p->n_workers, sizeof *p->worker);
    if (!p->worker)
        return err_nomem(e);
    p->worker_bytes = cut_workers(p, NULL);
    if (posix_memalign(&memory, CUTTER_ALIGN, p->worker_bytes) != 0)
        return err_nomem(e);
    p->worker_memory = memory;
    cut_workers(p, p->worker_memory);
    return 0;
}

/* ---- life ---- */

struct pass *pass_new(const struct model_config *c, const struct kernels *k, struct pool *pool,
                      size_t budget, struct err *e)
{
    struct pass *p = calloc(1, sizeof *p);

    if (!p) {
        err_nomem(e);
        return NULL;
    }
    p->config = *c;
    p->k = k;
    p->kb = kernels_back_of(k);
    p->pool = pool;
    p->budget = budget;
    p->forward = forward_new(c, k, pool, e);
    p->logits = p->forward ? logits_new(p->forward, e) : NULL;
    if (p->logits && make_workers(p, e) == 0)
        return p;
    pass_free(p);
    return NULL;
}

void pass_free(struct pass *p)
{
    if (!p)
        return;
    pass_end(p);
    pass_drop_slots(p);
    kv_cache_free(p->kv);
    pass_free_memory(p);
    free(p->worker);
    free(p->worker_memory);
    logits_free(p->logits);
    forward_free(p->forward);
    free(p);
}

bool pass_fits(const struct pass *p, const struct model_config *c)
{
    return forward_fits(p->forward, c);
}

void pass_set_budget(struct pass *p, size_t budget)
{
    p->budget = budget;
}

size_t pass_memory(const struct pass *p)
{
    size_t kv = p->kv ? (size_t)kv_cache_blocks(p->kv) * kv_cache_block_bytes(p->kv) : 0;

    return p->memory_bytes + p->worker_bytes + kv;
}

/* ---- a call ---- */

static void copy_sequences(struct pass *p)
{
    int row = 0;

    for (int i = 0; i < p->job.n_sequences; i++) {
        const struct pass_sequence *s = &p->job.sequences[i];

        p->first_row[i] = row;
        for (int t = 0; t < s->n; t++, row++) {
            p->token[row] = s->tokens[t];
            p->target[row] = s->targets[t];
            p->pos[row] = t;
        }
    }
    memset(p->logprob, 0, (size_t)row * sizeof *p->logprob);
    memset(p->entropy, 0, (size_t)row * sizeof *p->entropy);
}

static int longest_of(const struct pass_job *job)
{
    int n = 0;

    for (int i = 0; i < job->n_sequences; i++)
        n = job->sequences[i].n > n ? job->sequences[i].n : n;
    return n;
}

int pass_begin(struct pass *p, const struct pass_job *job, struct err *e)
{
    struct plan plan;
    int rows = 0;

    if (plan_make(p, job, &plan, e) < 0)
        return -1;
    for (int i = 0; i < plan.n_groups; i++)
        rows += plan.groups[i].rows;
    if (layer_phases_reserve(p->forward, longest_of(job), e) < 0 ||
        plan_take(p, job, &plan, rows, e) < 0) {
        plan_release(&plan);
        return -1;
    }
    p->job = *job;
    p->plan = plan;
    p->rows = rows;
    p->finite = true;
    copy_sequences(p);
    p->stage = STAGE_FORWARD;
    walk_begin(p, 0, true);
    return 0;
}

static void forward_step(struct pass *p)
{
    if (!walk_step(p))
        return;
    if (p->walk.group + 1 < p->plan.n_groups)
        walk_begin(p, p->walk.group + 1, true);
    else
        p->stage = STAGE_READY;
}

static bool is_waiting(const struct pass *p)
{
    return p->stage == STAGE_IDLE || p->stage == STAGE_READY || p->stage == STAGE_DONE;
}

enum pass_state pass_run(struct pass *p, int64_t deadline_ns)
{
    p->deadline = deadline_ns;
    p->slice = deadline_ns ? deadline_ns - clock_mono_ns() : 0;
    while (!is_waiting(p)) {
        if (p->stage == STAGE_FORWARD)
            forward_step(p);
        else
            back_step(p);
        if (!is_waiting(p) && deadline_ns && clock_mono_ns() >= deadline_ns)
            return PASS_MORE;
    }
    return PASS_DONE;
}

int pass_rows(const struct pass *p)
{
    return p->rows;
}

const float *pass_logprobs(const struct pass *p)
{
    return p->logprob;
}

bool pass_finite(const struct pass *p)
{
    return p->finite;
}

const float *pass_entropies(const struct pass *p)
{
    return p->entropy;
}

void pass_back(struct pass *p, const float *coef, const float *entropy_coef, struct grads *g)
{
    p->coef = coef;
    p->entropy_coef = entropy_coef;
    p->grads = g;
    back_begin(p);
}

void pass_end(struct pass *p)
{
    plan_release(&p->plan);
    p->stage = STAGE_IDLE;
    p->rows = 0;
}
