#include "store/ring.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/err.h"

struct ring {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    pthread_t helper;
    ring_fn *fn;
    void *arg;
    bool ended;    /* the helper returned */
    bool given_up; /* the caller wants no more */
    bool failed;
    struct err error; /* of the helper */
    unsigned char *memory;
    size_t bytes;
    int n;
    unsigned filled, drained; /* counters; a block is at counter % n */
    cpu_set_t cpus;           /* where the caller may run */
    bool cpus_changed;        /* and the helper does not know yet */
    struct ring_block block[];
};

struct ring *ring_open(int n_blocks, size_t block_bytes, struct err *e)
{
    struct ring *r = calloc(1, sizeof *r + (size_t)n_blocks * sizeof r->block[0]);

    if (!r) {
        err_nomem(e);
        return NULL;
    }
    r->n = n_blocks;
    r->bytes = (size_t)n_blocks * block_bytes;
    r->memory = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->memory == MAP_FAILED) {
        err_nomem(e);
        free(r);
        return NULL;
    }
    madvise(r->memory, r->bytes,
            MADV_HUGEPAGE); /* advice only: fewer pages to pin for direct I/O */
    for (int i = 0; i < n_blocks; i++)
        r->block[i].own = r->memory + (size_t)i * block_bytes;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->moved, NULL);
    return r;
}

void ring_close(struct ring *r)
{
    if (!r)
        return;
    munmap(r->memory, r->bytes);
    pthread_cond_destroy(&r->moved);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static void *help(void *arg)
{
    struct ring *r = arg;
    struct err e = {0};
    int rc = r->fn(r->arg, r, &e);

    pthread_mutex_lock(&r->lock);
    r->ended = true;
    r->failed = rc < 0;
    r->error = e;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int ring_start(struct ring *r, ring_fn *fn, void *arg, struct err *e)
{
    sigset_t all, before;
    int rc;

    r->fn = fn;
    r->arg = arg;
    sched_getaffinity(0, sizeof r->cpus, &r->cpus); /* the helper inherits them */
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* of a shared arena that was cut short: handled where it happens */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&r->helper, NULL, help, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        return 0;
    errno = rc;
    return err_io(e, "start a thread for disk work");
}

/* Holds the lock; the helper goes where the caller is. */
static void follow_cpus(struct ring *r)
{
    if (r->cpus_changed)
        sched_setaffinity(0, sizeof r->cpus, &r->cpus);
    r->cpus_changed = false;
}

struct ring_block *ring_fill(struct ring *r)
{
    struct ring_block *b = NULL;

    pthread_mutex_lock(&r->lock);
    while (!r->given_up && r->filled - r->drained == (unsigned)r->n)
        pthread_cond_wait(&r->moved, &r->lock);
    if (!r->given_up)
        b = &r->block[r->filled % (unsigned)r->n];
    follow_cpus(r);
    pthread_mutex_unlock(&r->lock);
    return b;
}

bool ring_one_cpu(struct ring *r)
{
    pthread_mutex_lock(&r->lock);
    bool one = CPU_COUNT(&r->cpus) == 1;

    pthread_mutex_unlock(&r->lock);
    return one;
}

bool ring_wait_drained(struct ring *r, unsigned n)
{
    pthread_mutex_lock(&r->lock);
    while (!r->given_up && r->drained < n)
        pthread_cond_wait(&r->moved, &r->lock);
    follow_cpus(r);
    bool done = r->drained >= n;

    pthread_mutex_unlock(&r->lock);
    return done;
}

/* One call for each block of some milliseconds: the price of being where the caller is. */
static void watch_cpus(struct ring *r)
{
    cpu_set_t now;

    if (sched_getaffinity(0, sizeof now, &now) == 0 && !CPU_EQUAL(&now, &r->cpus)) {
        r->cpus = now;
        r->cpus_changed = true;
    }
}

void ring_filled(struct ring *r)
{
    pthread_mutex_lock(&r->lock);
    r->filled++;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
}

struct ring_block *ring_drain(struct ring *r)
{
    struct ring_block *b = NULL;

    pthread_mutex_lock(&r->lock);
    watch_cpus(r);
    while (!r->ended && r->filled == r->drained)
        pthread_cond_wait(&r->moved, &r->lock);
    if (!r->failed && r->filled != r->drained)
        b = &r->block[r->drained % (unsigned)r->n];
    pthread_mutex_unlock(&r->lock);
    return b;
}

void ring_drained(struct ring *r)
{
    pthread_mutex_lock(&r->lock);
    r->drained++;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
}

void ring_give_up(struct ring *r)
{
    pthread_mutex_lock(&r->lock);
    r->given_up = true;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
}

int ring_join(struct ring *r, struct err *e)
{
    pthread_join(r->helper, NULL);
    if (!r->failed)
        return 0;
    *e = r->error;
    return -1;
}
