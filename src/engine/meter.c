#include "engine/meter.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine_impl.h"
#include "engine/gen.h"

struct meter {
    pthread_mutex_t lock;
    struct engine_meter m;
};

static const double waits[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                               2.5,   5,      10,    20,   40,    80,   160, 640,  2560};
static const double gaps[] = {0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075,
                              0.1,    0.15,  0.2,  0.3,   0.4,  0.5,   0.75, 1,    2.5,  5};
static const double lengths[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

struct meter *meter_new(void)
{
    struct meter *m = malloc(sizeof *m);

    if (!m)
        return NULL;
    *m = (struct meter){.m = {.queue_s = HISTOGRAM(waits),
                              .first_token_s = HISTOGRAM(waits),
                              .gap_s = HISTOGRAM(gaps),
                              .request_s = HISTOGRAM(waits),
                              .prompt_tokens = HISTOGRAM(lengths),
                              .generated_tokens = HISTOGRAM(lengths)}};
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

void meter_free(struct meter *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void engine_get_meter(struct engine *en, struct engine_meter *out)
{
    pthread_mutex_lock(&en->meter->lock);
    *out = en->meter->m;
    pthread_mutex_unlock(&en->meter->lock);
}

static double since(int64_t ns)
{
    return clock_ms_since(ns) / 1e3;
}

void meter_admitted(struct meter *m, const struct gen *g)
{
    pthread_mutex_lock(&m->lock);
    histogram_add(&m->m.queue_s, (double)(g->admitted_at - g->submitted_at) / 1e9);
    pthread_mutex_unlock(&m->lock);
}

void meter_prefix(struct meter *m, int asked, int known)
{
    pthread_mutex_lock(&m->lock);
    m->m.prefix_tokens_asked += (uint64_t)asked;
    m->m.prefix_tokens_known += (uint64_t)known;
    pthread_mutex_unlock(&m->lock);
}

void meter_token(struct meter *m, struct sequence *s)
{
    struct gen *g = s->gen;

    pthread_mutex_lock(&m->lock);
    if (s->n_new > 1)
        histogram_add(&m->m.gap_s, since(s->token_at));
    else if (!g->has_begun)
        histogram_add(&m->m.first_token_s, since(g->submitted_at));
    pthread_mutex_unlock(&m->lock);
    g->has_begun = true;
    s->token_at = clock_mono_ns();
}

void meter_sequence_ended(struct meter *m, const struct sequence *s, bool stopped)
{
    pthread_mutex_lock(&m->lock);
    m->m.ended_stop += stopped;
    m->m.ended_length += !stopped;
    histogram_add(&m->m.prompt_tokens, s->n_prompt);
    if (s->n_new > 0)
        histogram_add(&m->m.generated_tokens, s->n_new);
    pthread_mutex_unlock(&m->lock);
}

void meter_request_ended(struct meter *m, const struct gen *g, int n_aborted)
{
    pthread_mutex_lock(&m->lock);
    m->m.ended_abort += (uint64_t)n_aborted;
    histogram_add(&m->m.request_s, since(g->submitted_at));
    pthread_mutex_unlock(&m->lock);
}
