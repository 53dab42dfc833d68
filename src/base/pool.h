/* base/pool.h - pinned worker threads that run one parallel loop at a time, and lend a core.
 *
 * The thread that calls pool_run is worker 0 and computes too; only one thread (the engine thread,
 * or a test) may call pool_run on a pool. Workers are pinned to the CPUs of sched_getaffinity, spin
 * for a short while between two loops and then sleep on a futex, so an idle server uses no CPU.
 * Worker 0 is pinned by pool_adopt, called once by that thread.
 *
 * Lending: background work (hash, copy, zstd) never competes with a worker. pool_borrow waits until
 * no loop is running on the highest worker, parks it, pins the calling thread to its CPU and
 * returns true; loops then run on the other workers until pool_give_back. With one worker, or when
 * a core is already lent, it returns false at once and the caller goes on unpinned.
 *
 * Sharing a lent core: pool_run's thread may want it back for a part of the time. From
 * pool_recall_at's moment on, the borrower's next pool_rest sleeps and loops have all workers,
 * until pool_recall_at is called again. Without pool_rest in the borrower nothing is ever taken
 * back. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct pool;
struct err;

/* n_threads <= 0: the CPUs this process may use (affinity and control-group quota). Owned. */
struct pool *pool_new(int n_threads, struct err *e);
void pool_free(struct pool *p); /* NULL is allowed; no loop may be running */
void pool_adopt(struct pool *p);
int pool_workers(const struct pool *p);

/* Calls fn(arg, item, worker) once for every item in [0, n_items), items handed out in rising order
 * to whichever worker is free; returns when all are done. `worker` is in [0, pool_workers) and may
 * index scratch memory. */
typedef void pool_fn(void *arg, int item, int worker);
void pool_run(struct pool *p, pool_fn *fn, void *arg, int n_items);

/* The same, for items whose data lies near a core: each worker begins with its own part, items
 * [pool_part(worker), pool_part(worker + 1)), and then helps the others. */
void pool_run_near(struct pool *p, pool_fn *fn, void *arg, int n_items);
int pool_part(int worker, int n_workers, int n_items);

bool pool_borrow(struct pool *p);
void pool_give_back(struct pool *p);

/* pool_run's thread, between two loops: lends the core again if it had been taken back, and asks
 * for it at at_ns (clock_mono_ns), 0: not any more. Nothing happens while no core is lent. */
void pool_recall_at(struct pool *p, int64_t at_ns);
/* The same at once: returns when the borrower rests or has given the core back, after wait_ns at
 * the latest. pool_recall_at lends the core again. */
void pool_recall_now(struct pool *p, int64_t wait_ns);
/* The borrower, every 0.1 ms or so, and threads that work for it on the same core: returns at once,
 * or when the core is lent again: true. */
bool pool_rest(struct pool *p);

/* Copies n bytes with every worker (pool_run's thread rule). */
void pool_memcpy(struct pool *p, void *to, const void *from, unsigned long n);
#endif
