/* engine/run_impl.h - a training run as the engine thread sees it (inside the room).
 *
 * `queue` is written by any thread under en->lock; everything else after run_new belongs to the
 * engine thread. One operation of all runs is under way at a time, because runs of equal dimensions
 * share one pass (activations); which run comes next goes round. */
#ifndef ENGINE_RUN_IMPL_H
#define ENGINE_RUN_IMPL_H

#include "engine/run.h"
#include "model/config.h"

struct engine;
struct pass;

/* The scratch of forward and backward passes, for runs of equal dimensions. */
struct shared_pass {
    struct shared_pass *next;
    int users;
    struct model_config config;
    struct pass *pass;
};

struct run {
    struct engine *engine;
    struct run *next; /* in the engine's ring of runs */
    struct run_settings settings;
    struct trainer *trainer;
    struct shared_pass *shared;
    struct image *image;   /* counted: the weights of this moment; LoRA: the base */
    struct image *other;   /* counted, or NULL: memory for the next ones, when nobody reads it */
    struct run_op *queue;  /* oldest first */
    struct run_op *op;     /* under way */
    struct image *filling; /* RUN_STEP of full fine-tuning: what it writes */
};

/* ---- train_turn.c; engine thread ---- */
/* Works on the operation under way, or the next one, for a slice. busy: requests have just run. The
 * last step took step_ns. False: there is nothing to train. */
bool train_turn(struct engine *en, bool busy, int64_t step_ns);
/* Ends what is under way and queued of this run. */
void run_cancel_all(struct run *r);

/* ---- run.c ---- */
/* An image of the same layout that only this run holds, its content undefined. Any thread. */
struct image *run_blank_image(const struct image *like, struct err *e);
#endif
