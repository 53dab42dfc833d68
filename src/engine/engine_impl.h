/* engine/engine_impl.h - the engine's own struct (inside the room).
 *
 * Who may touch what: fields under `lock` are written by the holder only; `resident`, `served`,
 * `gate`, the counters of the queue and of running requests are written by the engine thread with
 * the lock held, so the engine thread reads them without. Everything below "engine thread" is that
 * thread's alone. Events and messages run without the lock. */
#ifndef ENGINE_ENGINE_IMPL_H
#define ENGINE_ENGINE_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

struct batch;
struct gen;
struct run;
struct runner;
struct shared_pass;
struct snapshot;

struct call { /* one engine_call, on its caller's stack */
    struct call *next;
    engine_fn *fn;
    void *arg;
    bool done;
};

struct engine {
    struct engine_config config;
    struct pool *pool;       /* owned */
    struct image_bank *bank; /* counted */
    struct meter *meter;     /* owned: meter.h */
    pthread_t thread;
    _Atomic size_t kv_budget; /* bytes; 0 until the first load when the configuration says 0 */

    pthread_mutex_t lock;
    pthread_cond_t wake;    /* the engine thread sleeps here */
    pthread_cond_t changed; /* a call is done, a slot or an image was let go */
    bool poked;             /* there is something to look at */
    bool stopping;
    struct call *calls; /* oldest first */
    struct gen *queue;  /* waiting requests, oldest first */
    int n_waiting;
    int n_slots;   /* requests that hold one */
    int n_running; /* those of them that read the resident, or an earlier one */
    int n_old_images;
    enum engine_gate gate;
    struct image *resident;  /* counted */
    struct adapter *adapter; /* counted, or NULL; engine thread */
    struct served *served;   /* counted */
    engine_tick_fn *tick;
    void *tick_arg;
    double slot_ms[SLOT_TIMES_MAX]; /* of the last config.slot_times requests, a ring */
    uint64_t n_slot_ms;
    uint64_t prompt_tokens, generated_tokens, steps;
    size_t kv_used;

    pthread_mutex_t snapshot_lock; /* guards the list; see snapshot.c */
    struct snapshot *snapshots;

    /* engine thread */
    struct batch *batch;
    struct runner *runners;
    struct run *runs; /* training: engine/run.h */
    struct shared_pass *passes;
    struct run *train_active;       /* whose operation is under way */
    struct run *train_last;         /* the last one that had its turn */
    int64_t train_credit;           /* ns that training may take before requests have their turn */
    struct runner *resident_runner; /* NULL: no resident, or its scratch did not fit into memory */
};

/* Wakes the engine thread: a flag, a queue or the gate has changed. Any thread. */
void engine_poke(struct engine *en);
/* The most bytes that KV memory of all running requests may take. */
size_t engine_kv_budget(struct engine *en);
/* Counts what the batch has done, wakes who waits for it. Engine thread. */
void engine_note_step(struct engine *en, int prompt_rows, int generated);
void engine_note_running(struct engine *en);
void engine_note_slot(struct engine *en, double ms);
#endif
