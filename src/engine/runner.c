#include "engine/runner.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/pool.h"
#include "engine/engine_impl.h"
#include "generate/sampler.h"
#include "kernels/kernels.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/logits.h"

/* Steps while somebody waits for tokens, and while nobody does: a message waits for one step too.
 */
static const double busy_ms = 27, alone_ms = 320;
/* Of the newest measurement; and of a step of decoding that took longer than the mean. */
static const double weight = 0.3, doubt = 0.03;

enum {
    CHUNK_TOLD_BY = 8, /* fewer rows say little of what a row adds */
    CHUNK_UNKNOWN = 32,
    CHUNK_ALONE_UNKNOWN = 128,
    CHUNK_MIN = 8,
    CHUNK_BUSY_MAX = 128,
    CHUNK_ALONE_MIN = 64,
    AHEAD_IDLE_BLOCKS = 16,
    AHEAD_IDLE_BYTES = 48 << 20,
};

static int clamp_rows(double rows, int least, int most)
{
    return rows < least ? least : rows > most ? most : (int)rows;
}

static void follow(double *mean, double ms, double part)
{
    *mean = *mean <= 0 ? ms : (1 - part) * *mean + part * ms;
}

/* On a machine so busy that decoding alone takes longer than it should, small chunks would only
 * make the prompt wait: it gets half as much again. */
int step_clock_chunk(const struct step_clock *c, bool decoding)
{
    double room = busy_ms - c->decode_ms;

    if (c->row_ms <= 0)
        return decoding ? CHUNK_UNKNOWN : CHUNK_ALONE_UNKNOWN;
    if (!decoding)
        return clamp_rows(alone_ms / c->row_ms, CHUNK_ALONE_MIN, FORWARD_ROWS_MAX);
    room = room < c->decode_ms / 2 ? c->decode_ms / 2 : room;
    return clamp_rows(room / c->row_ms, CHUNK_MIN, CHUNK_BUSY_MAX);
}

/* A request that comes is sent and parsed on the same cores: the few steps of decoding that it
 * slows down say nothing of the steps that its prompt will share, so slower ones are believed
 * slowly. (Eight streams and a prompt of 2,000: the mean was 32 ms where decoding takes 15.) */
void step_clock_note(struct step_clock *c, int n_decode, int n_prefill, double ms)
{
    double added = n_decode ? ms - c->decode_ms : ms;

    follow(n_prefill ? &c->mixed_ms : &c->plain_ms, ms, weight);
    if (n_prefill == 0)
        follow(&c->decode_ms, ms, ms > c->decode_ms ? doubt : weight);
    else if (n_prefill >= CHUNK_TOLD_BY)
        follow(&c->row_ms, (added < ms / 4 ? ms / 4 : added) / n_prefill, weight);
}

double step_clock_expect(const struct step_clock *c, int n_prefill)
{
    return n_prefill ? c->mixed_ms : c->plain_ms;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static int make_buffers(struct runner *r, int workers, struct err *e)
{
    size_t vocab = (size_t)r->config.vocab;

    r->full_bytes = (size_t)ACTIVE_MAX * vocab * sizeof(float);
    r->full = mmap(NULL, r->full_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->full == MAP_FAILED) {
        r->full = NULL;
        return err_nomem(e);
    }
    r->slice_bytes = round_up(vocab * sizeof(float) + sample_scratch_bytes(r->config.vocab) + 64 +
                                  grammar_mask_words(r->config.vocab) * sizeof(uint64_t),
                              64);
    r->scratch_bytes = r->slice_bytes * (size_t)workers;
    r->scratch = aligned_alloc(64, r->scratch_bytes);
    r->hidden = malloc((size_t)FORWARD_ROWS_MAX * (size_t)r->config.hidden * sizeof(float));
    return r->scratch && r->hidden ? 0 : err_nomem(e);
}

static void runner_free(struct runner *r)
{
    if (!r)
        return;
    prefix_drop(&r->prefixes);
    kv_cache_free(r->kv);
    logits_free(r->logits);
    forward_free(r->forward);
    if (r->full)
        munmap(r->full, r->full_bytes);
    free(r->scratch);
    free(r->hidden);
    free(r);
}

static struct runner *runner_new(struct engine *en, const struct model_config *c, struct err *e)
{
    struct runner *r = calloc(1, sizeof *r);

    if (!r) {
        err_nomem(e);
        return NULL;
    }
    r->config = *c;
    r->forward = forward_new(c, en->config.kernels, en->pool, e);
    if (!r->forward)
        goto fail;
    r->logits = logits_new(r->forward, e);
    if (!r->logits)
        goto fail;
    r->kv = kv_cache_new(c, KV_ALL_LAYERS, engine_kv_budget(en), e);
    if (!r->kv || make_buffers(r, pool_workers(en->pool), e) < 0)
        goto fail;
    r->prefixes.whole = c->n_conv_layers > 0;
    r->prefixes.block_bytes = kv_cache_block_bytes(r->kv);
    return r;

fail:
    runner_free(r);
    return NULL;
}

struct runner *runner_get(struct engine *en, const struct model_config *c, struct err *e)
{
    struct runner *r = en->runners;

    while (r && !forward_fits(r->forward, c))
        r = r->next;
    if (!r) {
        r = runner_new(en, c, e);
        if (!r)
            return NULL;
        r->next = en->runners;
        en->runners = r;
    }
    r->users++;
    return r;
}

void runner_put(struct engine *en, struct runner *r)
{
    if (!r || --r->users > 0)
        return;
    struct runner **at = &en->runners;

    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    runner_free(r);
}

size_t runner_kv_promised(const struct runner *r)
{
    int64_t free_blocks = kv_cache_free_positions(r->kv) / KV_BLOCK;

    return (size_t)(kv_cache_blocks(r->kv) - free_blocks) * kv_cache_block_bytes(r->kv);
}

static int blocks_ahead(const struct runner *r, int n_active)
{
    size_t fit = AHEAD_IDLE_BYTES / kv_cache_block_bytes(r->kv);

    if (n_active > 0)
        return n_active + 1;
    return fit < AHEAD_IDLE_BLOCKS ? (int)fit : AHEAD_IDLE_BLOCKS;
}

bool runners_touch_ahead(struct engine *en, int n_active)
{
    for (struct runner *r = en->runners; r; r = r->next)
        if (kv_cache_touch_ahead(r->kv, en->pool, blocks_ahead(r, n_active)))
            return true;
    return false;
}

void runners_drop_prefixes(struct engine *en)
{
    for (struct runner *r = en->runners; r; r = r->next)
        prefix_drop(&r->prefixes);
}
