/* generate/sampler.c - all arithmetic in a fixed order: sums in double over blocks or over sorted
 * tokens. */
#include "generate/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "generate/history.h"
#include "kernels/kernels.h"

enum { BLOCK = 1024 };

/* exp of this is 1e-40: what lies below has no weight, and neither has a block that sums to less.
 */
static const float NO_WEIGHT = -92.0f;
static const double NO_BLOCK_WEIGHT = 1e-40;

struct candidate {
    float y; /* (logit - max) / temperature, <= 0 */
    int32_t token;
    double weight; /* exp(y), where the cut looks at mass */
};

/* Scratch of one call. */
struct work {
    const struct kernels *k;
    double *block_sum;      /* [blocks] */
    struct candidate *cand; /* [vocab] */
    float *y;               /* [vocab] */
    double total;           /* of exp(y) over the vocabulary */
};

static size_t n_blocks(int vocab)
{
    return ((size_t)vocab + BLOCK - 1) / BLOCK;
}

size_t sample_scratch_bytes(int vocab)
{
    return n_blocks(vocab) * sizeof(double) +
           (size_t)vocab * (sizeof(struct candidate) + sizeof(float));
}

bool sample_needs_history(const struct sample_params *p)
{
    return p->frequency_penalty != 0 || p->presence_penalty != 0 || p->repetition_penalty != 1;
}

bool sample_is_argmax(const struct sample_params *p)
{
    return p->temperature == 0 && !sample_needs_history(p) && p->n_bias == 0 && !p->allowed &&
           !p->mask;
}

/* ---- checks ---- */

static int check_range(const char *name, float v, float lo, float hi, struct err *e)
{
    if (v >= lo && v <= hi)
        return 0;
    return err_set(e, ERR_ARG, "%s is %g, expected %g to %g", name, (double)v, (double)lo,
                   (double)hi);
}

static int check_token(const char *name, int32_t token, int vocab, struct err *e)
{
    if (token >= 0 && token < vocab)
        return 0;
    return err_set(e, ERR_ARG, "%s names token %d, outside the vocabulary of %d", name, token,
                   vocab);
}

int sample_params_check(const struct sample_params *p, int vocab, struct err *e)
{
    if (check_range("temperature", p->temperature, 0, FLT_MAX, e) < 0 ||
        check_range("top_p", p->top_p, 0, FLT_MAX, e) < 0 ||
        check_range("min_p", p->min_p, 0, 1, e) < 0 ||
        check_range("frequency_penalty", p->frequency_penalty, -FLT_MAX, FLT_MAX, e) < 0 ||
        check_range("presence_penalty", p->presence_penalty, -FLT_MAX, FLT_MAX, e) < 0 ||
        check_range("repetition_penalty", p->repetition_penalty, FLT_MIN, FLT_MAX, e) < 0)
        return -1;
    for (int i = 0; i < p->n_bias; i++)
        if (check_token("logit_bias", p->bias[i].token, vocab, e) < 0 ||
            check_range("logit_bias", p->bias[i].bias, -INFINITY, FLT_MAX, e) < 0)
            return -1;
    if (p->allowed && (p->n_allowed < 1 || p->n_allowed > vocab))
        return err_set(e, ERR_ARG, "%d allowed tokens, expected 1 to %d", p->n_allowed, vocab);
    for (int i = 0; p->allowed && i < p->n_allowed; i++)
        if (check_token("the list of allowed tokens", p->allowed[i], vocab, e) < 0)
            return -1;
    return 0;
}

/* ---- logits of this request ---- */

static void penalise(const struct sample_params *p, const struct sample_history *h, float *y)
{
    for (int i = 0; i < h->capacity; i++) {
        const struct sample_seen *s = &h->table[i];
        float *x;

        if (!s->used)
            continue;
        x = &y[s->token];
        *x = *x > 0 ? *x / p->repetition_penalty : *x * p->repetition_penalty;
        if (s->generated > 0)
            *x -= p->frequency_penalty * (float)s->generated + p->presence_penalty;
    }
}

/* Masks are all or nothing in most of their words. */
static void apply_mask(const uint64_t *mask, int vocab, float *y)
{
    for (int at = 0; at < vocab; at += 64) {
        uint64_t word = mask[at / 64];
        int n = vocab - at < 64 ? vocab - at : 64;

        if (word == UINT64_MAX)
            continue;
        for (int i = 0; i < n; i++)
            if (!(word >> i & 1))
                y[at + i] = -INFINITY;
    }
}

static void copy_logits(const struct sample_params *p, const float *logits, int vocab, float *y)
{
    if (!p->allowed)
        memcpy(y, logits, (size_t)vocab * sizeof *y);
    else
        for (int i = 0; i < vocab; i++)
            y[i] = -INFINITY;
    for (int i = 0; p->allowed && i < p->n_allowed; i++)
        y[p->allowed[i]] = logits[p->allowed[i]];
    if (p->mask)
        apply_mask(p->mask, vocab, y);
}

/* Fills w->y; the maximum and its first index. -1: nothing can be picked. */
static int adjust_logits(const struct sample_params *p, const float *logits, int vocab,
                         const struct sample_history *h, struct work *w, float *max)
{
    int at = 0;

    if (!w->k->below_infinity(logits, vocab))
        return -1;
    copy_logits(p, logits, vocab, w->y);
    if (h && sample_needs_history(p))
        penalise(p, h, w->y);
    for (int i = 0; i < p->n_bias; i++)
        w->y[p->bias[i].token] += p->bias[i].bias;
    w->k->block_max(w->y, vocab, max, &at);
    return *max > -INFINITY && *max <= FLT_MAX ? at : -1;
}

/* y -> (y - max) / temperature, and the sum of its exponentials. */
static void scale(const struct sample_params *p, int vocab, float max, struct work *w)
{
    w->total = 0;
    for (int b = 0; b * BLOCK < vocab; b++) {
        float *y = w->y + (ptrdiff_t)b * BLOCK;
        int n = vocab - b * BLOCK < BLOCK ? vocab - b * BLOCK : BLOCK;

        for (int i = 0; i < n; i++)
            y[i] = (y[i] - max) / p->temperature;
        w->block_sum[b] = (double)w->k->block_sum_exp(y, n, 0);
        if (w->block_sum[b] < NO_BLOCK_WEIGHT)
            w->block_sum[b] = 0;
        w->total += w->block_sum[b];
    }
}

static double weight(float y)
{
    return y < NO_WEIGHT ? 0 : (double)kern_exp(y);
}

/* ---- the whole distribution ---- */

static int by_token(const void *a, const void *b)
{
    int32_t x = ((const struct candidate *)a)->token, y = ((const struct candidate *)b)->token;

    return (x > y) - (x < y);
}

/* The first n candidates (in any order; they are sorted here) share `mass`; `weight` is that of the
 * token drawn. */
static void tell_drawn(struct sample_drawn *d, struct candidate *c, int n, double weight,
                       double mass)
{
    if (!d)
        return;
    d->logprob = (float)log(weight / mass);
    d->n_allowed = n;
    d->allowed = n > 0 ? malloc((size_t)n * sizeof *d->allowed) : NULL;
    if (n > 0 && !d->allowed) {
        d->n_allowed = -1;
        return;
    }
    qsort(c, (size_t)n, sizeof *c, by_token);
    for (int i = 0; i < n; i++)
        d->allowed[i] = c[i].token;
}

/* The same when nothing was cut off: the ids are the request's own, or the vocabulary. */
static void tell_all(struct sample_drawn *d, const struct sample_params *p, struct work *w,
                     int32_t token)
{
    int n = p->allowed ? p->n_allowed : 0;

    for (int i = 0; i < n; i++)
        w->cand[i] = (struct candidate){.token = p->allowed[i]};
    tell_drawn(d, w->cand, n, weight(w->y[token]), w->total);
}

static int32_t draw_from_all(const struct work *w, int vocab, double u, int32_t best)
{
    double left = u * w->total;
    int32_t last = best;
    int b = 0, end;

    while ((b + 1) * BLOCK < vocab && left >= w->block_sum[b])
        left -= w->block_sum[b++];
    end = (b + 1) * BLOCK < vocab ? (b + 1) * BLOCK : vocab;
    for (int i = b * BLOCK; i < end; i++) {
        double weight_i = weight(w->y[i]);

        if (weight_i == 0)
            continue;
        last = i;
        left -= weight_i;
        if (left < 0)
            return i;
    }
    return last; /* rounding left a trace: the last possible token of the block */
}

/* ---- a truncated distribution ---- */

static bool ranks_before(const struct candidate *a, const struct candidate *b)
{
    return a->y > b->y || (a->y == b->y && a->token < b->token);
}

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate t = *a;

    *a = *b;
    *b = t;
}

/* Every token at least as likely as `floor` says; *mass is their share of the total, when asked. */
static int gather(const struct work *w, int vocab, float floor, bool weigh, double *mass)
{
    int n = 0;

    *mass = 0;
    for (int i = 0; i < vocab; i++) {
        if (!(w->y[i] >= floor))
            continue;
        w->cand[n] = (struct candidate){w->y[i], i, weigh ? weight(w->y[i]) : 0};
        *mass += w->cand[n++].weight;
    }
    return n;
}

/* How much of the distribution is kept: at most `count` tokens, no more than needed for `mass`. */
struct quota {
    int count;
    double mass;
};

/* Candidates that surely hold the kept set: the likeliest k, or mass p, or all down to min_p. */
static int gather_enough(const struct work *w, const struct sample_params *p, int vocab,
                         const struct quota *q)
{
    float limit = p->min_p > 0 ? logf(p->min_p) : NO_WEIGHT;
    bool weigh = isfinite(q->mass);

    if (limit < NO_WEIGHT)
        limit = NO_WEIGHT;
    for (int below = 4;; below *= 2) {
        bool all = -(float)below <= limit;
        double mass;
        int n = gather(w, vocab, all ? limit : -(float)below, weigh, &mass);

        if (all || n >= q->count || mass >= q->mass)
            return n;
    }
}

/* Moves the median of three to c[n - 1]. */
static void choose_pivot(struct candidate *c, int n)
{
    struct candidate *a = &c[0], *b = &c[n / 2], *last = &c[n - 1];

    if (ranks_before(b, a))
        swap(a, b);
    if (ranks_before(last, b))
        swap(last, b);
    if (ranks_before(b, a))
        swap(a, b);
    swap(b, last);
}

/* Those that rank before the pivot c[n - 1] go to the front; returns their number and mass. */
static int partition(struct candidate *c, int n, double *mass)
{
    int front = 0;

    *mass = 0;
    for (int i = 0; i < n - 1; i++)
        if (ranks_before(&c[i], &c[n - 1])) {
            *mass += c[i].weight;
            swap(&c[front++], &c[i]);
        }
    swap(&c[front], &c[n - 1]);
    return front;
}

/* Brings the kept set to the front, in a fixed but not sorted order, and returns its size: a
 * quickselect that looks for a share of the mass as well as for a number. At least one is kept. */
static int select_kept(struct candidate *c, int n, struct quota q)
{
    int kept = 0, end = n;

    while (kept < end) {
        double mass;
        int front;

        choose_pivot(c + kept, end - kept);
        front = partition(c + kept, end - kept, &mass);
        if (front > 0 && (front >= q.count || mass >= q.mass)) {
            end = kept + front;
            continue;
        }
        q.count -= front + 1;
        q.mass -= mass + c[kept + front].weight;
        kept += front + 1;
        if (q.count <= 0 || q.mass <= 0)
            return kept;
    }
    return kept;
}

static int32_t draw_from_some(const struct work *w, const struct sample_params *p, int vocab,
                              double u, struct sample_drawn *drawn)
{
    struct quota q = {
        .count = p->top_k > 0 && p->top_k < vocab ? p->top_k : vocab,
        .mass = p->top_p < 1 ? (double)p->top_p * w->total : INFINITY,
    };
    int kept = select_kept(w->cand, gather_enough(w, p, vocab, &q), q);
    double mass = 0, left;

    for (int i = 0; i < kept; i++) {
        w->cand[i].weight = weight(w->cand[i].y);
        mass += w->cand[i].weight;
    }
    int at = 0;

    left = u * mass - w->cand[0].weight;
    while (at < kept - 1 && left >= 0)
        left -= w->cand[++at].weight;
    int32_t token = w->cand[at].token;

    tell_drawn(drawn, w->cand, kept, w->cand[at].weight, mass);
    return token;
}

int32_t sample_pick(const struct kernels *k, const struct sample_params *p, const float *logits,
                    int vocab, const struct sample_history *h, int64_t position,
                    struct sample_drawn *drawn, void *scratch)
{
    struct work w = {.k = k, .block_sum = scratch};
    float max;
    int best;
    double u;

    w.cand = (struct candidate *)(w.block_sum + n_blocks(vocab));
    w.y = (float *)(w.cand + vocab);
    best = adjust_logits(p, logits, vocab, h, &w, &max);
    if (best < 0)
        return best;
    if (p->temperature == 0) {
        w.cand[0] = (struct candidate){.token = best};
        tell_drawn(drawn, w.cand, 1, 1, 1);
        return best;
    }
    scale(p, vocab, max, &w);
    u = rng_unit(p->seed, p->sample_index, (uint64_t)position, 0);
    if ((p->top_k <= 0 || p->top_k >= vocab) && p->top_p >= 1 && p->min_p <= 0) {
        int32_t token = draw_from_all(&w, vocab, u, best);

        if (drawn)
            tell_all(drawn, p, &w, token);
        return token;
    }
    return draw_from_some(&w, p, vocab, u, drawn);
}
