#include "engine/queue.h"

#include "base/clock.h"
#include "base/err.h"
#include "engine/batch.h"
#include "engine/engine_impl.h"
#include "engine/gen.h"
#include "engine/image.h"
#include "engine/runner.h"
#include "engine/served.h"
#include "model/adapter.h"
#include "model/model.h"

/* Slots that are free at once are not waited for; a gate that holds leaves none. */
static bool is_full(const struct engine *en)
{
    int slots = en->gate == GATE_OPEN ? en->config.max_running - en->n_slots : 0;

    return en->n_waiting >= en->config.max_waiting + slots;
}

/* The lock is held. Requests in the background are not what the queue's limit is for. */
static void count_waiting(struct engine *en, const struct gen *g, int change)
{
    if (!g->spec.background)
        en->n_waiting += change;
}

int queue_push(struct engine *en, struct gen *g, struct err *e)
{
    struct gen **at = &en->queue;
    int rc = 0;

    pthread_mutex_lock(&en->lock);
    if (en->stopping) {
        rc = err_set(e, ERR_CONFLICT, "the server stops");
    } else if (!g->spec.background && is_full(en)) {
        rc = err_set(e, ERR_SPACE, "%d requests are waiting already", en->n_waiting);
    } else {
        while (*at)
            at = &(*at)->next;
        *at = g;
        g->next = NULL;
        count_waiting(en, g, 1);
        en->poked = true;
        pthread_cond_signal(&en->wake);
    }
    pthread_mutex_unlock(&en->lock);
    return rc;
}

/* The last event of a request that never ran. */
static void end_waiting(struct gen *g, enum gen_event_kind why)
{
    gen_emit(g, &(struct gen_event){.kind = why});
    gen_free(g);
}

/* Why a waiting request ends now; GEN_DONE: it does not. */
static enum gen_event_kind verdict(const struct engine *en, struct gen *g, int64_t now)
{
    if (atomic_load_explicit(&g->cancelled, memory_order_relaxed))
        return GEN_CANCELLED;
    if (g->spec.image)
        return GEN_DONE;
    if (en->gate == GATE_REFUSE)
        return GEN_TORN;
    if (en->gate == GATE_OPEN)
        g->held_since = 0;
    else if (g->spec.background)
        return GEN_DONE; /* nobody waits for it */
    else if (g->held_since == 0)
        g->held_since = now;
    else if (now - g->held_since >= en->config.hold_timeout_ms * 1000000)
        return GEN_HOLD_TIMEOUT;
    return GEN_DONE;
}

/* Unlinks the first request with a verdict. NULL: there is none. */
static struct gen *unlink_ended(struct engine *en, enum gen_event_kind *why)
{
    struct gen **at = &en->queue;
    int64_t now = clock_mono_ns();

    pthread_mutex_lock(&en->lock);
    while (*at && (*why = verdict(en, *at, now)) == GEN_DONE)
        at = &(*at)->next;
    struct gen *g = *at;

    if (g) {
        *at = g->next;
        count_waiting(en, g, -1);
    }
    pthread_mutex_unlock(&en->lock);
    return g;
}

/* Half of the slots, at least one, is for requests in the background: whoever comes while they run
 * finds the others free. */
static bool has_background_slot(const struct engine *en)
{
    int n = 0, most = en->config.max_running > 1 ? en->config.max_running / 2 : 1;

    for (const struct gen *g = en->batch->running; g; g = g->next)
        n += g->spec.background;
    return n < most;
}

/* The oldest request that the gate lets through: of the others before those in the background. */
static struct gen **find_next(struct engine *en)
{
    struct gen **background = NULL, **at = &en->queue;

    for (; *at; at = &(*at)->next) {
        if ((en->gate != GATE_OPEN && !(*at)->spec.image) ||
            atomic_load_explicit(&(*at)->paused, memory_order_relaxed))
            continue;
        if (!(*at)->spec.background)
            return at;
        if (!background)
            background = at;
    }
    return background && has_background_slot(en) ? background : at;
}

/* any: the oldest of all, whatever the gate says. */
static struct gen *unlink_first(struct engine *en, bool any)
{
    struct gen **at;

    pthread_mutex_lock(&en->lock);
    at = any ? &en->queue : find_next(en);
    struct gen *g = *at;

    if (g) {
        *at = g->next;
        count_waiting(en, g, -1);
    }
    pthread_mutex_unlock(&en->lock);
    return g;
}

static void put_back(struct engine *en, struct gen *g)
{
    pthread_mutex_lock(&en->lock);
    g->next = en->queue;
    en->queue = g;
    count_waiting(en, g, 1);
    pthread_mutex_unlock(&en->lock);
}

/* GEN_DONE: it may run. */
static enum gen_event_kind check_resident(struct engine *en, const struct gen *g)
{
    struct err e = {0};

    if (!en->resident)
        return GEN_NO_MODEL;
    if (en->served->load_counter != g->spec.load_counter ||
        gen_check(g, &en->resident->model->config, &e) < 0)
        return GEN_RESOLVE_AGAIN;
    if (!en->resident_runner)
        en->resident_runner = runner_get(en, &en->resident->model->config, &e);
    return en->resident_runner ? GEN_DONE : GEN_NO_MEMORY;
}

/* The same for a request with an image of its own. */
static enum gen_event_kind pin_own(struct engine *en, struct gen *g)
{
    struct err e = {0};

    g->runner = runner_get(en, &g->spec.image->model->config, &e);
    if (!g->runner)
        return GEN_NO_MEMORY;
    g->image = image_ref(g->spec.image);
    g->adapter = g->spec.adapter ? adapter_ref(g->spec.adapter) : NULL;
    return GEN_DONE;
}

static enum gen_event_kind pin(struct engine *en, struct gen *g)
{
    if (g->spec.image)
        return pin_own(en, g);
    enum gen_event_kind why = check_resident(en, g);

    if (why != GEN_DONE)
        return why;
    g->runner = en->resident_runner;
    g->runner->users++;
    g->image = image_ref(en->resident);
    g->adapter = en->adapter ? adapter_ref(en->adapter) : NULL;
    g->served = served_ref(en->served);
    return GEN_DONE;
}

static void unpin(struct engine *en, struct gen *g)
{
    runner_put(en, g->runner);
    image_unref(g->image);
    adapter_unref(g->adapter);
    served_unref(g->served);
    g->runner = NULL;
    g->image = NULL;
    g->adapter = NULL;
    g->served = NULL;
}

/* False: it has to wait, and everybody behind it. */
static bool admit(struct engine *en, struct gen *g)
{
    enum gen_event_kind why = pin(en, g);

    if (why != GEN_DONE) {
        end_waiting(g, why);
        return true;
    }
    switch (batch_take(en->batch, g)) {
    case BATCH_TAKEN:
        gen_emit(g,
                 &(struct gen_event){.kind = GEN_ADMITTED, .served = g->served, .image = g->image});
        return true;
    case BATCH_NEVER:
        unpin(en, g);
        end_waiting(g, GEN_NO_MEMORY);
        return true;
    case BATCH_LATER:
        break;
    }
    unpin(en, g);
    put_back(en, g);
    return false;
}

void queue_serve(struct engine *en)
{
    enum gen_event_kind why;
    struct gen *g;

    while ((g = unlink_ended(en, &why)) != NULL)
        end_waiting(g, why);
    while (!en->batch->starved && en->batch->n_running < en->config.max_running &&
           (g = unlink_first(en, false)) != NULL)
        if (!admit(en, g))
            return;
}

int64_t queue_deadline(struct engine *en)
{
    int64_t first = 0;

    pthread_mutex_lock(&en->lock);
    for (const struct gen *g = en->queue; g; g = g->next) {
        int64_t at = g->held_since + en->config.hold_timeout_ms * 1000000;

        if (g->held_since && (first == 0 || at < first))
            first = at;
    }
    pthread_mutex_unlock(&en->lock);
    return first;
}

void queue_end_all(struct engine *en, enum gen_event_kind why)
{
    struct gen *g;

    while ((g = unlink_first(en, true)) != NULL)
        end_waiting(g, why);
}
