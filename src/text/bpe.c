#include "text/bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/hash.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

enum { FILTER_BITS = 4 }; /* a slot; the table is at most half full, so at most 1 bit in 8 is set */

static const uint32_t no_rank = UINT32_MAX;
static const struct merge no_merge = {.left = -1, .right = -1, .rank = UINT32_MAX, .id = -1};

int bpe_init(struct bpe *b, size_t n_merges, struct err *e)
{
    size_t n = 16;

    *b = (struct bpe){0};
    if (n_merges > (size_t)VOCAB_MAX_ID)
        return err_set(e, ERR_FORMAT, "%zu merges, of at most %d", n_merges, VOCAB_MAX_ID);
    while (n < n_merges * 2)
        n *= 2;
    b->slots = malloc(n * sizeof *b->slots);
    b->filter = calloc(n * FILTER_BITS / 64, sizeof *b->filter);
    if (!b->slots || !b->filter) {
        bpe_release(b);
        return err_nomem(e);
    }
    b->mask = n - 1;
    for (size_t i = 0; i < n; i++)
        b->slots[i] = no_merge;
    return 0;
}

void bpe_release(struct bpe *b)
{
    free(b->slots);
    free(b->filter);
    *b = (struct bpe){0};
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

    key *= UINT64_C(0x9e3779b97f4a7c15);
    return key ^ key >> 32;
}

/* The pair's slot, or the empty one where it would be. */
static struct merge *slot_of(const struct bpe *b, uint64_t h, int32_t left, int32_t right)
{
    size_t at = (size_t)h & b->mask;

    while (b->slots[at].left >= 0 && (b->slots[at].left != left || b->slots[at].right != right))
        at = (at + 1) & b->mask;
    return &b->slots[at];
}

/* Most neighbours form no piece: the filter tells so for nine in ten without a look at the table.
 */
static const struct merge *find(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t h = hash_pair(left, right);
    size_t bit = (size_t)h & (b->mask * FILTER_BITS | (FILTER_BITS - 1));

    if (!(b->filter[bit / 64] >> (bit % 64) & 1))
        return &no_merge;
    return slot_of(b, h, left, right);
}

void bpe_add(struct bpe *b, int32_t left, int32_t right, int32_t id)
{
    uint64_t h = hash_pair(left, right);
    size_t bit = (size_t)h & (b->mask * FILTER_BITS | (FILTER_BITS - 1));
    struct merge *m = slot_of(b, h, left, right);

    b->filter[bit / 64] |= UINT64_C(1) << (bit % 64);
    if (m->left < 0)
        *m = (struct merge){.left = left, .right = right, .rank = b->n, .id = id};
    b->n++;
}

/* ---- short words ---- */

struct pair { /* what two neighbours become, and how early */
    uint32_t rank;
    int32_t id;
};

static struct pair pair_of(const struct bpe *b, const int32_t *ids)
{
    const struct merge *m = find(b, ids[0], ids[1]);

    return (struct pair){m->rank, m->id};
}

static size_t lowest(const struct pair *pairs, size_t n)
{
    size_t at = 0;

    for (size_t i = 1; i < n; i++)
        if (pairs[i].rank < pairs[at].rank)
            at = i;
    return at;
}

/* Merges ids[0..n) in place; returns how many are left. */
static size_t merge_short(const struct bpe *b, int32_t *ids, size_t n)
{
    struct pair pairs[BPE_SHORT]; /* pairs[i]: of ids[i] and ids[i + 1] */

    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = pair_of(b, ids + i);
    while (n > 1) {
        size_t at = lowest(pairs, n - 1);

        if (pairs[at].rank == no_rank)
            break;
        ids[at] = pairs[at].id;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        memmove(pairs + at, pairs + at + 1, (n - at - 1) * sizeof *pairs);
        if (at + 1 < n)
            pairs[at] = pair_of(b, ids + at);
        if (at > 0)
            pairs[at - 1] = pair_of(b, ids + at - 1);
    }
    return n;
}

/* ---- long words: a linked list of pieces and a heap of pairs ---- */

struct link {
    int32_t id; /* -1: merged into its left neighbour */
    int32_t prev, next;
};

struct candidate {
    uint32_t rank;
    int32_t at;          /* the left piece */
    int32_t left, right; /* ids when it was found: stale when they changed */
};

struct bpe_scratch {
    struct link *links;
    size_t cap_links;
    struct candidate *heap;
    size_t n_heap, cap_heap;
    bool failed; /* the heap could not grow */
};

void bpe_work_release(struct bpe_work *w)
{
    if (w->scratch) {
        free(w->scratch->links);
        free(w->scratch->heap);
        free(w->scratch);
    }
    w->scratch = NULL;
}

static int reserve(struct bpe_work *w, size_t n, struct err *e)
{
    struct bpe_scratch *s = w->scratch;

    if (n > INT32_MAX)
        return err_set(e, ERR_ARG, "one word of %zu bytes is too long; send it in parts", n);
    if (!s && !(s = w->scratch = calloc(1, sizeof *s)))
        return err_nomem(e);
    s->n_heap = 0;
    s->failed = false;
    if (s->cap_links >= n)
        return 0;
    free(s->links);
    s->links = malloc(n * sizeof *s->links);
    s->cap_links = s->links ? n : 0;
    return s->links ? 0 : err_nomem(e);
}

static bool heap_grow(struct bpe_scratch *s)
{
    size_t cap = s->cap_heap ? s->cap_heap * 2 : 256;
    struct candidate *heap = realloc(s->heap, cap * sizeof *heap);

    if (!heap) {
        s->failed = true;
        return false;
    }
    s->heap = heap;
    s->cap_heap = cap;
    return true;
}

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct bpe_scratch *s, struct candidate c)
{
    size_t i;

    if (s->n_heap == s->cap_heap && !heap_grow(s))
        return;
    i = s->n_heap++;
    for (; i > 0 && before(&c, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
}

static struct candidate heap_pop(struct bpe_scratch *s)
{
    struct candidate top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < s->n_heap) {
        if (child + 1 < s->n_heap && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static void consider(const struct bpe *b, struct bpe_scratch *s, int32_t at)
{
    int32_t next = s->links[at].next;
    const struct merge *m;

    if (next < 0)
        return;
    m = find(b, s->links[at].id, s->links[next].id);
    if (m->rank != no_rank)
        heap_push(s, (struct candidate){m->rank, at, m->left, m->right});
}

static void merge_long(const struct bpe *b, struct bpe_scratch *s)
{
    while (s->n_heap > 0) {
        struct candidate c = heap_pop(s);
        struct link *l = &s->links[c.at], *r;

        if (l->id != c.left || l->next < 0 || s->links[l->next].id != c.right)
            continue;
        r = &s->links[l->next];
        l->id = find(b, c.left, c.right)->id;
        r->id = -1;
        l->next = r->next;
        if (l->next >= 0)
            s->links[l->next].prev = c.at;
        consider(b, s, c.at);
        if (l->prev >= 0)
            consider(b, s, l->prev);
    }
}

static int word_long(const struct bpe *b, const struct vocab *v, const char *word, size_t len,
                     struct bpe_work *w, struct token_list *out, struct err *e)
{
    struct bpe_scratch *s;
    int32_t n = 0;

    if (reserve(w, len, e) < 0)
        return -1;
    s = w->scratch;
    for (size_t i = 0; i < len; i++) {
        int32_t id = v->byte_id[(unsigned char)word[i]];

        if (id >= 0 && (id != v->fused_unk || n == 0 || s->links[n - 1].id != id)) {
            s->links[n] = (struct link){id, n - 1, n + 1};
            n++;
        }
    }
    if (n == 0)
        return 0;
    s->links[n - 1].next = -1;
    for (int32_t i = 0; i < n; i++)
        consider(b, s, i);
    merge_long(b, s);
    if (s->failed)
        return err_nomem(e);
    for (int32_t i = 0; i >= 0; i = s->links[i].next)
        if (token_list_push(out, s->links[i].id, e) < 0)
            return -1;
    return 0;
}

int bpe_word(const struct bpe *b, const struct vocab *v, const char *word, size_t len,
             struct bpe_work *w, struct token_list *out, struct err *e)
{
    int32_t ids[BPE_SHORT];
    size_t n = 0;

    if (len > BPE_SHORT)
        return word_long(b, v, word, len, w, out, e);
    for (size_t i = 0; i < len; i++) {
        int32_t id = v->byte_id[(unsigned char)word[i]];

        if (id >= 0 && (id != v->fused_unk || n == 0 || ids[n - 1] != id))
            ids[n++] = id;
    }
    return token_list_append(out, ids, merge_short(b, ids, n), e);
}
