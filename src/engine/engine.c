#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/meminfo.h"
#include "base/pool.h"
#include "engine/batch.h"
#include "engine/engine_impl.h"
#include "engine/gen.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "engine/meter.h"
#include "engine/queue.h"
#include "engine/run_impl.h"
#include "engine/runner.h"
#include "engine/served.h"
#include "model/adapter.h"
#include "model/model.h"

enum { IMAGES_DEFAULT = 3, TRAIN_SHARE_DEFAULT = 50, BACKGROUND_SHARE_DEFAULT = 85 };

static const size_t kv_least = (size_t)16 << 20;
static const size_t kv_unmeasured = (size_t)1 << 30;

/* ---- the thread ---- */

static void sleep_until(struct engine *en, int64_t deadline)
{
    struct timespec at = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};

    pthread_mutex_lock(&en->lock);
    while (!en->poked) {
        if (deadline == 0)
            pthread_cond_wait(&en->wake, &en->lock);
        else if (pthread_cond_timedwait(&en->wake, &en->lock, &at) != 0)
            break;
    }
    pthread_mutex_unlock(&en->lock);
}

/* Those that are there now: what comes meanwhile is for the next turn, or who calls on and on would
 * keep the steps of requests from their turn. True: there is more. */
static bool run_calls(struct engine *en)
{
    pthread_mutex_lock(&en->lock);
    struct call *c = en->calls;

    en->calls = NULL;
    en->poked = false;
    while (c) {
        struct call *next = c->next;

        pthread_mutex_unlock(&en->lock);
        c->fn(en, c->arg);
        pthread_mutex_lock(&en->lock);
        c->done = true; /* its caller may be gone from here on */
        pthread_cond_broadcast(&en->changed);
        c = next;
    }
    bool more = en->calls != NULL;

    pthread_mutex_unlock(&en->lock);
    return more;
}

/* Returns the tick's next deadline, 0: none. */
static int64_t run_tick(struct engine *en)
{
    pthread_mutex_lock(&en->lock);
    engine_tick_fn *fn = en->tick;
    void *arg = en->tick_arg;

    pthread_mutex_unlock(&en->lock);
    return fn ? fn(en, arg) : 0;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

static bool is_stopping(struct engine *en)
{
    pthread_mutex_lock(&en->lock);
    bool stopping = en->stopping;

    pthread_mutex_unlock(&en->lock);
    return stopping;
}

/* One turn: messages, timers, who leaves, who comes, one step, one slice of training. */
static void *engine_main(void *arg)
{
    struct engine *en = arg;

    pool_adopt(en->pool);
    while (!is_stopping(en)) {
        run_calls(en);
        int64_t deadline = run_tick(en);

        batch_sweep(en->batch);
        queue_serve(en);
        int64_t start = clock_mono_ns();
        bool stepped = batch_step(en->batch);

        bool worked = train_turn(en, stepped, clock_mono_ns() - start) || stepped;

        if (!runners_touch_ahead(en, en->batch->n_active) && !worked)
            sleep_until(en, earlier(deadline, queue_deadline(en)));
    }
    while (run_calls(en))
        ;
    batch_end_all(en->batch, GEN_STOPPED);
    queue_end_all(en, GEN_STOPPED);
    engine_set_adapter(en, NULL);
    engine_set_resident(en, NULL, NULL);
    return NULL;
}

/* ---- start and stop ---- */

static void init_sync(struct engine *en)
{
    pthread_condattr_t mono;

    pthread_condattr_init(&mono);
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    pthread_mutex_init(&en->lock, NULL);
    pthread_mutex_init(&en->snapshot_lock, NULL);
    pthread_cond_init(&en->wake, &mono);
    pthread_cond_init(&en->changed, &mono);
    pthread_condattr_destroy(&mono);
}

static void engine_free(struct engine *en)
{
    batch_free(en->batch);
    meter_free(en->meter);
    image_bank_unref(en->bank);
    pool_free(en->pool);
    pthread_cond_destroy(&en->changed);
    pthread_cond_destroy(&en->wake);
    pthread_mutex_destroy(&en->snapshot_lock);
    pthread_mutex_destroy(&en->lock);
    free(en);
}

struct engine *engine_start(const struct engine_config *c, struct err *e)
{
    if (c->max_running < 1 || c->max_waiting < 0) {
        err_set(e, ERR_ARG, "%d slots and a queue of %d", c->max_running, c->max_waiting);
        return NULL;
    }
    struct engine *en = calloc(1, sizeof *en);

    if (!en) {
        err_nomem(e);
        return NULL;
    }
    init_sync(en);
    en->config = *c;
    if (en->config.max_images < 1)
        en->config.max_images = IMAGES_DEFAULT;
    if (en->config.slot_times < 1 || en->config.slot_times > SLOT_TIMES_MAX)
        en->config.slot_times = SLOT_TIMES_DEFAULT;
    if (en->config.train_share < 1 || en->config.train_share > 99)
        en->config.train_share = TRAIN_SHARE_DEFAULT;
    if (en->config.background_share < 1 || en->config.background_share > 100)
        en->config.background_share = BACKGROUND_SHARE_DEFAULT;
    atomic_init(&en->kv_budget, c->kv_bytes);
    en->pool = pool_new(c->n_threads, e);
    en->bank = image_bank_new(e);
    en->batch = batch_new(en, e);
    en->meter = meter_new();
    if (!en->meter)
        err_nomem(e);
    if (!en->pool || !en->bank || !en->batch || !en->meter)
        goto fail;
    if (pthread_create(&en->thread, NULL, engine_main, en) != 0) {
        err_set(e, ERR_NOMEM, "the engine thread cannot be started");
        goto fail;
    }
    return en;

fail:
    engine_free(en);
    return NULL;
}

void engine_stop(struct engine *en)
{
    if (!en)
        return;
    pthread_mutex_lock(&en->lock);
    en->stopping = true;
    en->poked = true;
    pthread_cond_signal(&en->wake);
    pthread_mutex_unlock(&en->lock);
    pthread_join(en->thread, NULL);
    engine_free(en);
}

struct pool *engine_pool(struct engine *en)
{
    return en->pool;
}

const struct kernels *engine_kernels(const struct engine *en)
{
    return en->config.kernels;
}

struct image_bank *engine_bank(struct engine *en)
{
    return en->bank;
}

size_t engine_kv_budget(struct engine *en)
{
    size_t budget = atomic_load_explicit(&en->kv_budget, memory_order_relaxed);
    size_t available;

    if (budget > 0)
        return budget;
    budget = meminfo_available(&available) == 0 ? available / 4 : kv_unmeasured;
    budget = budget < kv_least ? kv_least : budget;
    atomic_store_explicit(&en->kv_budget, budget, memory_order_relaxed);
    return budget;
}

/* ---- messages ---- */

void engine_poke(struct engine *en)
{
    pthread_mutex_lock(&en->lock);
    en->poked = true;
    pthread_cond_signal(&en->wake);
    pthread_mutex_unlock(&en->lock);
}

void engine_call(struct engine *en, engine_fn *fn, void *arg)
{
    struct call c = {.fn = fn, .arg = arg};

    if (pthread_equal(pthread_self(), en->thread)) {
        fn(en, arg);
        return;
    }
    pthread_mutex_lock(&en->lock);
    struct call **at = &en->calls;

    while (*at)
        at = &(*at)->next;
    *at = &c;
    en->poked = true;
    pthread_cond_signal(&en->wake);
    while (!c.done)
        pthread_cond_wait(&en->changed, &en->lock);
    pthread_mutex_unlock(&en->lock);
}

void engine_set_tick(struct engine *en, engine_tick_fn *fn, void *arg)
{
    pthread_mutex_lock(&en->lock);
    en->tick = fn;
    en->tick_arg = arg;
    pthread_mutex_unlock(&en->lock);
    engine_poke(en);
}

/* ---- the resident ---- */

struct image *engine_resident(struct engine *en)
{
    return en->resident;
}

struct served *engine_served(struct engine *en)
{
    return en->served;
}

void engine_set_resident(struct engine *en, struct image *im, struct served *s)
{
    struct image *old = en->resident;
    struct served *old_served = en->served;
    struct runner *old_runner = en->resident_runner;
    struct err e = {0}; /* no memory now: admission tries again, and says so */

    en->resident_runner = im ? runner_get(en, &im->model->config, &e) : NULL;
    runners_drop_prefixes(en);
    if (im && old && im != old)
        image_bank_keep_spare(en->bank);
    pthread_mutex_lock(&en->lock);
    en->resident = im;
    en->served = s;
    pthread_mutex_unlock(&en->lock);
    engine_note_running(en);
    runner_put(en, old_runner);
    image_unref(old);
    served_unref(old_served);
}

void engine_set_served(struct engine *en, struct served *s)
{
    struct served *old = en->served;

    pthread_mutex_lock(&en->lock);
    en->served = s;
    pthread_mutex_unlock(&en->lock);
    served_unref(old);
}

void engine_set_adapter(struct engine *en, struct adapter *a)
{
    struct adapter *old = en->adapter;

    runners_drop_prefixes(en);
    en->adapter = a;
    adapter_unref(old);
}

void engine_set_gate(struct engine *en, enum engine_gate g)
{
    if (g != GATE_OPEN)
        runners_drop_prefixes(en);
    pthread_mutex_lock(&en->lock);
    en->gate = g;
    en->poked = true; /* from a tick: who is refused is told in this turn or the next */
    pthread_mutex_unlock(&en->lock);
}

int engine_running(struct engine *en)
{
    return en->n_running;
}

int engine_waiting(struct engine *en)
{
    pthread_mutex_lock(&en->lock);
    int n = en->n_waiting;

    pthread_mutex_unlock(&en->lock);
    return n;
}

int engine_old_images(struct engine *en)
{
    return en->n_old_images;
}

struct served *engine_peek(struct engine *en, struct image **image)
{
    pthread_mutex_lock(&en->lock);
    struct served *s = en->served ? served_ref(en->served) : NULL;

    *image = en->resident ? image_ref(en->resident) : NULL;
    pthread_mutex_unlock(&en->lock);
    return s;
}

struct served *engine_peek_served(struct engine *en)
{
    pthread_mutex_lock(&en->lock);
    struct served *s = en->served ? served_ref(en->served) : NULL;

    pthread_mutex_unlock(&en->lock);
    return s;
}

struct image *engine_peek_image(struct engine *en)
{
    pthread_mutex_lock(&en->lock);
    struct image *im = en->resident ? image_ref(en->resident) : NULL;

    pthread_mutex_unlock(&en->lock);
    return im;
}

/* ---- requests ---- */

struct gen *engine_submit(struct engine *en, const struct gen_spec *spec, struct err *e)
{
    struct image *im = spec->image ? image_ref(spec->image) : engine_peek_image(en);
    struct gen *g = gen_new(en, spec, e);

    if (!g)
        goto done;
    if (im && gen_check(g, &im->model->config, e) < 0)
        goto fail;
    if (queue_push(en, gen_ref(g), e) == 0)
        goto done;
    gen_free(g); /* the queue's reference */

fail:
    gen_free(g);
    g = NULL;

done:
    image_unref(im);
    return g;
}
