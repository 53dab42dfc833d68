#include "service/weaver/gap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/str.h"
#include "base/uuid.h"
#include "service/metrics.h"
#include "train/trainer.h"

struct remembered {
    char checkpoint_id[UUID_TEXT];
    unsigned char digest[SHA256_BYTES]; /* of prompt and tokens */
    int n_prompt, n;
    float *logprobs; /* [n], owned */
};

struct w_gap {
    struct remembered ring[GAP_SEQUENCES];
    int first, count;
    size_t bytes;
};

struct w_gap *gap_new(void)
{
    return calloc(1, sizeof(struct w_gap));
}

static void forget_oldest(struct w_gap *g)
{
    struct remembered *m = &g->ring[g->first];

    g->bytes -= (size_t)m->n * sizeof *m->logprobs;
    free(m->logprobs);
    *m = (struct remembered){0};
    g->first = (g->first + 1) % GAP_SEQUENCES;
    g->count--;
}

void gap_free(struct w_gap *g)
{
    while (g && g->count > 0)
        forget_oldest(g);
    free(g);
}

/* a [n_a], then b [n_b]. -1: out of memory. */
static int digest_of(const int32_t *a, int n_a, const int32_t *b, int n_b,
                     unsigned char out[SHA256_BYTES])
{
    size_t bytes_a = (size_t)n_a * sizeof *a, bytes_b = (size_t)n_b * sizeof *b;
    char *all = malloc(bytes_a + bytes_b);

    if (!all)
        return -1;
    memcpy(all, a, bytes_a);
    memcpy(all + bytes_a, b, bytes_b);
    sha256_of(all, bytes_a + bytes_b, out);
    free(all);
    return 0;
}

void gap_sampled(struct w_gap *g, const char *checkpoint_id, const int32_t *prompt, int n_prompt,
                 const int32_t *tokens, const float *logprobs, int n)
{
    size_t bytes = (size_t)n * sizeof *logprobs;
    struct remembered m = {.n_prompt = n_prompt, .n = n};

    if (n < 1 || bytes > GAP_BYTES || digest_of(prompt, n_prompt, tokens, n, m.digest) < 0 ||
        !(m.logprobs = malloc(bytes)))
        return;
    memcpy(m.logprobs, logprobs, bytes);
    str_copy(m.checkpoint_id, sizeof m.checkpoint_id, checkpoint_id);
    while (g->count == GAP_SEQUENCES || g->bytes + bytes > GAP_BYTES)
        forget_oldest(g);
    g->ring[(g->first + g->count) % GAP_SEQUENCES] = m;
    g->count++;
    g->bytes += bytes;
}

static bool sampled_from(const struct w_gap *g, const char *checkpoint_id)
{
    for (int i = 0; i < g->count; i++)
        if (strcmp(g->ring[(g->first + i) % GAP_SEQUENCES].checkpoint_id, checkpoint_id) == 0)
            return true;
    return false;
}

/* The datum holds the sequence shifted by one: its tokens, and the last target behind them. */
static const struct remembered *find(const struct w_gap *g, const char *checkpoint_id,
                                     const struct train_datum *d)
{
    int n = d->loss.n;
    unsigned char digest[SHA256_BYTES];

    if (digest_of(d->tokens, n, &d->loss.targets[n - 1], 1, digest) < 0)
        return NULL;
    for (int i = 0; i < g->count; i++) {
        const struct remembered *m = &g->ring[(g->first + i) % GAP_SEQUENCES];

        if (m->n_prompt + m->n == n + 1 && memcmp(m->digest, digest, sizeof digest) == 0 &&
            strcmp(m->checkpoint_id, checkpoint_id) == 0)
            return m;
    }
    return NULL;
}

void gap_trained(struct w_gap *g, const char *checkpoint_id, const struct train_datum *data,
                 int n_data, const float *logprobs, struct metrics *m)
{
    if (!*checkpoint_id || !sampled_from(g, checkpoint_id))
        return;
    for (int i = 0; i < n_data; logprobs += data[i].loss.n, i++) {
        const struct remembered *was = find(g, checkpoint_id, &data[i]);
        double gap = 0;
        int n = 0;

        for (int k = 0; was && k < was->n; k++) {
            int at = was->n_prompt - 1 + k; /* the position that predicts token k */

            /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): was is set in this loop */
            if (at + 1 < data[i].loss.n && data[i].loss.targets[at] != data[i].tokens[at + 1])
                continue; /* not asked for */
            gap = fmax(gap, fabs((double)logprobs[at] - (double)was->logprobs[k]));
            n++;
        }
        if (n > 0)
            metrics_gap(m, n, gap);
    }
}
