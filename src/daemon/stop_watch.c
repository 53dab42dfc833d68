#include "daemon/stop_watch.h"

#include <errno.h>
#include <time.h>

#include "base/err.h"
#include "base/log.h"

void stop_watch_block(struct stop_watch *w)
{
    sigemptyset(&w->signals);
    sigaddset(&w->signals, SIGTERM);
    sigaddset(&w->signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &w->signals, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* The signal; 0: the time is over. */
static int take_signal(const struct stop_watch *w, const struct timespec *patience)
{
    int got;

    do
        got = patience ? sigtimedwait(&w->signals, NULL, patience) : sigwaitinfo(&w->signals, NULL);
    while (got < 0 && errno == EINTR);
    return got > 0 ? got : 0;
}

static void *watch(void *arg)
{
    struct stop_watch *w = arg;
    struct timespec patience = {.tv_sec = (time_t)w->patience_s};
    int got = take_signal(w, NULL);

    if (atomic_load(&w->ends))
        return NULL;
    log_ev(LOG_INFO, "stopping", "signal=%d", got);
    w->begin(w->arg);
    sem_post(&w->asked);
    patience.tv_nsec = (long)((w->patience_s - (double)patience.tv_sec) * 1e9);
    got = take_signal(w, &patience);
    if (atomic_load(&w->ends))
        return NULL;
    log_ev(LOG_WARNING, "stop_cut", "why=%s", got ? "signal" : "time");
    atomic_store(&w->cut, true);
    return NULL;
}

int stop_watch_start(struct stop_watch *w, struct err *e)
{
    sem_init(&w->asked, 0, 0);
    errno = pthread_create(&w->thread, NULL, watch, w);
    w->runs = errno == 0;
    return w->runs ? 0 : err_io(e, "start the thread that waits for signals");
}

void stop_watch_wait(struct stop_watch *w)
{
    while (sem_wait(&w->asked) < 0)
        ;
}

void stop_watch_end(struct stop_watch *w)
{
    if (!w->runs)
        return;
    atomic_store(&w->ends, true);
    pthread_kill(w->thread, SIGTERM);
    pthread_join(w->thread, NULL);
    sem_destroy(&w->asked);
    w->runs = false;
}
