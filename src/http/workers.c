#include "http/workers.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "base/err.h"

/* Handlers parse JSON (bounded depth) and format text. Sanitizers need several times the stack. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK_BYTES = 4 << 20 };
#else
enum { STACK_BYTES = 512 << 10 };
#endif
enum { IDLE_SECONDS = 10 };

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t work_came; /* for idle threads */
    pthread_cond_t thread_left;
    pthread_attr_t attr;
    struct work *first, **last;
    int queued, idle, threads, max_threads;
    bool stopping;
};

static int init_sync(struct workers *ws)
{
    pthread_condattr_t mono;

    if (pthread_condattr_init(&mono) != 0)
        return -1;
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    pthread_mutex_init(&ws->lock, NULL);
    pthread_cond_init(&ws->work_came, &mono);
    pthread_cond_init(&ws->thread_left, &mono);
    pthread_condattr_destroy(&mono);
    pthread_attr_init(&ws->attr);
    pthread_attr_setstacksize(&ws->attr, STACK_BYTES);
    pthread_attr_setdetachstate(&ws->attr, PTHREAD_CREATE_DETACHED);
    return 0;
}

struct workers *workers_new(int max_threads, struct err *e)
{
    struct workers *ws = calloc(1, sizeof *ws);

    if (!ws || init_sync(ws) < 0) {
        free(ws);
        err_nomem(e);
        return NULL;
    }
    ws->last = &ws->first;
    ws->max_threads = max_threads;
    return ws;
}

static struct work *pop(struct workers *ws)
{
    struct work *w = ws->first;

    ws->first = w->next;
    if (!ws->first)
        ws->last = &ws->first;
    ws->queued--;
    return w;
}

/* false: nothing came for IDLE_SECONDS, or the pool stops. Locked. */
static bool wait_for_work(struct workers *ws)
{
    struct timespec until;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_SECONDS;
    ws->idle++;
    while (!ws->first && !ws->stopping && rc == 0)
        rc = pthread_cond_timedwait(&ws->work_came, &ws->lock, &until);
    ws->idle--;
    return ws->first != NULL;
}

static void *worker_main(void *arg)
{
    struct workers *ws = arg;

    pthread_mutex_lock(&ws->lock);
    while (ws->first || wait_for_work(ws)) {
        struct work *w = pop(ws);

        pthread_mutex_unlock(&ws->lock);
        w->fn(w);
        pthread_mutex_lock(&ws->lock);
    }
    ws->threads--;
    pthread_cond_signal(&ws->thread_left);
    pthread_mutex_unlock(&ws->lock);
    return NULL;
}

static void start_thread(struct workers *ws)
{
    pthread_t t;

    if (pthread_create(&t, &ws->attr, worker_main, ws) == 0)
        ws->threads++;
}

int workers_push(struct workers *ws, struct work *w)
{
    int rc = 0;

    w->next = NULL;
    pthread_mutex_lock(&ws->lock);
    if (ws->idle <= ws->queued && ws->threads < ws->max_threads)
        start_thread(ws);
    if (ws->threads == 0) {
        rc = -1;
    } else {
        *ws->last = w;
        ws->last = &w->next;
        ws->queued++;
        pthread_cond_signal(&ws->work_came);
    }
    pthread_mutex_unlock(&ws->lock);
    return rc;
}

int workers_threads(struct workers *ws)
{
    int n;

    pthread_mutex_lock(&ws->lock);
    n = ws->threads;
    pthread_mutex_unlock(&ws->lock);
    return n;
}

void workers_free(struct workers *ws)
{
    if (!ws)
        return;
    pthread_mutex_lock(&ws->lock);
    ws->stopping = true;
    pthread_cond_broadcast(&ws->work_came);
    while (ws->threads > 0)
        pthread_cond_wait(&ws->thread_left, &ws->lock);
    pthread_mutex_unlock(&ws->lock);
    pthread_attr_destroy(&ws->attr);
    pthread_cond_destroy(&ws->work_came);
    pthread_cond_destroy(&ws->thread_left);
    pthread_mutex_destroy(&ws->lock);
    free(ws);
}
