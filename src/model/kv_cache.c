/* model/kv_cache.c - invariant: free blocks >= promises that are still open, so a promised sequence
 * can always grow. A promise is a number of blocks in all; what of it is still open follows from
 * the blocks held. */
#include "model/kv_cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "model/config.h"

enum { BLOCKS_MAX = 1 << 24, PAGE = 4096, HUGE_PAGE = 2 << 20 };

struct kv_cache {
    int n_kv_heads, head_dim;
    size_t conv_layer_floats; /* (K-1) x H */
    size_t conv_floats;       /* of all convolution layers */
    int max_positions;

    float *base; /* reserved addresses for every block */
    size_t map_bytes;
    size_t block_floats;
    size_t layer_floats; /* from a layer's pages to the next one's; 0: all layers use the same */
    int n_blocks;
    int n_fresh;    /* blocks [n_fresh, n_blocks) were never used */
    size_t touched; /* bytes from base that kv_cache_touch_ahead has touched */
    int *free_ids;  /* stack of used and returned blocks */
    int n_free;
    int *refs;    /* sequences that hold each block */
    int promised; /* sum of open promises */
};

struct kv_seq {
    struct kv_cache *kv;
    int *blocks;
    int n_blocks, capacity;
    int length;   /* positions stored */
    int reserved; /* blocks promised in all, held ones included */
    float *conv;  /* [conv layers][K-1][H], or NULL */
};

static int blocks_for(int64_t positions)
{
    return (int)((positions + KV_BLOCK - 1) / KV_BLOCK);
}

static size_t page_floats(const struct kv_cache *kv)
{
    return (size_t)kv->head_dim * KV_BLOCK;
}

static size_t layer_floats(const struct model_config *c)
{
    return 2 * (size_t)c->head_dim * KV_BLOCK * (size_t)c->n_kv_heads;
}

static size_t block_floats(const struct model_config *c, enum kv_layers layers)
{
    size_t n_layers = (size_t)(c->n_layers - c->n_conv_layers);

    if (n_layers == 0)
        return KV_BLOCK; /* no attention layer: blocks only count positions */
    return layer_floats(c) * (layers == KV_ONE_LAYER ? 1 : n_layers);
}

size_t kv_block_bytes(const struct model_config *c, enum kv_layers layers)
{
    return block_floats(c, layers) * sizeof(float);
}

struct kv_cache *kv_cache_new(const struct model_config *c, enum kv_layers layers,
                              size_t budget_bytes, struct err *e)
{
    struct kv_cache *kv = calloc(1, sizeof *kv);
    size_t n;

    if (!kv)
        goto nomem;
    kv->n_kv_heads = c->n_kv_heads;
    kv->head_dim = c->head_dim;
    kv->max_positions = c->max_positions;
    if (c->n_conv_layers > 0)
        kv->conv_layer_floats = (size_t)(c->conv_taps - 1) * (size_t)c->hidden;
    kv->conv_floats = kv->conv_layer_floats * (size_t)c->n_conv_layers;
    kv->block_floats = block_floats(c, layers);
    kv->layer_floats = layers == KV_ONE_LAYER ? 0 : layer_floats(c);
    n = budget_bytes / kv_cache_block_bytes(kv);
    if (n == 0) {
        err_set(e, ERR_SPACE, "%zu bytes of cache memory do not hold one block of %zu bytes",
                budget_bytes, kv_cache_block_bytes(kv));
        goto fail;
    }
    kv->n_blocks = n < BLOCKS_MAX ? (int)n : BLOCKS_MAX;
    kv->free_ids = malloc((size_t)kv->n_blocks * sizeof *kv->free_ids);
    kv->refs = calloc((size_t)kv->n_blocks, sizeof *kv->refs);
    kv->map_bytes = (size_t)kv->n_blocks * kv_cache_block_bytes(kv);
    kv->base = mmap(NULL, kv->map_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (kv->base == MAP_FAILED)
        kv->base = NULL;
    if (!kv->free_ids || !kv->refs || !kv->base)
        goto nomem;
    madvise(kv->base, kv->map_bytes, MADV_HUGEPAGE);
    return kv;
nomem:
    err_nomem(e);
fail:
    kv_cache_free(kv);
    return NULL;
}

void kv_cache_free(struct kv_cache *kv)
{
    if (!kv)
        return;
    if (kv->base)
        munmap(kv->base, kv->map_bytes);
    free(kv->free_ids);
    free(kv->refs);
    free(kv);
}

size_t kv_cache_block_bytes(const struct kv_cache *kv)
{
    return kv->block_floats * sizeof(float);
}

int kv_cache_blocks(const struct kv_cache *kv)
{
    return kv->n_blocks;
}

static int free_blocks(const struct kv_cache *kv)
{
    return kv->n_free + kv->n_blocks - kv->n_fresh;
}

int kv_cache_blocks_used(const struct kv_cache *kv)
{
    return kv->n_blocks - free_blocks(kv);
}

int64_t kv_cache_free_positions(const struct kv_cache *kv)
{
    return (int64_t)(free_blocks(kv) - kv->promised) * KV_BLOCK;
}

int64_t kv_cache_max_positions(const struct kv_cache *kv)
{
    int64_t fit = (int64_t)kv->n_blocks * KV_BLOCK;

    return fit < kv->max_positions ? fit : kv->max_positions;
}

/* Bytes [from, end) of the cache, a piece up to each border of a huge page. */
struct touch {
    char *base;
    size_t from, end;
};

static size_t piece_start(const struct touch *t, int piece)
{
    size_t border = (uintptr_t)(t->base + t->from) % HUGE_PAGE;
    size_t at = piece == 0 ? t->from : t->from - border + (size_t)piece * HUGE_PAGE;

    return at < t->end ? at : t->end;
}

static void touch_piece(void *arg, int item, int worker)
{
    const struct touch *t = arg;
    volatile char *bytes = t->base;
    size_t end = piece_start(t, item + 1);

    (void)worker;
    for (size_t at = piece_start(t, item); at < end; at += PAGE - (uintptr_t)(t->base + at) % PAGE)
        bytes[at] = 0;
}

bool kv_cache_touch_ahead(struct kv_cache *kv, struct pool *pool, int ahead)
{
    size_t used = (size_t)kv->n_fresh * kv_cache_block_bytes(kv);
    size_t fresh = ahead > kv->n_free ? (size_t)(ahead - kv->n_free) : 0;
    size_t least = used + fresh * kv_cache_block_bytes(kv);
    struct touch t = {.base = (char *)kv->base,
                      .from = kv->touched > used ? kv->touched : used,
                      .end = least < kv->map_bytes ? least : kv->map_bytes};

    if (t.from >= t.end)
        return false;
    t.end = piece_start(&t, pool_workers(pool));
    pool_run(pool, touch_piece, &t, pool_workers(pool));
    kv->touched = t.end;
    return true;
}

/* The caller has checked that a block is free. */
static int take_block(struct kv_cache *kv)
{
    int id = kv->n_free > 0 ? kv->free_ids[--kv->n_free] : kv->n_fresh++;

    kv->refs[id] = 1;
    return id;
}

static void drop_block(struct kv_cache *kv, int id)
{
    if (--kv->refs[id] == 0)
        kv->free_ids[kv->n_free++] = id;
}

/* ---- sequences ---- */

static int open_promise(const struct kv_seq *s)
{
    return s->reserved > s->n_blocks ? s->reserved - s->n_blocks : 0;
}

static int grow_table(struct kv_seq *s, int n, struct err *e)
{
    int *to;

    if (s->blocks && n <= s->capacity)
        return 0;
    to = realloc(s->blocks, (size_t)n * sizeof *to);
    if (!to)
        return err_nomem(e);
    s->blocks = to;
    s->capacity = n;
    return 0;
}

/* Makes the table n blocks long; n is more than it holds, and enough are free for this sequence. */
static void take_blocks(struct kv_seq *s, int n)
{
    s->kv->promised -= open_promise(s);
    while (s->n_blocks < n)
        s->blocks[s->n_blocks++] = take_block(s->kv);
    s->kv->promised += open_promise(s);
}

struct kv_seq *kv_seq_new(struct kv_cache *kv, struct err *e)
{
    struct kv_seq *s = calloc(1, sizeof *s);

    if (s && kv->conv_floats > 0)
        s->conv = calloc(kv->conv_floats, sizeof *s->conv);
    if (!s || (kv->conv_floats > 0 && !s->conv)) {
        free(s);
        err_nomem(e);
        return NULL;
    }
    s->kv = kv;
    return s;
}

void kv_seq_free(struct kv_seq *s)
{
    if (!s)
        return;
    s->kv->promised -= open_promise(s);
    for (int i = s->n_blocks - 1; i >= 0; i--)
        drop_block(s->kv, s->blocks[i]);
    free(s->blocks);
    free(s->conv);
    free(s);
}

int kv_seq_length(const struct kv_seq *s)
{
    return s->length;
}

int kv_seq_reserve(struct kv_seq *s, int positions, struct err *e)
{
    int want = blocks_for(positions);
    int more = want - (s->reserved > s->n_blocks ? s->reserved : s->n_blocks);
    int available = free_blocks(s->kv) - s->kv->promised;

    if (more <= 0)
        return 0;
    if (more > available)
        return err_set(e, ERR_SPACE,
                       "the cache has room for %lld more positions, %d blocks of 64 are needed",
                       (long long)kv_cache_free_positions(s->kv), more);
    if (grow_table(s, want, e) < 0)
        return -1;
    s->kv->promised -= open_promise(s);
    s->reserved = want;
    s->kv->promised += open_promise(s);
    return 0;
}

static float *block_at(const struct kv_seq *s, int block)
{
    return s->kv->base + (size_t)s->blocks[block] * s->kv->block_floats;
}

/* Shares the full blocks of the first `positions`, copies the partial one. `to` is new; blocks are
 * free. */
static void share_blocks(struct kv_seq *to, const struct kv_seq *from, int positions)
{
    int full = positions / KV_BLOCK;

    if (!from->blocks || !to->blocks) /* nothing is stored, positions is 0 */
        return;
    for (int i = 0; i < full; i++) {
        to->blocks[i] = from->blocks[i];
        to->kv->refs[from->blocks[i]]++;
    }
    to->n_blocks = full;
    if (positions % KV_BLOCK == 0)
        return;
    to->blocks[to->n_blocks++] = take_block(to->kv);
    memcpy(block_at(to, full), block_at(from, full), kv_cache_block_bytes(to->kv));
}

struct kv_seq *kv_seq_fork(const struct kv_seq *s, int positions, struct err *e)
{
    struct kv_seq *to;

    if (positions < 0 || positions > s->length || (s->conv && positions != s->length)) {
        err_set(e, ERR_ARG, "a sequence of %d positions cannot be forked at %d", s->length,
                positions);
        return NULL;
    }
    if (positions % KV_BLOCK && free_blocks(s->kv) - s->kv->promised < 1) {
        err_set(e, ERR_SPACE, "no cache block is free for a forked sequence");
        return NULL;
    }
    to = kv_seq_new(s->kv, e);
    if (!to)
        return NULL;
    if (grow_table(to, blocks_for(positions) + 1, e) < 0) {
        kv_seq_free(to);
        return NULL;
    }
    share_blocks(to, s, positions);
    to->length = positions;
    if (s->conv)
        memcpy(to->conv, s->conv, s->kv->conv_floats * sizeof *s->conv);
    return to;
}

int kv_seq_extend(struct kv_seq *s, int n, struct err *e)
{
    int want = blocks_for((int64_t)s->length + n);
    int available = open_promise(s) + free_blocks(s->kv) - s->kv->promised;

    if (want <= s->n_blocks)
        return 0;
    if (want - s->n_blocks > available)
        return err_set(e, ERR_SPACE, "no cache block is free for position %d", s->length + n - 1);
    if (grow_table(s, want, e) < 0)
        return -1;
    take_blocks(s, want);
    return 0;
}

void kv_seq_trim(struct kv_seq *s)
{
    s->kv->promised -= open_promise(s);
    while (s->n_blocks > blocks_for(s->length))
        drop_block(s->kv, s->blocks[--s->n_blocks]);
    s->kv->promised += open_promise(s);
}

void kv_seq_advance(struct kv_seq *s, int n)
{
    s->length += n;
}

static size_t page_at(const struct kv_cache *kv, int layer, int head)
{
    return kv->layer_floats * (size_t)layer + 2 * page_floats(kv) * (size_t)head;
}

float *kv_seq_k_page(const struct kv_seq *s, int block, int layer, int head)
{
    return block_at(s, block) + page_at(s->kv, layer, head);
}

float *kv_seq_v_page(const struct kv_seq *s, int block, int layer, int head)
{
    return kv_seq_k_page(s, block, layer, head) + page_floats(s->kv);
}

float *kv_seq_conv_state(const struct kv_seq *s, int conv_layer)
{
    return s->conv + (size_t)conv_layer * s->kv->conv_layer_floats;
}
