/* model/logits.h - from final hidden states to log-probabilities, without holding all logits.
 *
 * Logits are computed in blocks of at most 64 rows x 1024 vocabulary entries and reduced at once:
 * per row the maximum, the sum of exp, the logit of a given target and the k best entries. Blocks
 * are combined in rising order, so the bits do not depend on threads or batch. Sampler, scoring and
 * prompt log-probabilities all use this routine: log p(t) = x[t] - max - log(sum), logits_logprob.
 * Rows that are sampled also get their logits in full. A row's adapter adds its update of lm_head,
 * y = (W x) + s (B (A x)), to each block. Same thread rule as forward_run; nothing is
 * allocated by logits_run. */
#ifndef MODEL_LOGITS_H
#define MODEL_LOGITS_H

#include <stdbool.h>
#include <stdint.h>

struct adapter;
struct err;
struct forward;
struct logits;
struct model;

enum { LOGITS_TOP_MAX = 128 };

struct logits_top {
    int32_t token;
    float logit;
};

struct logits_row {
    /* asked for */
    int32_t target;                /* token whose logit is wanted, or -1 */
    int n_top;                     /* 0 .. LOGITS_TOP_MAX best entries */
    float *full;                   /* [vocab], caller's; NULL: not wanted */
    const struct adapter *adapter; /* of the row: its lm_head counts; or NULL */
    float temperature;             /* every logit is divided by it first; 0 or 1: as they are */
    bool entropy;                  /* `centered` is wanted: one more exp an entry */
    /* answered */
    bool finite;    /* no NaN and no +inf among the logits, and a finite maximum */
    int32_t argmax; /* first index of the maximum */
    float max;
    double sum;      /* over the vocabulary, of exp(x - max) */
    double log_sum;  /* its logarithm */
    double centered; /* over the vocabulary, of exp(x - max) (x - max) */
    float target_logit;
    struct logits_top top[LOGITS_TOP_MAX]; /* best first; equal logits by rising token */
};

/* Scratch for models with this forward object's dimensions; borrows f, whose kernels and pool it
 * uses. */
struct logits *logits_new(struct forward *f, struct err *e);
void logits_free(struct logits *l); /* NULL is allowed */

/* hidden [n,H]: rows from forward_run. rows[i] is asked and answered in place. */
void logits_run(struct logits *l, const struct model *m, const float *hidden, int n,
                struct logits_row *rows);

/* Natural log-probability of a token with logit x in this row: the model's own distribution. */
float logits_logprob(const struct logits_row *r, float x);
/* In nats, of a finite row that was asked for it: log(sum) - centered / sum. */
double logits_entropy(const struct logits_row *r);
#endif
