/* service/weaver/weaver.c - opening, ending, and the one thread that finishes what the engine did.
 */
#include "service/weaver/weaver.h"

#include <errno.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/fs.h"
#include "base/nomem.h"
#include "db/db.h"
#include "service/service.h"
#include "service/weaver/answers.h"
#include "service/weaver/artifacts.h"
#include "service/weaver/ckpt.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/gap.h"
#include "service/weaver/images.h"
#include "service/weaver/impl.h"
#include "service/weaver/operations.h"
#include "service/weaver/runs.h"
#include "service/weaver/samplers.h"
#include "service/weaver/samples.h"

static const int64_t sweep_every_ms = 2000, tick_ns = 200000000;

/* ---- the finisher ---- */

void w_op_engine_done(struct weaver *w, struct w_op *op)
{
    struct w_op **at;

    pthread_mutex_lock(&w->ended_lock);
    for (at = &w->ended; *at; at = &(*at)->next_ended)
        ;
    *at = op;
    op->next_ended = NULL;
    pthread_cond_signal(&w->ended_came);
    pthread_mutex_unlock(&w->ended_lock);
}

static struct timespec soon(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += tick_ns;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* What came, or NULL after a tick; *over when there will be nothing more. */
static struct w_op *take_ended(struct weaver *w, bool *over)
{
    struct timespec until = soon();
    struct w_op *op;

    pthread_mutex_lock(&w->ended_lock);
    while (!w->ended && !w->finisher_stops)
        if (pthread_cond_timedwait(&w->ended_came, &w->ended_lock, &until) == ETIMEDOUT)
            break;
    op = w->ended;
    if (op)
        w->ended = op->next_ended;
    *over = !op && w->finisher_stops;
    pthread_mutex_unlock(&w->ended_lock);
    return op;
}

static void sweep(struct weaver *w)
{
    int64_t now = clock_mono_ns();

    if (now < w->next_sweep_ns)
        return;
    w->next_sweep_ns = now + 1000000 * faults_idle_ms(w->s->faults, sweep_every_ms);
    w_runs_note(w);
    w_answers_sweep(w);
    w_ops_sweep(w);
    w_ckpts_sweep(w);
    w_artifacts_sweep(w);
    w_samplers_sweep(w);
    w_exported_sweep(w);
    images_sweep(w->images);
    service_clear_leftovers(w->s);
}

/* What goes by the clock, however fast operations end. */
static void tick(struct weaver *w)
{
    int64_t now = clock_mono_ns();

    if (now < w->next_tick_ns)
        return;
    w->next_tick_ns = now + tick_ns;
    w_runs_tick(w);
    w_samples_pump(w);
    sweep(w);
}

static void *finisher(void *arg)
{
    struct weaver *w = arg;
    bool over = false;

    while (!over) {
        struct w_op *op = take_ended(w, &over);

        nomem_forget();
        if (op) {
            nomem_set_aside(NOMEM_ANSWER);
            op->ended(w, op);
            nomem_let_go();
        }
        tick(w);
    }
    return NULL;
}

/* ---- opening ---- */

static void init_locks(struct weaver *w)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->revival, NULL);
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->ended_lock, NULL);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_cond_init(&w->ended_came, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static int open_operations(struct weaver *w, struct err *e)
{
    struct buf path = {0};

    buf_printf(&path, "%s/cairn.db", w->s->settings->state_dir);
    w->ops = path.failed ? NULL : db_open(buf_str(&path), e);
    buf_release(&path);
    return w->ops ? db_relax(w->ops, e) : -1;
}

static int open_root(struct weaver *w, struct err *e)
{
    const char *dir = w->s->settings->weaver_dir;

    if (fs_make_dirs(dir, 0750, e) < 0)
        return err_wrap(e, "WEAVER_CHECKPOINT_DIR");
    w->root_fd = fs_open_dir(dir, e);
    return w->root_fd < 0 ? err_wrap(e, "WEAVER_CHECKPOINT_DIR") : 0;
}

static int start_finisher(struct weaver *w, struct err *e)
{
    int rc = pthread_create(&w->finisher, NULL, finisher, w);

    w->has_finisher = rc == 0;
    errno = rc;
    return rc == 0 ? 0 : err_io(e, "start a thread of the training API");
}

struct weaver *weaver_open(struct service *s, struct err *e)
{
    struct weaver *w = calloc(1, sizeof *w);

    if (!w) {
        err_nomem(e);
        return NULL;
    }
    *w = (struct weaver){.s = s, .db = s->db, .root_fd = -1};
    init_locks(w);
    if (open_operations(w, e) < 0 || open_root(w, e) < 0 || w_ckpts_restart(w, e) < 0 ||
        w_ops_restart(w, e) < 0 || w_artifacts_restart(w, e) < 0)
        goto fail;
    ckpt_files_clean(w);
    w->images = images_new(s, e);
    if (!w->images)
        goto fail;
    if (!(w->gap = gap_new())) {
        err_nomem(e);
        goto fail;
    }
    if (RAND_bytes(w->link_key, sizeof w->link_key) != 1) {
        err_set(e, ERR_IO, "no random bytes");
        goto fail;
    }
    if (start_finisher(w, e) < 0)
        goto fail;
    return w;

fail:
    weaver_close(w);
    return NULL;
}

void weaver_stop(struct weaver *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    w_samples_end(w);
    w_runs_note(w);
    w_runs_end_all(w);
}

/* Cancelled ones still tell their last event. */
static void wait_samples(struct weaver *w)
{
    pthread_mutex_lock(&w->lock);
    while (w->samplers_running > 0) {
        struct timespec until = soon();

        pthread_cond_timedwait(&w->changed, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
}

void weaver_settle(struct weaver *w)
{
    if (!w || !w->has_finisher)
        return;
    wait_samples(w);
    pthread_mutex_lock(&w->ended_lock);
    w->finisher_stops = true;
    pthread_cond_signal(&w->ended_came);
    pthread_mutex_unlock(&w->ended_lock);
    pthread_join(w->finisher, NULL);
    w->has_finisher = false;
    w_samples_end(w); /* put back into the queue after weaver_stop had emptied it */
}

void weaver_close(struct weaver *w)
{
    if (!w)
        return;
    weaver_settle(w);
    w_ops_close(w);
    w_samplers_free(w);
    w_pauses_free(w);
    w_exported_free(w);
    images_free(w->images);
    gap_free(w->gap);
    fs_close(w->root_fd);
    db_close(w->ops);
    pthread_mutex_destroy(&w->revival);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->ended_lock);
    pthread_cond_destroy(&w->changed);
    pthread_cond_destroy(&w->ended_came);
    free(w);
}
