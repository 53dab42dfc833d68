#include "engine/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/kernels.h"
#include "model/kv_cache.h"

static int common(const int32_t *a, int n_a, const int32_t *b, int n_b)
{
    int n = n_a < n_b ? n_a : n_b, i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static void let_go(struct prefix_cache *p, int i)
{
    kv_seq_free(p->entries[i].kv);
    free(p->entries[i].tokens);
    p->entries[i] = p->entries[--p->n];
}

bool prefix_evict(struct prefix_cache *p)
{
    int oldest = 0;

    for (int i = 1; i < p->n; i++)
        if (p->entries[i].used < p->entries[oldest].used)
            oldest = i;
    if (p->n == 0)
        return false;
    let_go(p, oldest);
    return true;
}

void prefix_drop(struct prefix_cache *p)
{
    while (prefix_evict(p))
        ;
}

/* What of n positions can be kept or used without copying a block. */
static int usable(const struct prefix_cache *p, int n)
{
    return p->whole ? n : n / KV_BLOCK * KV_BLOCK;
}

static size_t bytes_of(const struct prefix_cache *p, int n)
{
    return (size_t)((n + KV_BLOCK - 1) / KV_BLOCK) * p->block_bytes;
}

static size_t bytes_kept(const struct prefix_cache *p)
{
    size_t sum = 0;

    for (int i = 0; i < p->n; i++)
        sum += bytes_of(p, p->entries[i].n);
    return sum;
}

/* True when an entry says at least as much; entries that say less make way. */
static bool is_known(struct prefix_cache *p, uint64_t epoch, const int32_t *tokens, int n)
{
    for (int i = p->n - 1; i >= 0; i--) {
        struct prefix *en = &p->entries[i];
        int same = en->epoch == epoch ? common(en->tokens, en->n, tokens, n) : 0;

        if (same == n) {
            en->used = ++p->clock;
            return !p->whole || en->n == n;
        }
        if (same == en->n && !p->whole)
            let_go(p, i);
    }
    return false;
}

void prefix_keep(struct prefix_cache *p, uint64_t epoch, const int32_t *tokens, int n,
                 const struct kv_seq *kv, size_t max_bytes)
{
    struct prefix new = {.epoch = epoch, .n = usable(p, n)};
    struct err e = {0};

    if (new.n < KV_BLOCK || bytes_of(p, new.n) > max_bytes || is_known(p, epoch, tokens, new.n))
        return;
    while (p->n == PREFIX_MAX || bytes_kept(p) + bytes_of(p, new.n) > max_bytes)
        prefix_evict(p);
    new.tokens = malloc((size_t) new.n * sizeof *tokens);
    new.kv = new.tokens ? kv_seq_fork(kv, new.n, &e) : NULL;
    if (!new.kv) { /* no memory: there is no entry then */
        free(new.tokens);
        return;
    }
    memcpy(new.tokens, tokens, (size_t) new.n * sizeof *tokens);
    new.used = ++p->clock;
    p->entries[p->n++] = new;
}

/* How much of an entry the tokens may start with. */
static int match(const struct prefix_cache *p, const struct prefix *en, const int32_t *tokens,
                 int n)
{
    int same = common(en->tokens, en->n, tokens, n - 1);

    if (p->whole)
        return same == en->n ? same : 0;
    return usable(p, same);
}

struct kv_seq *prefix_find(struct prefix_cache *p, uint64_t epoch, const int32_t *tokens, int n)
{
    struct prefix *best = NULL;
    struct err e = {0};
    int longest = 0;

    for (int i = 0; i < p->n; i++) {
        struct prefix *en = &p->entries[i];
        int m = en->epoch == epoch ? match(p, en, tokens, n) : 0;

        if (m > longest) {
            longest = m;
            best = en;
        }
    }
    if (!best)
        return NULL;
    best->used = ++p->clock;
    return kv_seq_fork(best->kv, longest, &e);
}
