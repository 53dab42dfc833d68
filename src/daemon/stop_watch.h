/* daemon/stop_watch.h - SIGTERM and SIGINT: the first one asks for a stop, and what still writes is
 * cut when a second one comes, or when its time is over.
 *
 * Calling order: stop_watch_block before any other thread exists (they inherit it);
 * stop_watch_start when there is something to stop; stop_watch_wait; then the parts are taken down,
 * while the thread of the watch goes on; stop_watch_end. */
#ifndef DAEMON_STOP_WATCH_H
#define DAEMON_STOP_WATCH_H

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

struct err;

struct stop_watch {
    atomic_bool cut;          /* read by who writes */
    void (*begin)(void *arg); /* a stop was asked for; before stop_watch_wait returns */
    void *arg;
    double patience_s; /* from the first signal to the cut */
    sigset_t signals;
    sem_t asked;
    atomic_bool ends; /* a signal is ours: the thread returns */
    pthread_t thread;
    bool runs;
};

void stop_watch_block(struct stop_watch *w);
/* begin, arg and patience_s are set. */
int stop_watch_start(struct stop_watch *w, struct err *e);
void stop_watch_wait(struct stop_watch *w);
void stop_watch_end(struct stop_watch *w); /* also one that was not started */
#endif
