/* engine/score.h - log-probabilities of the distribution that is sampled, for requests that score
 * one token. */
#ifndef ENGINE_SCORE_H
#define ENGINE_SCORE_H

struct logits_row;
struct sample_params;

/* Makes *row describe logits [vocab] divided by the temperature (0: as they are), over the allowed
 * ids or the vocabulary: max, log_sum and its n_top best entries. Penalties and bias are left out.
 * Returns what a logit is to be divided by before logits_logprob. */
float score_sampled(struct logits_row *row, const float *logits, int vocab,
                    const struct sample_params *p);
#endif
