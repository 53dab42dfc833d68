/* engine/gen.h - one generation request and its sequences (inside the room).
 *
 * A gen is counted: one reference is the caller's (gen_free), one the engine's, so an event handler
 * may free its handle at once. The flags are written by any thread; `kv` to `history` belong to the
 * engine thread; the rest does not change after gen_new. A request's state is where it stands: in
 * the queue (waiting) or in the batch (running). */
#ifndef ENGINE_GEN_H
#define ENGINE_GEN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "generate/sampler.h"

struct adapter;
struct grammar_run;
struct kv_seq;
struct model_config;
struct runner;

enum sequence_state {
    SEQ_PENDING,   /* holds no KV memory yet */
    SEQ_PREFILL,   /* its prompt is being computed */
    SEQ_FOLLOWING, /* an equal prompt of this request is being computed: forks from it */
    SEQ_DECODE,
    SEQ_DONE,
};

struct sequence {
    struct gen *gen;
    int index;
    const int32_t *tokens; /* n_prompt of them */
    int n_prompt;
    int twin; /* the first sequence of the request with the same prompt */
    struct sample_params params;
    atomic_bool cut;

    enum sequence_state state;
    struct kv_seq *kv;       /* owned */
    struct sequence *leader; /* SEQ_FOLLOWING */
    int64_t token_at;        /* when the last token came */
    int max_new;             /* max_tokens, cut to what the model's context leaves */
    int n_new;
    int32_t next;  /* SEQ_DECODE: the token that the next step feeds */
    int32_t *made; /* the n_new tokens; NULL: there was no memory to remember them */
    int made_size;
    struct sample_history history;
    struct grammar_run *grammar; /* owned: where the answer stands in its language, or NULL */
    double *pooled;              /* sum of the rows that count (pooling.h); NULL: none yet */
};

struct gen {
    atomic_int refs;
    struct engine *engine;
    struct gen *next; /* in the queue or in the batch */
    atomic_bool cancelled;
    atomic_bool paused;

    struct gen_spec spec; /* prompts, bias and allowed of the caller are not used after gen_new;
                             image and adapter are counted */
    struct sequence *sequences;
    int n_sequences;
    int n_started;               /* sequences [0, n_started) are not SEQ_PENDING */
    int n_open;                  /* not SEQ_DONE */
    enum gen_event_kind outcome; /* GEN_DONE, or how the request fails at the end of this step */
    int32_t *tokens;             /* all prompts, one after the other */
    int32_t *allowed;
    struct sample_bias *bias;
    struct grammar_bound *grammar; /* counted, or NULL */
    int32_t max_token;             /* largest of any prompt, bias, allowed list */
    int32_t max_prompt;

    int64_t held_since; /* monotonic ns; 0: not held */
    int64_t submitted_at, admitted_at, parked_at;
    bool has_begun;          /* a token was told */
    struct runner *runner;   /* counted */
    struct image *image;     /* counted */
    struct adapter *adapter; /* counted, or NULL */
    struct served *served;   /* counted */
};

/* Copies the spec. One reference. NULL with ERR_ARG or ERR_NOMEM. */
struct gen *gen_new(struct engine *en, const struct gen_spec *spec, struct err *e);
struct gen *gen_ref(struct gen *g);
/* Tokens inside the vocabulary, prompts inside the context. 0 or -1 with ERR_ARG. */
int gen_check(const struct gen *g, const struct model_config *c, struct err *e);
/* Frees what the sequence holds. */
void sequence_release(struct sequence *s);
/* Sequences that hold KV memory. */
static inline int gen_active(const struct gen *g)
{
    return g->n_open - (g->n_sequences - g->n_started);
}
void gen_emit(struct gen *g, const struct gen_event *ev);
#endif
