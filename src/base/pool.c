#include "base/pool.h"

#include <errno.h>
#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/err.h"

enum {
    SPIN_NS = 100 * 1000,   /* longer than the gap between two operations of one decode step */
    YIELD_NS = 1000 * 1000, /* between two offers of a core to whoever waits for it */
    CACHE_LINE = 64,
    COPY_CHUNK = 1 << 20,
    COPY_LINE = 64,
    COPY_AHEAD = 1024,
};

/* One futex word with what its waiter does: nobody pays for a system call unless it sleeps. */
struct bell {
    _Alignas(CACHE_LINE) _Atomic uint32_t word;
    _Atomic uint32_t asleep;
};

struct worker {
    struct bell start;                     /* counts the loops this worker has been called to */
    _Alignas(CACHE_LINE) _Atomic int next; /* item of this worker's part of the loop */
    int end;
    struct pool *pool;
    pthread_t thread;
    int index; /* in [1, n) */
    int cpu;
    int64_t yielded; /* when this worker last offered its core */
};

/* Where the core of the highest worker is. Changed with the pool's lock held, except that its
 * borrower goes from RECALLED to RESTING, and the thread of pool_run back to LENT, without. */
enum core {
    CORE_HOME,     /* not lent */
    CORE_LENT,     /* the borrower works on it */
    CORE_RECALLED, /* the borrower is asked to rest */
    CORE_RESTING,  /* it sleeps, loops have the core */
};

/* Words that different threads write lie on lines of their own, whatever that pads.
 * NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
struct pool {
    struct bell left;                 /* workers still inside the loop; worker 0 waits for 0 */
    _Alignas(CACHE_LINE) pool_fn *fn; /* the loop, written before the bells ring */
    void *arg;
    int n_parts; /* of the items, those of workers[0 .. n_parts) */
    _Atomic bool stop;
    int64_t recall_at;                          /* of pool_run's thread; 0: never */
    _Alignas(CACHE_LINE) _Atomic uint32_t core; /* enum core; who rests sleeps on it */

    int n;
    int n_started; /* threads that exist: workers[1 .. n_started] */
    int cpu0;
    struct worker *workers; /* [n]; [0] has no thread of its own */

    pthread_mutex_t lock; /* guards what follows; held for an instant only */
    pthread_cond_t idle;
    bool busy; /* a loop runs on the highest worker */
    pthread_t borrower;
    cpu_set_t borrower_cpus;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* The asleep flag and the word are both sequentially consistent: either the waiter sees the new
 * word, or the ringer sees the flag. */
static void bell_ring(struct bell *b)
{
    if (atomic_load(&b->asleep))
        futex_wake(&b->word, 1);
}

/* Whether somebody else works on the core of the highest worker. */
static bool is_away(const struct pool *p)
{
    uint32_t core = atomic_load_explicit(&p->core, memory_order_relaxed);

    return core == CORE_LENT || core == CORE_RECALLED;
}

/* lender: the pool whose highest worker waits here, or NULL. It does not spin on a lent core. */
static bool spin_while_equal(struct bell *b, uint32_t seen, const struct pool *lender)
{
    int64_t end = 0;

    for (int i = 0;; i++) {
        if (atomic_load_explicit(&b->word, memory_order_acquire) != seen)
            return true;
        _mm_pause();
        if (i % 64 != 63)
            continue;
        int64_t now = clock_mono_ns();
        if (end == 0)
            end = now + SPIN_NS;
        else if (now > end || (lender && is_away(lender)))
            return false;
    }
}

/* Other threads of the server need a core for microseconds. The first one to wake preempts a
 * worker; one that wakes while that one runs would wait for the worker's slice, that is for the
 * next tick of the kernel's clock, 4 ms away. A yield between two operations lets it run at once.
 * (Status under eight streams, p99: 9 ms without, 4 ms with.) Not at every operation: where
 * somebody else's work wants the core all the time, each yield gives a slice away. */
static void offer_core(int64_t *yielded)
{
    int64_t now = clock_mono_ns();

    if (now - *yielded < YIELD_NS)
        return;
    *yielded = now;
    sched_yield();
}

/* Returns when the word differs from `seen`. */
static void bell_wait(struct bell *b, uint32_t seen, const struct pool *lender)
{
    if (spin_while_equal(b, seen, lender))
        return;
    atomic_store(&b->asleep, 1);
    while (atomic_load(&b->word) == seen)
        futex_wait(&b->word, seen);
    atomic_store(&b->asleep, 0);
}

/* Its own part first, then what is left of the others'. */
static void work(struct pool *p, int worker)
{
    for (int i = 0; i < p->n_parts; i++) {
        struct worker *w = &p->workers[(worker + i) % p->n_parts];
        int item;

        while ((item = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed)) < w->end)
            p->fn(p->arg, item, worker);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;

    for (uint32_t seen = 0;; seen++) {
        offer_core(&w->yielded);
        bell_wait(&w->start, seen, w->index == p->n - 1 ? p : NULL);
        if (atomic_load(&p->stop))
            return NULL;
        work(p, w->index);
        if (atomic_fetch_sub(&p->left.word, 1) == 1)
            bell_ring(&p->left);
    }
}

static void pin(pthread_attr_t *attr, int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (attr)
        pthread_attr_setaffinity_np(attr, sizeof set, &set);
    else
        sched_setaffinity(0, sizeof set, &set);
}

/* Signals go to the threads that expect them. A CPU that went away since the mask was read only
 * costs the pinning. */
static int start_worker(struct worker *w)
{
    pthread_attr_t attr;
    sigset_t all;
    sigset_t old;
    int rc;

    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* of a shared arena that was cut short: handled where it happens */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attr);
    pin(&attr, w->cpu);
    rc = pthread_create(&w->thread, &attr, worker_main, w);
    if (rc == EINVAL)
        rc = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static struct pool *pool_alloc(int n)
{
    struct pool *p = aligned_alloc(CACHE_LINE, sizeof *p);
    struct worker *w = aligned_alloc(CACHE_LINE, (size_t)n * sizeof *w);

    if (!p || !w) {
        free(p);
        free(w);
        return NULL;
    }
    memset(p, 0, sizeof *p);
    memset(w, 0, (size_t)n * sizeof *w);
    p->workers = w;
    p->n = n;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->idle, NULL);
    return p;
}

struct pool *pool_new(int n_threads, struct err *e)
{
    int ids[CPUS_MAX];
    int n_cpus = cpus_allowed(ids);
    struct pool *p;

    if (n_threads <= 0)
        n_threads = cpus_usable();
    if (n_threads > CPUS_MAX) {
        err_set(e, ERR_ARG, "%d threads asked for, of at most %d", n_threads, CPUS_MAX);
        return NULL;
    }
    p = pool_alloc(n_threads);
    if (!p) {
        err_nomem(e);
        return NULL;
    }
    p->cpu0 = ids[0];
    for (int i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[i];

        *w = (struct worker){.pool = p, .index = i, .cpu = ids[i % n_cpus]};
        errno = start_worker(w);
        if (errno != 0) {
            err_io(e, "start worker thread %d of %d", i, n_threads);
            pool_free(p);
            return NULL;
        }
        p->n_started = i;
    }
    return p;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    for (int i = 1; i <= p->n_started; i++) {
        atomic_fetch_add(&p->workers[i].start.word, 1);
        bell_ring(&p->workers[i].start);
        pthread_join(p->workers[i].thread, NULL);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->idle);
    free(p->workers);
    free(p);
}

void pool_adopt(struct pool *p)
{
    pin(NULL, p->cpu0);
}

int pool_workers(const struct pool *p)
{
    return p->n;
}

/* How many workers may join a loop of n_items now; the highest one counts as busy if it is among
 * them. */
static int begin_loop(struct pool *p, int n_items)
{
    int members;

    pthread_mutex_lock(&p->lock);
    if (p->recall_at && atomic_load(&p->core) == CORE_LENT && clock_mono_ns() >= p->recall_at)
        atomic_store(&p->core, CORE_RECALLED);
    members = p->n - (is_away(p) ? 1 : 0);
    if (members > n_items)
        members = n_items;
    p->busy = members == p->n;
    pthread_mutex_unlock(&p->lock);
    return members;
}

static void end_loop(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->busy = false;
    pthread_cond_broadcast(&p->idle);
    pthread_mutex_unlock(&p->lock);
}

static void wait_for_workers(struct pool *p)
{
    uint32_t left;

    offer_core(&p->workers[0].yielded);
    while ((left = atomic_load(&p->left.word)) != 0)
        bell_wait(&p->left, left, NULL);
}

int pool_part(int worker, int n_workers, int n_items)
{
    return (int)((int64_t)n_items * worker / n_workers);
}

static void run(struct pool *p, pool_fn *fn, void *arg, int n_items, bool near)
{
    int members;

    if (n_items <= 0)
        return;
    members = begin_loop(p, n_items);
    p->fn = fn;
    p->arg = arg;
    p->n_parts = near ? members : 1;
    for (int i = 0; i < p->n_parts; i++) {
        atomic_store_explicit(&p->workers[i].next, pool_part(i, p->n_parts, n_items),
                              memory_order_relaxed);
        p->workers[i].end = pool_part(i + 1, p->n_parts, n_items);
    }
    atomic_store(&p->left.word, (uint32_t)(members - 1));
    for (int i = 1; i < members; i++) {
        atomic_fetch_add(&p->workers[i].start.word, 1);
        bell_ring(&p->workers[i].start);
    }
    work(p, 0);
    wait_for_workers(p);
    if (members == p->n)
        end_loop(p);
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, int n_items)
{
    run(p, fn, arg, n_items, false);
}

void pool_run_near(struct pool *p, pool_fn *fn, void *arg, int n_items)
{
    run(p, fn, arg, n_items, true);
}

bool pool_borrow(struct pool *p)
{
    bool got = false;

    pthread_mutex_lock(&p->lock);
    if (p->n > 1 && atomic_load(&p->core) == CORE_HOME) {
        got = true;
        p->borrower = pthread_self();
        atomic_store(&p->core, CORE_LENT); /* from here on loops leave the highest worker asleep */
        while (p->busy)
            pthread_cond_wait(&p->idle, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    if (!got)
        return false;
    CPU_ZERO(&p->borrower_cpus);
    sched_getaffinity(0, sizeof p->borrower_cpus, &p->borrower_cpus);
    pin(NULL, p->workers[p->n - 1].cpu);
    return true;
}

void pool_give_back(struct pool *p)
{
    sched_setaffinity(0, sizeof p->borrower_cpus, &p->borrower_cpus);
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->core, CORE_HOME);
    pthread_mutex_unlock(&p->lock);
}

void pool_recall_at(struct pool *p, int64_t at_ns)
{
    uint32_t recalled = CORE_RECALLED, resting = CORE_RESTING;

    p->recall_at = at_ns;
    if (atomic_compare_exchange_strong(&p->core, &recalled, CORE_LENT))
        return;
    if (atomic_compare_exchange_strong(&p->core, &resting, CORE_LENT))
        futex_wake(&p->core, INT_MAX);
}

void pool_recall_now(struct pool *p, int64_t wait_ns)
{
    int64_t end = clock_mono_ns() + wait_ns;

    pthread_mutex_lock(&p->lock);
    if (atomic_load(&p->core) == CORE_LENT)
        atomic_store(&p->core, CORE_RECALLED);
    pthread_mutex_unlock(&p->lock);
    while (atomic_load(&p->core) == CORE_RECALLED && clock_mono_ns() < end)
        _mm_pause();
}

static bool is_borrower(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    bool is = atomic_load(&p->core) != CORE_HOME && pthread_equal(p->borrower, pthread_self());

    pthread_mutex_unlock(&p->lock);
    return is;
}

bool pool_rest(struct pool *p)
{
    uint32_t recalled = CORE_RECALLED;
    bool rested = false;

    if (atomic_load(&p->core) == CORE_RECALLED && is_borrower(p))
        atomic_compare_exchange_strong(&p->core, &recalled, CORE_RESTING);
    while (atomic_load(&p->core) == CORE_RESTING) {
        rested = true;
        futex_wait(&p->core, CORE_RESTING);
    }
    return rested;
}

struct copy {
    char *to;
    const char *from;
    size_t n;
};

/* Stores that go past the caches: a plain store reads its line from memory first (measured with two
 * cores: 15 GB/s plain, 25 so). */
static void copy_past_caches(char *to, const char *from, size_t n)
{
    size_t i = 0;

    if ((uintptr_t)to % sizeof(__m128i) == 0)
        for (; i + COPY_LINE <= n; i += COPY_LINE) {
            const __m128i *f = (const __m128i *)(const void *)(from + i);
            __m128i *t = (__m128i *)(void *)(to + i);
            __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1);
            __m128i c = _mm_loadu_si128(f + 2), d = _mm_loadu_si128(f + 3);

            _mm_prefetch(from + i + COPY_AHEAD, _MM_HINT_NTA);
            _mm_stream_si128(t, a);
            _mm_stream_si128(t + 1, b);
            _mm_stream_si128(t + 2, c);
            _mm_stream_si128(t + 3, d);
        }
    _mm_sfence();
    memcpy(to + i, from + i, n - i);
}

static void copy_chunk(void *arg, int item, int worker)
{
    const struct copy *c = arg;
    size_t at = (size_t)item * COPY_CHUNK;
    size_t n = c->n - at < COPY_CHUNK ? c->n - at : COPY_CHUNK;

    (void)worker;
    copy_past_caches(c->to + at, c->from + at, n);
}

void pool_memcpy(struct pool *p, void *to, const void *from, unsigned long n)
{
    struct copy c = {.to = to, .from = from, .n = n};

    pool_run(p, copy_chunk, &c, (int)((n + COPY_CHUNK - 1) / COPY_CHUNK));
}
