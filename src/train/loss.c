#include "train/loss.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { N_NAMES = 10, IGNORED = -100 };

static const char *const names[N_NAMES + 1] = {
    "cross_entropy",
    "importance_sampling",
    "truncated_importance_sampling",
    "ppo_clip",
    "ppo",
    "cispo",
    "dro",
    "grpo",
    "surrogate",
    "forward_logprob",
};
static const enum loss_kind kinds[N_NAMES] = {
    LOSS_CROSS_ENTROPY,
    LOSS_IMPORTANCE_SAMPLING,
    LOSS_TRUNCATED_IMPORTANCE_SAMPLING,
    LOSS_PPO_CLIP,
    LOSS_PPO_CLIP,
    LOSS_CISPO,
    LOSS_DRO,
    LOSS_GRPO,
    LOSS_SURROGATE,
    LOSS_FORWARD_LOGPROB,
};

struct loss_config loss_defaults(enum loss_kind kind)
{
    return (struct loss_config){
        .kind = kind, .low = 0.8f, .high = 1.2f, .cap = 2.0f, .beta = 0.05f};
}

int loss_by_name(const char *name)
{
    for (int i = 0; i < N_NAMES; i++)
        if (strcmp(names[i], name) == 0)
            return (int)kinds[i];
    return -1;
}

const char *const *loss_names(void)
{
    return names;
}

bool loss_needs_old(enum loss_kind kind)
{
    switch (kind) {
    case LOSS_IMPORTANCE_SAMPLING:
    case LOSS_TRUNCATED_IMPORTANCE_SAMPLING:
    case LOSS_PPO_CLIP:
    case LOSS_CISPO:
    case LOSS_DRO:
    case LOSS_GRPO:
        return true;
    default:
        return false;
    }
}

bool loss_wants_entropy(const struct loss_config *c)
{
    return c->entropy != 0 && c->kind != LOSS_SURROGATE && c->kind != LOSS_FORWARD_LOGPROB;
}

/* ---- one token ---- */

/* The loss of a token before its weight, its derivative by the log-probability, and whether a bound
 * acted. */
struct token {
    double loss, slope;
    bool clipped;
};

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* r A for a ratio that may be beyond a double: without an advantage that does not matter. */
static double scaled(double r, double A)
{
    return A == 0 ? A : r * A;
}

/* -min(r A, clip(r) A); where the clipped term is the smaller one, nothing depends on r. */
static struct token ppo(const struct loss_config *c, double r, double A)
{
    double free = scaled(r, A), bound = clamp(r, (double)c->low, (double)c->high) * A;

    if (bound < free)
        return (struct token){-bound, 0, true};
    return (struct token){-free, -free, false};
}

/* -coefficient A log p, the coefficient taken as a constant. */
static struct token weighted(double r, double coefficient, double A, double lp)
{
    return (struct token){-coefficient * A * lp, -coefficient * A, coefficient != r};
}

static struct token policy(const struct loss_config *c, double lp, double old, double A)
{
    double d = lp - old, r = exp(d), beta = (double)c->beta;

    switch (c->kind) {
    case LOSS_IMPORTANCE_SAMPLING:
        return (struct token){-scaled(r, A), -scaled(r, A), false};
    case LOSS_TRUNCATED_IMPORTANCE_SAMPLING:
        return weighted(r, r < (double)c->cap ? r : (double)c->cap, A, lp);
    case LOSS_CISPO:
        return weighted(r, clamp(r, (double)c->low, (double)c->high), A, lp);
    case LOSS_DRO:
        return (struct token){-(lp * A - beta / 2 * d * d), -(A - beta * d), false};
    default:
        return ppo(c, r, A);
    }
}

static struct token token_loss(const struct loss_config *c, const struct loss_datum *d, int i,
                               double lp)
{
    if (loss_needs_old(c->kind))
        return policy(c, lp, (double)d->old_logprobs[i], (double)d->advantages[i]);
    switch (c->kind) {
    case LOSS_CROSS_ENTROPY:
        return (struct token){-lp, -1, false};
    case LOSS_SURROGATE:
        return (struct token){(double)d->surrogate[i] * lp, (double)d->surrogate[i], false};
    default:
        return (struct token){0, 0, false};
    }
}

static double token_weight(const struct loss_config *c, const struct loss_datum *d, int i)
{
    if (d->targets[i] == IGNORED)
        return 0;
    if (c->kind == LOSS_SURROGATE)
        return 1;
    return (d->weights ? (double)d->weights[i] : 1.0) * (d->mask ? (double)d->mask[i] : 1.0);
}

/* ---- one datum, one call ---- */

struct totals {
    double loss, sum, weight, ratio, kl, clipped, entropy, gap;
    int64_t tokens;
    bool counts;
};

static double datum_weight(const struct loss_config *c, const struct loss_datum *d)
{
    double sum = 0;

    for (int i = 0; i < d->n; i++)
        sum += token_weight(c, d, i);
    return sum;
}

/* ratio - 1 - log ratio: never negative, its mean estimates KL(old || new). A ratio counts as the
 * largest float32 at most, so that the means are numbers where the loss is one. */
static void count_policy(struct totals *t, const struct loss_datum *d, int i, double lp, double w,
                         bool clipped)
{
    double far = lp - (double)d->old_logprobs[i], log_ratio = fmin(far, log((double)FLT_MAX));
    double r = fmin(exp(far), (double)FLT_MAX);

    t->ratio += w * r;
    t->kl += w * (r - 1 - log_ratio);
    t->clipped += clipped ? w : 0;
    t->gap = fmax(t->gap, fabs(far));
}

/* Token i of the datum; `at` is its row of the call. */
static void run_token(const struct loss_config *c, const struct loss_datum *d, int i, double part,
                      const struct loss_rows *rows, int64_t at, struct totals *t, double *sum)
{
    bool entropy = loss_wants_entropy(c);
    double w = token_weight(c, d, i), lp = (double)rows->logprobs[at], bonus = 0;
    struct token k = {0};

    if (w != 0) {
        k = token_loss(c, d, i, lp);
        if (entropy) {
            bonus = (double)c->entropy;
            k.loss -= bonus * (double)rows->entropies[at];
            t->entropy += w * (double)rows->entropies[at];
        }
        t->tokens++;
        t->counts |= part != 0;
        *sum += w * k.loss;
        if (loss_needs_old(c->kind))
            count_policy(t, d, i, lp, w, k.clipped);
    }
    rows->elementwise[at] = (float)(w * k.loss);
    if (rows->coef)
        rows->coef[at] = (float)(w * k.slope * part);
    if (rows->entropy_coef)
        rows->entropy_coef[at] = (float)(-w * bonus * part);
}

/* A position of weight 0 says nothing, whatever stands in its other inputs. A divisor of 0: the
 * datum does not count. */
static void run_datum(const struct loss_config *c, const struct loss_datum *d, double divisor,
                      const struct loss_rows *rows, int64_t at, struct totals *t)
{
    double part = divisor != 0 ? 1 / divisor : 0, sum = 0;

    for (int i = 0; i < d->n; i++)
        run_token(c, d, i, part, rows, at + i, t, &sum);
    t->sum += sum;
    t->loss += sum * part;
}

void loss_run(const struct loss_config *c, const struct loss_datum *data, int n_data,
              const struct loss_rows *rows, struct loss_result *out)
{
    bool summed = c->sum || c->kind == LOSS_SURROGATE;
    struct totals t = {0};
    int counted = 0; /* datums with weight */
    int64_t at = 0;

    for (int i = 0; i < n_data; i++) {
        double w = datum_weight(c, &data[i]);

        t.weight += w;
        counted += w != 0;
    }
    for (int i = 0; i < n_data; at += data[i].n, i++) {
        double divisor = summed                 ? 1
                         : c->kind == LOSS_GRPO ? datum_weight(c, &data[i]) * counted
                                                : t.weight;

        run_datum(c, &data[i], divisor, rows, at, &t);
    }
    *out = (struct loss_result){.loss = t.loss,
                                .sum = t.sum,
                                .weight_sum = t.weight,
                                .gap = t.gap,
                                .tokens = t.tokens,
                                .counts = t.counts};
    if (t.weight != 0) {
        out->ratio = t.ratio / t.weight;
        out->approx_kl = t.kl / t.weight;
        out->clip_frac = t.clipped / t.weight;
        out->entropy = t.entropy / t.weight;
    }
}
