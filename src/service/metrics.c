#include "service/metrics.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"

struct metrics {
    pthread_mutex_t lock;
    struct metrics_counts c;
    int64_t closed_ns; /* since when the gate is closed; 0: it is open */
};

static const double instants[] = {1e-6, 1e-5, 1e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05,
                                  0.1,  0.25, 0.5,  1,    2.5,  5,      10,   30,   60};
static const double transfers[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,  2.5,
                                   5,    10,    20,   40,  80,   160, 320};

struct metrics *metrics_new(struct err *e)
{
    struct metrics *m = malloc(sizeof *m);

    if (!m) {
        err_nomem(e);
        return NULL;
    }
    *m = (struct metrics){.c = {.pause_s = HISTOGRAM(instants),
                                .snapshot_s = HISTOGRAM(instants),
                                .save_s = HISTOGRAM(transfers),
                                .verify_s = HISTOGRAM(transfers)}};
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

void metrics_free(struct metrics *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void metrics_copy(struct metrics *m, struct metrics_counts *out)
{
    pthread_mutex_lock(&m->lock);
    *out = m->c;
    pthread_mutex_unlock(&m->lock);
}

void metrics_gate(struct metrics *m, bool closed)
{
    pthread_mutex_lock(&m->lock);
    if (closed && m->closed_ns == 0)
        m->closed_ns = clock_mono_ns();
    if (!closed && m->closed_ns != 0) {
        histogram_add(&m->c.pause_s, clock_ms_since(m->closed_ns) / 1e3);
        m->closed_ns = 0;
    }
    pthread_mutex_unlock(&m->lock);
}

static void add_ms(struct metrics *m, struct histogram *h, double ms)
{
    pthread_mutex_lock(&m->lock);
    histogram_add(h, ms / 1e3);
    pthread_mutex_unlock(&m->lock);
}

void metrics_snapshot(struct metrics *m, double ms)
{
    add_ms(m, &m->c.snapshot_s, ms);
}

void metrics_verified(struct metrics *m, double ms)
{
    add_ms(m, &m->c.verify_s, ms);
}

void metrics_saved(struct metrics *m, int64_t bytes, double ms)
{
    pthread_mutex_lock(&m->lock);
    histogram_add(&m->c.save_s, ms / 1e3);
    m->c.saved_bytes += bytes;
    pthread_mutex_unlock(&m->lock);
}

/* Locked. NULL: the table is full. */
static struct operation_count *find_operation(struct metrics_counts *c, const char *name)
{
    for (int i = 0; i < c->n_operations; i++)
        if (strcmp(c->operations[i].name, name) == 0)
            return &c->operations[i];
    if (c->n_operations == METRICS_OPERATIONS_MAX)
        return NULL;
    c->operations[c->n_operations].name = name;
    return &c->operations[c->n_operations++];
}

void metrics_operation(struct metrics *m, const char *operation, int status,
                       const struct refusal *r)
{
    struct operation_count *o;

    pthread_mutex_lock(&m->lock);
    o = find_operation(&m->c, operation);
    if (o && status >= 500)
        o->failed++;
    else if (o && r)
        o->refused++;
    else if (o)
        o->accepted++;
    m->c.verify_failures += r && r->code == REFUSAL_CHECKPOINT_HASH_MISMATCH;
    pthread_mutex_unlock(&m->lock);
}

void metrics_refused(struct metrics *m, enum refusal_code code)
{
    pthread_mutex_lock(&m->lock);
    m->c.refusals[code]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_gap(struct metrics *m, int n, double gap)
{
    pthread_mutex_lock(&m->lock);
    m->c.compared_tokens += (uint64_t)n;
    if (gap > m->c.logprob_gap)
        m->c.logprob_gap = gap;
    pthread_mutex_unlock(&m->lock);
}
