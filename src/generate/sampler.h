/* generate/sampler.h - picks the next token of a sequence from its logits.
 *
 * Order: allowed ids and mask, penalties, bias -> divide by temperature -> softmax -> top_k ->
 * top_p (smallest set of likeliest tokens whose mass reaches p) -> min_p (at least min_p x the
 * likeliest)
 * -> renormalise -> draw. Temperature 0 takes the largest logit after penalties and bias, the
 * lowest id among equals, and draws nothing. Equal logits rank by rising id, so a set is well
 * defined.
 *
 * The draw is a pure function of (seed, sample index, position) (base/rng.h): the same request
 * gives the same tokens whatever else runs. No state but the history; calls for different sequences
 * may run at the same time. */
#ifndef GENERATE_SAMPLER_H
#define GENERATE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct kernels;
struct logits_row;

struct sample_bias {
    int32_t token;
    float bias;
};

struct sample_params {
    float temperature;        /* >= 0; 0: greedy */
    float top_p;              /* (0, 1]; >= 1: off; <= 0 keeps the likeliest token alone */
    float min_p;              /* [0, 1]; 0: off */
    int top_k;                /* <= 0 or >= vocab: off */
    float frequency_penalty;  /* x - f * count among generated tokens; 0: off */
    float presence_penalty;   /* x - p for tokens generated before; 0: off */
    float repetition_penalty; /* x > 0 ? x / r : x * r for tokens of prompt or answer; 1: off */
    uint64_t seed;
    uint32_t sample_index;          /* choice i of a request */
    const struct sample_bias *bias; /* borrowed; added to the logits; -inf forbids */
    int n_bias;
    const int32_t *allowed; /* borrowed; NULL: every token */
    int n_allowed;
    const uint64_t *mask; /* borrowed; bit i: token i is possible; NULL: every token */
};

/* Tokens of one sequence, for penalties. Zeroed struct: empty. */
struct sample_history {
    struct sample_seen *table;
    int capacity, n;
};
/* Only needed when sample_needs_history. ERR_NOMEM. */
int sample_history_add(struct sample_history *h, int32_t token, bool generated, struct err *e);
void sample_history_release(struct sample_history *h);

bool sample_needs_history(const struct sample_params *p);
/* True when the row's argmax is the answer: greedy without bias, penalties, allowed ids or mask.
 * Then logits need not be kept in full. */
bool sample_is_argmax(const struct sample_params *p);
/* Refuses NaN and values outside the ranges above: ERR_ARG with the field's name. */
int sample_params_check(const struct sample_params *p, int vocab, struct err *e);

/* What a token was drawn from, for those who ask. */
struct sample_drawn {
    float logprob;    /* natural log of its probability in the distribution drawn from */
    int32_t *allowed; /* the ids that could be drawn, rising; the caller frees it */
    int n_allowed;    /* 0: the whole vocabulary; -1: there was no memory for the ids */
};

/* Bytes of scratch sample_pick needs, own to the calling thread, aligned for double. */
size_t sample_scratch_bytes(int vocab);
/* The token. logits [vocab] are read only. `position` is that of the new token in its sequence. h
 * may be NULL when no history is needed. -1: no token is possible (a NaN or +inf among the logits,
 * or everything forbidden). drawn: NULL, or filled in. */
int32_t sample_pick(const struct kernels *k, const struct sample_params *p, const float *logits,
                    int vocab, const struct sample_history *h, int64_t position,
                    struct sample_drawn *drawn, void *scratch);
#endif
