#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "generate/grammar.h"
#include "generate/grammar_graph.h"
#include "generate/grammar_machine.h"
#include "generate/grammar_mask.h"
#include "generate/token_trie.h"

enum {
    LEVELS_MAX = 64,  /* of nesting: what a careful reader of JSON takes */
    FRAMES_MAX = 4096 /* then those of the past are dropped */
};

struct grammar_run {
    struct grammar_bound *bound;
    struct machine machine;
    struct place_set now, next;
    struct walk walk;
};

/* The tokens that the language goes on with. */
static void add_text(struct grammar_run *r, uint64_t *mask)
{
    for (int i = 0; i < r->now.n; i++)
        walk_place(&r->walk, r->bound, &r->machine, &r->now.list[i], mask);
}

static bool is_empty(const uint64_t *mask, size_t words)
{
    while (words > 0 && mask[words - 1] == 0)
        words--;
    return words == 0;
}

int grammar_run_mask(struct grammar_run *r, const int32_t *ends, int n_ends, uint64_t *mask,
                     struct err *e)
{
    int vocab = r->bound->trie->vocab;
    size_t words = grammar_mask_words(vocab);

    memset(mask, 0, words * sizeof *mask);
    add_text(r, mask);
    for (int i = 0; i < n_ends; i++) {
        uint64_t bit = UINT64_C(1) << ((uint32_t)ends[i] % 64);

        if (ends[i] < 0 || ends[i] >= vocab)
            continue;
        if (r->now.ended)
            mask[(uint32_t)ends[i] / 64] |= bit;
        else
            mask[(uint32_t)ends[i] / 64] &= ~bit;
    }
    if (is_empty(mask, words)) /* whatever comes next is an end token: it ends here */
        add_text(r, mask);
    return r->walk.found.failed || r->machine.failed || r->walk.local.failed ? err_nomem(e) : 0;
}

/* ---- one answer ---- */

static int init_run(struct grammar_run *r, struct err *e)
{
    const struct grammar *g = r->bound->grammar;

    r->now.list = malloc(PLACES_MAX * sizeof *r->now.list);
    r->next.list = malloc(PLACES_MAX * sizeof *r->next.list);
    if (!r->now.list || !r->next.list)
        return err_nomem(e);
    if (machine_init(&r->machine, g, LEVELS_MAX, e) < 0 || walk_init(&r->walk, r->bound, e) < 0)
        return -1;
    machine_add(&r->machine, &r->now, g->start, BOTTOM, 0);
    return 0;
}

struct grammar_run *grammar_run_new(struct grammar_bound *b, struct err *e)
{
    struct grammar_run *r = calloc(1, sizeof *r);

    if (!r) {
        err_nomem(e);
        return NULL;
    }
    r->bound = grammar_bound_ref(b);
    if (init_run(r, e) < 0) {
        grammar_run_free(r);
        return NULL;
    }
    return r;
}

void grammar_run_free(struct grammar_run *r)
{
    if (!r)
        return;
    machine_release(&r->machine);
    walk_release(&r->walk);
    grammar_bound_unref(r->bound);
    free(r->now.list);
    free(r->next.list);
    free(r);
}

int grammar_run_accept(struct grammar_run *r, int32_t token, struct err *e)
{
    unsigned char bytes[TRIE_DEPTH_MAX];
    size_t n = token_trie_spell(r->bound->trie, token, bytes);

    if (n == 0)
        return err_set(e, ERR_ARG, "token %d has no text", (int)token);
    for (size_t i = 0; i < n; i++) {
        struct place_set before = r->now;

        machine_step(&r->machine, &before, bytes[i], &r->next);
        r->now = r->next;
        r->next = before;
    }
    if (r->machine.failed)
        return err_nomem(e);
    if (r->now.n == 0 && !r->now.ended)
        return err_set(e, ERR_ARG, "token %d cannot stand here", (int)token);
    return r->machine.n_frames > FRAMES_MAX ? machine_compact(&r->machine, &r->now, e) : 0;
}

bool grammar_run_may_end(const struct grammar_run *r)
{
    return r->now.ended;
}

bool grammar_run_is_over(const struct grammar_run *r)
{
    return r->now.ended && r->now.n == 0;
}
