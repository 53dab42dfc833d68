#include "generate/grammar_mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "generate/grammar.h"
#include "generate/grammar_graph.h"

enum {
    LEVELS_OF_TOKEN = 16, /* of nesting that one token may open */
    KEPT_OF_NODE = 32,
    KEPT_BYTES = 24 << 20 /* of masks; further ones are found each time */
};

/* ---- bound ---- */

struct grammar_bound *grammar_bind(struct grammar *g, struct token_trie *t, struct err *e)
{
    struct grammar_bound *b = calloc(1, sizeof *b);

    if (b)
        b->masks = calloc((size_t)g->n_nodes, sizeof *b->masks);
    if (!b || !b->masks) {
        free(b);
        err_nomem(e);
        return NULL;
    }
    atomic_init(&b->refs, 1);
    b->grammar = grammar_ref(g);
    b->trie = token_trie_ref(t);
    return b;
}

struct grammar_bound *grammar_bound_ref(struct grammar_bound *b)
{
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

static void release_found(struct found *f)
{
    free(f->ids);
    free(f->exits);
    free(f->id_chars);
    free(f->exit_chars);
    *f = (struct found){0};
}

static void free_mask(struct node_mask *m)
{
    free(m->bits);
    release_found(&m->in);
    free(m);
}

void grammar_bound_unref(struct grammar_bound *b)
{
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (int32_t i = 0; i < b->grammar->n_nodes; i++)
        for (struct node_mask *m = atomic_load(&b->masks[i]), *next; m; m = next) {
            next = m->next;
            free_mask(m);
        }
    free(b->masks);
    grammar_unref(b->grammar);
    token_trie_unref(b->trie);
    free(b);
}

const struct token_trie *grammar_bound_trie(const struct grammar_bound *b)
{
    return b->trie;
}

/* ---- the walk ---- */

int walk_init(struct walk *w, const struct grammar_bound *b, struct err *e)
{
    const struct grammar *g = b->grammar;
    size_t n_ids = b->trie->n_ids + 1;

    w->trie = b->trie;
    w->places = malloc((size_t)(TRIE_DEPTH_MAX + 2) * PLACES_MAX * sizeof *w->places);
    w->found.ids = malloc(n_ids * sizeof *w->found.ids);
    w->found.id_chars = malloc(n_ids * sizeof *w->found.id_chars);
    if (!w->places || !w->found.ids || !w->found.id_chars)
        return err_nomem(e);
    return machine_init(&w->local, g, LEVELS_OF_TOKEN + g->height, e);
}

void walk_release(struct walk *w)
{
    machine_release(&w->local);
    release_found(&w->found);
    free(w->places);
}

static void set_bit(uint64_t *mask, int32_t id)
{
    mask[(uint32_t)id / 64] |= UINT64_C(1) << ((uint32_t)id % 64);
}

static bool grow_exits(struct found *f)
{
    uint32_t cap = f->cap_exits ? 2 * f->cap_exits : 256;
    uint32_t *exits = realloc(f->exits, cap * sizeof *exits);
    uint8_t *chars;

    if (exits)
        f->exits = exits;
    chars = realloc(f->exit_chars, cap * sizeof *chars);
    if (chars)
        f->exit_chars = chars;
    f->failed = f->failed || !exits || !chars;
    if (!f->failed)
        f->cap_exits = cap;
    return !f->failed;
}

static void note_exit(struct found *f, uint32_t node, uint8_t chars)
{
    if (f->n_exits == f->cap_exits && !grow_exits(f))
        return;
    f->exits[f->n_exits] = node;
    f->exit_chars[f->n_exits++] = chars;
}

/* Characters of a string with a length, whose sets hold one place at most. */
static uint8_t chars_of(const struct place_set *before, const struct place_set *after)
{
    uint32_t n = after->ended ? before->list[0].count : after->list[0].count;

    return (uint8_t)((n < CHARS_MAX ? n : CHARS_MAX) | (after->ended ? CHARS_CLOSED : 0));
}

static void take_tokens(struct walk *w, const struct trie_node *node, uint8_t chars, uint64_t *mask)
{
    struct found *f = &w->found;

    for (uint32_t i = node->token; i < node[1].token; i++) {
        if (mask) {
            set_bit(mask, w->trie->ids[i]);
            continue;
        }
        f->ids[f->n_ids] = w->trie->ids[i];
        f->id_chars[f->n_ids++] = chars;
    }
}

/* Walks the nodes [from, end) of the trie, which lie below `depth`, from the places of sets[0].
 * With a mask its bits are set; without, ids and exits are gathered. */
static void walk_trie(struct walk *w, struct machine *m, uint32_t from, uint32_t end, int depth,
                      uint64_t *mask)
{
    const struct trie_node *nodes = w->trie->nodes;

    for (uint32_t i = from; i < end;) {
        struct place_set *before = &w->sets[nodes[i].depth - depth - 1], *after = before + 1;
        uint8_t chars = 0;

        after->list = before->list + before->n;
        machine_step(m, before, nodes[i].byte, after);
        if (after->n == 0 && !after->ended) {
            i = nodes[i].skip;
            continue;
        }
        if (m->unlimited)
            chars = chars_of(before, after);
        take_tokens(w, &nodes[i], chars, mask);
        if (after->ended && !mask && nodes[i].skip > i + 1)
            note_exit(&w->found, i, chars);
        i = after->n > 0 ? i + 1 : nodes[i].skip;
    }
}

/* ---- masks that are kept ---- */

static void *copy_of(const void *from, size_t n, bool *ok)
{
    void *to = malloc(n + 1);

    *ok = *ok && to;
    if (to && n)
        memcpy(to, from, n);
    return to;
}

/* The sets of a string with a length keep their tokens one by one. */
static struct node_mask *copy_found(const struct walk *w, uint32_t count, bool counted)
{
    const struct found *from = &w->found;
    struct node_mask *m = calloc(1, sizeof *m);
    size_t words = grammar_mask_words(w->trie->vocab);
    bool many = from->n_ids > 2 * words; /* ids have half the size of a word */
    bool ok = true;

    if (!m)
        return NULL;
    m->count = count;
    m->in = (struct found){.n_exits = from->n_exits, .n_ids = from->n_ids};
    m->in.exits = copy_of(from->exits, from->n_exits * sizeof *from->exits, &ok);
    if (counted) {
        m->in.id_chars = copy_of(from->id_chars, from->n_ids, &ok);
        m->in.exit_chars = copy_of(from->exit_chars, from->n_exits, &ok);
    }
    if (!many || counted)
        m->in.ids = copy_of(from->ids, from->n_ids * sizeof *from->ids, &ok);
    else
        ok = (m->bits = calloc(words, sizeof *m->bits)) && ok;
    for (uint32_t i = 0; m->bits && i < from->n_ids; i++)
        set_bit(m->bits, from->ids[i]);
    if (ok)
        return m;
    free_mask(m);
    return NULL;
}

static size_t bytes_of(const struct walk *w, const struct node_mask *m)
{
    size_t bytes = sizeof *m + m->in.n_exits * sizeof *m->in.exits;

    if (m->bits)
        bytes += grammar_mask_words(w->trie->vocab) * sizeof *m->bits;
    if (m->in.ids)
        bytes += m->in.n_ids * sizeof *m->in.ids;
    return bytes + (m->in.id_chars ? m->in.n_ids + m->in.n_exits : 0);
}

static void keep(const struct walk *w, struct grammar_bound *b, int32_t node, struct node_mask *m)
{
    atomic_fetch_add(&b->kept_bytes, bytes_of(w, m));
    m->next = atomic_load(&b->masks[node]);
    while (!atomic_compare_exchange_weak(&b->masks[node], &m->next, m))
        ;
}

/* A walk over all tokens from the node alone. */
static void find(struct walk *w, int32_t node, uint32_t count, bool counted)
{
    machine_forget(&w->local);
    w->local.unlimited = counted;
    w->found.n_ids = w->found.n_exits = 0;
    w->sets[0] = (struct place_set){.list = w->places, .n = 1};
    w->places[0] = (struct place){.node = node, .frame = BOTTOM, .count = count};
    walk_trie(w, &w->local, 0, w->trie->n_nodes, 0, NULL);
}

/* The mask of the place's node. *unkept is filled where there is no room to keep one more. */
static const struct node_mask *mask_of(struct walk *w, struct grammar_bound *b,
                                       const struct place *p, struct node_mask *unkept)
{
    bool counted = b->grammar->nodes[p->node].limit != 0;
    uint32_t count = counted ? 0 : p->count;
    struct node_mask *m;
    int n = 0;

    for (m = atomic_load(&b->masks[p->node]); m; m = m->next, n++)
        if (m->count == count)
            return m;
    find(w, p->node, count, counted);
    *unkept = (struct node_mask){.count = count, .in = w->found};
    if (n >= KEPT_OF_NODE || atomic_load(&b->kept_bytes) > KEPT_BYTES || w->found.failed)
        return unkept;
    m = copy_found(w, count, counted);
    if (!m)
        return unkept;
    keep(w, b, p->node, m);
    return m;
}

/* ---- the mask of a place ---- */

/* Whether so many characters may be added. */
static bool is_within(uint8_t chars, uint32_t needed, uint32_t room)
{
    uint32_t n = chars & CHARS_MAX;

    return n <= room && n < CHARS_MAX && (!(chars & CHARS_CLOSED) || n >= needed);
}

static void add_tokens(const struct node_mask *m, size_t words, uint64_t *mask)
{
    if (m->bits)
        for (size_t i = 0; i < words; i++)
            mask[i] |= m->bits[i];
    else
        for (uint32_t i = 0; i < m->in.n_ids; i++)
            set_bit(mask, m->in.ids[i]);
}

static void add_counted_tokens(const struct found *f, uint32_t needed, uint32_t room,
                               uint64_t *mask)
{
    for (uint32_t i = 0; i < f->n_ids; i++)
        if (is_within(f->id_chars[i], needed, room))
            set_bit(mask, f->ids[i]);
}

/* Tokens that leave the rule go on behind the call. */
static void walk_exit(struct walk *w, struct machine *m, uint32_t at, uint64_t *mask)
{
    const struct trie_node *nodes = w->trie->nodes;

    walk_trie(w, m, at + 1, nodes[at].skip, nodes[at].depth, mask);
}

static void start_behind(struct walk *w, struct machine *m, const struct place *p)
{
    w->sets[0] = (struct place_set){.list = w->places};
    machine_return(m, &w->sets[0], p->frame);
}

static void add_counted(struct walk *w, struct grammar_bound *b, struct machine *m,
                        const struct place *p, const struct found *f, uint64_t *mask)
{
    const struct string_limit *limit = &b->grammar->limits[b->grammar->nodes[p->node].limit];
    uint32_t needed = limit->min > p->count ? limit->min - p->count : 0;
    uint32_t room = limit->max - p->count;

    add_counted_tokens(f, needed, room, mask);
    if (p->frame == BOTTOM)
        return;
    start_behind(w, m, p);
    for (uint32_t i = 0; i < f->n_exits; i++)
        if (is_within(f->exit_chars[i], needed, room))
            walk_exit(w, m, f->exits[i], mask);
}

void walk_place(struct walk *w, struct grammar_bound *b, struct machine *m, const struct place *p,
                uint64_t *mask)
{
    struct node_mask unkept;
    const struct node_mask *found;

    if (m->frames[p->frame].depth + w->local.depth_max > m->depth_max) { /* too near the limit */
        w->sets[0] = (struct place_set){.list = w->places, .n = 1};
        w->places[0] = *p;
        walk_trie(w, m, 0, w->trie->n_nodes, 0, mask);
        return;
    }
    found = mask_of(w, b, p, &unkept);
    if (b->grammar->nodes[p->node].limit) {
        add_counted(w, b, m, p, &found->in, mask);
        return;
    }
    add_tokens(found, grammar_mask_words(w->trie->vocab), mask);
    if (found->in.n_exits == 0 || p->frame == BOTTOM)
        return;
    start_behind(w, m, p);
    for (uint32_t i = 0; i < found->in.n_exits; i++)
        walk_exit(w, m, found->in.exits[i], mask);
}
