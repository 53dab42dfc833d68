/* train/pass.h - one forward and backward pass over whole sequences, in slices.
 *
 * Every loss of this product is a function of log p(target) and of the entropy of the distribution
 * that it comes from, so a pass knows no losses:
 *
 *     pass_begin      checks the sequences and takes memory      [any failure changes nothing]
 *     pass_run        ... until PASS_DONE: log-probabilities are there
 *     pass_logprobs   [rows]: log p(targets[i] | tokens[0..i]) of logits / temperature
 *     pass_entropies  [rows]: of that distribution, where they were asked for
 *     pass_back       given coef[i] = dL / d logprob[i], and dL / d entropy[i]
 *     pass_run        ... until PASS_DONE: gradients have been added
 *     pass_end        memory is kept for the next pass; allowed at any moment (cancel before
 *                     pass_back's first slice leaves the gradients untouched; later they are
 *                     undefined)
 *
 * The forward values have the bits of forward_run and logits_run (model/): the log-probability of a
 * token equals the sampler's. A row's bits, and the gradients', do not depend on threads, kernels
 * variant, slices, or whether activations were kept or computed again. dX is a rising chain over
 * `out`; dW a rising chain over the rows of the call, carried in the gradient itself, so that
 * gradients of successive passes add up in call order. At most 64 x 1024 logits a worker
 * exist at a time. Rows whose coefficients are 0 have no part in the head's chains.
 *
 * pass_run works until the deadline (monotonic ns; 0: none) and cuts between output ranges only.
 * Thread: the one that may call pool_run. A pass object belongs to one configuration of a model;
 * runs of equal dimensions share it one after the other. */
#ifndef TRAIN_PASS_H
#define TRAIN_PASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct adapter;
struct err;
struct grads;
struct kernels;
struct model;
struct model_config;
struct pass;
struct pool;

struct pass_sequence {
    const int32_t *tokens;  /* [n], borrowed until pass_end */
    const int32_t *targets; /* [n]; -100: no prediction wanted here (logprob 0, no gradient) */
    int n;
};

struct pass_job {
    const struct model *model;     /* borrowed until pass_end; F32, F16 or BF16 */
    const struct adapter *adapter; /* or NULL; borrowed until pass_end */
    const struct pass_sequence *sequences;
    int n_sequences;
    float temperature; /* > 0 */
    bool backward;     /* pass_back will follow: activations are kept or can be computed again */
    bool entropy;      /* pass_entropies are wanted */
};

/* budget: bytes of activations, caches and gradients of activations, beside the fixed scratch of a
 * forward step; less is used when less is enough. */
struct pass *pass_new(const struct model_config *c, const struct kernels *k, struct pool *p,
                      size_t budget, struct err *e);
void pass_free(struct pass *p); /* NULL is allowed */
bool pass_fits(const struct pass *p, const struct model_config *c);
void pass_set_budget(struct pass *p, size_t budget);

/* ERR_ARG: token, target or length out of range; ERR_SPACE: the sequences do not fit the budget
 * even with everything computed again (the message names both figures); ERR_NOMEM. */
int pass_begin(struct pass *p, const struct pass_job *job, struct err *e);
enum pass_state { PASS_MORE, PASS_DONE };
enum pass_state pass_run(struct pass *p, int64_t deadline_ns);
int pass_rows(const struct pass *p);              /* all sequences one after the other */
const float *pass_logprobs(const struct pass *p); /* [rows], valid until pass_end */
bool pass_finite(const struct pass *p); /* no NaN or infinity among the log-probabilities */
const float *pass_entropies(const struct pass *p); /* [rows] nats, 0 without a target; the same */
/* coef, entropy_coef (NULL: none; else the job asked for entropies): [rows], borrowed until
 * PASS_DONE. grads: places to add to. */
void pass_back(struct pass *p, const float *coef, const float *entropy_coef, struct grads *g);
void pass_end(struct pass *p);
size_t pass_memory(const struct pass *p); /* bytes held now */
#endif
