/* engine/batch.h - the running requests and the steps that serve them (inside the room).
 *
 * One step is one forward pass over the weights of one image: the decode rows of its sequences
 * together with at most one chunk of prefill. Images take turns. Engine thread only.
 *
 * A sequence starts only with a promise of all the KV blocks it can come to need, so whatever runs
 * can finish, and what waits will get its turn. Choices of one prompt are computed once: the first
 * sequence computes, the others follow and fork its blocks. Nothing about a sequence depends on the
 * others in a step, so its answer has the same bits under any load. */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

struct err;
struct gen;
struct image;
struct sequence;
struct step;

struct batch {
    struct engine *engine;
    struct gen *running; /* oldest first */
    struct gen *parked;  /* paused: they hold KV memory, and no slot */
    int n_running;
    int n_active; /* sequences that hold KV memory */
    bool starved; /* a running request waits for KV memory itself: nobody is admitted before it */
    uint64_t turn;
    uint64_t last_epoch; /* image of the last step */
    struct step *step;   /* owned: scratch of step.c */
};

struct batch *batch_new(struct engine *en, struct err *e);
void batch_free(struct batch *b); /* NULL is allowed; no request is running */

/* Earlier residents that running requests hold, `except` not counted. */
int batch_images(const struct batch *b, const struct image *except);

enum batch_answer {
    BATCH_TAKEN,
    BATCH_LATER, /* KV memory is taken by running requests */
    BATCH_NEVER, /* all of it would not be enough */
};
/* Takes the request (its runner, image and served record are set) and starts its first sequence. */
enum batch_answer batch_take(struct batch *b, struct gen *g);

/* Ends cancelled requests and cut sequences, parks paused requests and lets them go on, and starts
 * pending sequences. */
void batch_sweep(struct batch *b);
void batch_end_all(struct batch *b, enum gen_event_kind why);

/* Runs one step. False: there is nothing to run. */
bool batch_step(struct batch *b);
struct step *step_new(struct err *e);
void step_free(struct step *st);

/* For answer.c. */
void batch_end_sequence(struct batch *b, struct sequence *s, enum gen_reason why);
/* A follower gets its own sequence, forked from its leader's finished prompt. -1: no memory. */
int batch_fork(struct sequence *s);
/* Sends the last event of requests that are through or failed. */
void batch_finish(struct batch *b);
#endif
