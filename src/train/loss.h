/* train/loss.h - the losses of the training API: from log-probabilities (and entropies) to a number
 * and its derivative by each of them.
 *
 * cross_entropy, importance_sampling, truncated_importance_sampling, ppo_clip (ppo), cispo, dro,
 * grpo, surrogate, forward_logprob. Pure functions, no state, any thread. Formulas and defaults:
 * docs/models/training.md, "Losses". Every sum runs in row order in double. */
#ifndef TRAIN_LOSS_H
#define TRAIN_LOSS_H

#include <stdbool.h>
#include <stdint.h>

struct err;

enum loss_kind {
    LOSS_CROSS_ENTROPY,
    LOSS_IMPORTANCE_SAMPLING,
    LOSS_TRUNCATED_IMPORTANCE_SAMPLING,
    LOSS_PPO_CLIP,
    LOSS_CISPO,
    LOSS_DRO,
    LOSS_GRPO,
    LOSS_SURROGATE,
    LOSS_FORWARD_LOGPROB,
    LOSS_KINDS,
};

struct loss_config {
    enum loss_kind kind;
    bool sum;        /* reduction "sum"; else the mean over the weights of the call */
    float low, high; /* clip bounds on the ratio itself: 0.8, 1.2 */
    float cap;       /* 2.0 */
    float beta;      /* 0.05 */
    float entropy;   /* entropy_coeff: the loss of a token less this times its entropy; 0 */
};
struct loss_config loss_defaults(enum loss_kind kind);
/* Kind by any of its public names ("ppo" is ppo_clip); -1: unknown. */
int loss_by_name(const char *name);
const char *const *loss_names(void);      /* NULL-terminated, every name that loss_by_name knows */
bool loss_needs_old(enum loss_kind kind); /* reads old_logprobs and advantages */
/* Reads entropies: a coefficient, and a loss that is not derived by the caller himself. */
bool loss_wants_entropy(const struct loss_config *c);

/* One datum. Vectors are [n]; a NULL vector means 1 (weights, mask) and must not be
 * where the loss needs it (loss_needs_old; surrogate). A target of -100 has weight 0. */
struct loss_datum {
    int n;
    const int32_t *targets;
    const float *weights, *mask, *old_logprobs, *advantages, *surrogate;
};

struct loss_result {
    double loss, sum, weight_sum; /* the scalar differentiated, before dividing, and the divisor */
    double ratio, approx_kl, clip_frac; /* policy losses: means over the weights, finite */
    double entropy;                     /* where they are read: mean over the weights */
    double gap;     /* policy losses: largest |logprob - old logprob| where there is weight */
    int64_t tokens; /* positions with weight != 0 */
    bool counts;    /* one of them is not divided by 0: there is a loss to differentiate */
};

/* All datums one after the other. */
struct loss_rows {
    const float *logprobs, *entropies; /* entropies: only where loss_wants_entropy */
    float *elementwise;                /* weight x loss of the token */
    float *coef, *entropy_coef; /* dL/dlogprob, dL/dentropy; NULL: not wanted (forward only) */
};
void loss_run(const struct loss_config *c, const struct loss_datum *data, int n_data,
              const struct loss_rows *rows, struct loss_result *out);
#endif
