/* service/weaver/gap.h - does the trainer say what the sampler said?
 *
 * What was sampled from a checkpoint is remembered for a while with its log-probabilities, the
 * latest GAP_BYTES of them. A pass over the same tokens, by a run whose weights are still those of
 * that checkpoint, computes them again: the largest difference goes to /metrics. It is 0 as long as
 * both are one forward pass. What clients send as old log-probabilities plays no part. Finisher
 * only, but for gap_new and gap_free. */
#ifndef SERVICE_WEAVER_GAP_H
#define SERVICE_WEAVER_GAP_H

#include <stdint.h>

struct metrics;
struct train_datum;
struct w_gap;

enum { GAP_BYTES = 8 << 20, GAP_SEQUENCES = 4096 };

struct w_gap *gap_new(void);    /* NULL: out of memory */
void gap_free(struct w_gap *g); /* NULL is allowed */

/* One sequence: its prompt, then n tokens with the log-probability of each under the model itself.
 * Without memory it is not remembered. */
void gap_sampled(struct w_gap *g, const char *checkpoint_id, const int32_t *prompt, int n_prompt,
                 const int32_t *tokens, const float *logprobs, int n);
/* A pass at temperature 1 on the weights of this checkpoint; logprobs: all data one after the
 * other. */
void gap_trained(struct w_gap *g, const char *checkpoint_id, const struct train_datum *data,
                 int n_data, const float *logprobs, struct metrics *m);
#endif
