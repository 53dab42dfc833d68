#include "engine/score.h"

#include <math.h>

#include "generate/sampler.h"
#include "model/logits.h"

/* The entries that take part, one after the other. */
struct entries {
    const float *logits;
    const int32_t *allowed; /* NULL: all */
    int n;
    float scale;
};

static int32_t entry_token(const struct entries *e, int i)
{
    return e->allowed ? e->allowed[i] : i;
}

static float entry_logit(const struct entries *e, int i)
{
    return e->logits[entry_token(e, i)] / e->scale;
}

static bool is_listed(const struct logits_top *top, int n, int32_t token)
{
    for (int i = 0; i < n; i++)
        if (top[i].token == token)
            return true;
    return false;
}

/* Best first; equal logits by rising token. An id that is allowed twice stands once. */
static int find_top(const struct entries *e, struct logits_top *top, int most)
{
    int n = 0;

    for (int i = 0; i < e->n; i++) {
        struct logits_top one = {.token = entry_token(e, i), .logit = entry_logit(e, i)};
        int at = n;

        if (e->allowed && is_listed(top, n, one.token))
            continue;
        while (at > 0 && (top[at - 1].logit < one.logit ||
                          (top[at - 1].logit == one.logit && top[at - 1].token > one.token)))
            at--;
        if (at == most)
            continue;
        n = n < most ? n + 1 : n;
        for (int k = n - 1; k > at; k--)
            top[k] = top[k - 1];
        top[at] = one;
    }
    return n;
}

static bool seen_before(const struct entries *e, int i)
{
    for (int k = 0; e->allowed && k < i; k++)
        if (e->allowed[k] == e->allowed[i])
            return true;
    return false;
}

float score_sampled(struct logits_row *row, const float *logits, int vocab,
                    const struct sample_params *p)
{
    struct entries e = {.logits = logits,
                        .allowed = p->allowed,
                        .n = p->allowed ? p->n_allowed : vocab,
                        .scale = p->temperature > 0 ? p->temperature : 1};
    double sum = 0;

    row->max = -INFINITY;
    for (int i = 0; i < e.n; i++)
        row->max = fmaxf(row->max, entry_logit(&e, i));
    for (int i = 0; i < e.n; i++)
        if (!seen_before(&e, i))
            sum += exp((double)entry_logit(&e, i) - (double)row->max);
    row->log_sum = sum > 0 ? log(sum) : 0; /* 0: nothing is allowed */
    row->n_top = find_top(&e, row->top, row->n_top);
    return e.scale;
}
