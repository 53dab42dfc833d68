/* engine/counters.c - what the engine has done and holds, and waiting for it to let go. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/engine_impl.h"
#include "engine/gen.h"
#include "engine/image_bank.h"
#include "engine/runner.h"
#include "model/kv_cache.h"

enum { MEDIAN_LEAST = 3 };

/* ---- waiting for the engine ---- */

static bool is_drained(const struct engine *en, int n)
{
    (void)n;
    return en->n_running == 0;
}

static bool has_at_most(const struct engine *en, int n)
{
    return en->n_old_images <= n;
}

static bool wait_for(struct engine *en, bool (*met)(const struct engine *, int), int n,
                     int64_t timeout_ms)
{
    int64_t deadline = clock_mono_ns() + timeout_ms * 1000000;
    struct timespec at = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    int rc = 0;

    pthread_mutex_lock(&en->lock);
    while (!met(en, n) && rc == 0)
        rc = pthread_cond_timedwait(&en->changed, &en->lock, &at);
    bool ok = met(en, n);

    pthread_mutex_unlock(&en->lock);
    return ok;
}

bool engine_wait_drained(struct engine *en, int64_t timeout_ms)
{
    return wait_for(en, is_drained, 0, timeout_ms);
}

bool engine_wait_images(struct engine *en, int n, int64_t timeout_ms)
{
    return wait_for(en, has_at_most, n, timeout_ms);
}

/* ---- counters ---- */

static size_t kv_bytes_used(const struct engine *en)
{
    size_t used = 0;

    for (const struct runner *r = en->runners; r; r = r->next)
        used += (size_t)kv_cache_blocks_used(r->kv) * kv_cache_block_bytes(r->kv);
    return used;
}

void engine_note_step(struct engine *en, int prompt_rows, int generated)
{
    size_t used = kv_bytes_used(en);

    pthread_mutex_lock(&en->lock);
    en->steps++;
    en->prompt_tokens += (uint64_t)prompt_rows;
    en->generated_tokens += (uint64_t)generated;
    en->kv_used = used;
    pthread_mutex_unlock(&en->lock);
}

void engine_note_running(struct engine *en)
{
    const struct batch *b = en->batch;
    size_t used = kv_bytes_used(en);
    int n_old_images = batch_images(b, en->resident);
    int n_running = 0;

    for (const struct gen *g = b->running; g; g = g->next)
        n_running += !g->spec.image;
    pthread_mutex_lock(&en->lock);
    en->n_slots = b->n_running;
    en->n_running = n_running;
    en->n_old_images = n_old_images;
    en->kv_used = used;
    pthread_cond_broadcast(&en->changed);
    pthread_mutex_unlock(&en->lock);
}

void engine_note_slot(struct engine *en, double ms)
{
    pthread_mutex_lock(&en->lock);
    en->slot_ms[en->n_slot_ms++ % (uint64_t)en->config.slot_times] = ms;
    pthread_mutex_unlock(&en->lock);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_slot(const struct engine *en)
{
    double sorted[SLOT_TIMES_MAX];
    size_t most = (size_t)en->config.slot_times;
    size_t have = en->n_slot_ms < most ? (size_t)en->n_slot_ms : most;

    if (have < MEDIAN_LEAST)
        return -1;
    memcpy(sorted, en->slot_ms, have * sizeof *sorted);
    qsort(sorted, have, sizeof *sorted, by_size);
    return have % 2 ? sorted[have / 2] : (sorted[have / 2 - 1] + sorted[have / 2]) / 2;
}

int engine_slots(struct engine *en)
{
    int n;

    pthread_mutex_lock(&en->lock);
    n = en->n_slots;
    pthread_mutex_unlock(&en->lock);
    return n;
}

void engine_get_stats(struct engine *en, struct engine_stats *out)
{
    pthread_mutex_lock(&en->lock);
    *out = (struct engine_stats){
        .running = en->n_slots,
        .waiting = en->n_waiting,
        .max_running = en->config.max_running,
        .max_waiting = en->config.max_waiting,
        .median_slot_ms = median_slot(en),
        .prompt_tokens = en->prompt_tokens,
        .generated_tokens = en->generated_tokens,
        .steps = en->steps,
        .kv_bytes = atomic_load_explicit(&en->kv_budget, memory_order_relaxed),
        .kv_used = en->kv_used,
    };
    pthread_mutex_unlock(&en->lock);
    out->images_alive = image_bank_alive(en->bank);
}
