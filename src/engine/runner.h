/* engine/runner.h - what it takes to run images of one shape (inside the room).
 *
 * Forward scratch, logits scratch and KV memory depend on the dimensions of a model, not on its
 * weights: images of equal dimensions share one runner, so a swap allocates nothing. KV blocks
 * belong to sequences, and a sequence belongs to one image, so blocks are never read under other
 * weights. Engine thread only. */
#ifndef ENGINE_RUNNER_H
#define ENGINE_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/prefix.h"
#include "generate/grammar.h"
#include "model/config.h"

struct engine;
struct err;
struct forward;
struct kv_cache;
struct logits;

enum {
    ACTIVE_MAX = 128, /* sequences that hold KV memory, and so the most answers of one step */
    DECODE_MAX = 64,  /* rows of one step that decode */
};

/* How long steps take, for the size of the next prefill chunk: means that follow the load. */
struct step_clock {
    double decode_ms; /* of a step without prefill; 0: not measured yet */
    double row_ms;    /* what one row of prefill adds to a step; 0: not measured yet */
    double plain_ms;  /* of a step without prefill, also while other work slows steps down */
    double mixed_ms;  /* of a step with prefill, likewise */
};

struct runner {
    struct runner *next;
    int users; /* the resident and the running requests */
    struct model_config config;
    struct forward *forward;
    struct logits *logits;
    struct kv_cache *kv;
    struct prefix_cache prefixes;
    struct step_clock clock;
    float *hidden; /* [FORWARD_ROWS_MAX, H] */
    float *full;   /* [ACTIVE_MAX, vocab]: addresses only, touched by rows that are sampled */
    size_t full_bytes;
    unsigned char
        *scratch; /* one slice a worker: a copy of one row, the sampler's scratch, a mask */
    size_t slice_bytes, scratch_bytes;
};

/* One of the engine's runners that fits, or a new one; counted. NULL with ERR_NOMEM, ERR_SPACE. */
struct runner *runner_get(struct engine *en, const struct model_config *c, struct err *e);
void runner_put(struct engine *en, struct runner *r); /* NULL is allowed */

static inline float *runner_full_row(const struct runner *r, int i)
{
    return r->full + (size_t)i * (size_t)r->config.vocab;
}
static inline float *runner_row_copy(const struct runner *r, int worker)
{
    return (float *)(void *)(r->scratch + (size_t)worker * r->slice_bytes);
}
/* Bits of the tokens that a grammar allows. */
static inline uint64_t *runner_mask(const struct runner *r, int worker)
{
    return (uint64_t *)(void *)(r->scratch + ((size_t)worker + 1) * r->slice_bytes) -
           grammar_mask_words(r->config.vocab);
}
static inline void *runner_sample_scratch(const struct runner *r, int worker)
{
    return r->scratch + (size_t)worker * r->slice_bytes + (size_t)r->config.vocab * sizeof(float);
}

/* Bytes of KV memory that sequences hold or have been promised. */
size_t runner_kv_promised(const struct runner *r);

/* Touches some KV memory, so that no step has to: as much as each of n_active sequences takes next,
 * with none a little more. False: there is nothing to do. */
bool runners_touch_ahead(struct engine *en, int n_active);

/* Forgets what sequences have left behind: the weights are about to change. */
void runners_drop_prefixes(struct engine *en);

/* Rows of prefill that the next step may take; decoding: somebody waits for its next token. */
int step_clock_chunk(const struct step_clock *c, bool decoding);
/* How long a step is expected to take now; 0: not known. */
double step_clock_expect(const struct step_clock *c, int n_prefill);
/* A step of so many rows took ms. */
void step_clock_note(struct step_clock *c, int n_decode, int n_prefill, double ms);
#endif
