#include "service/grammar_cache.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sha256.h"
#include "generate/grammar.h"
#include "generate/token_trie.h"

enum { TRIES_KEPT = 2, GRAMMARS_KEPT = 24 };

struct kept_trie {
    struct token_trie *trie; /* counted; NULL: free */
    uint64_t used;
};

struct kept_grammar {
    struct grammar_bound *bound; /* counted; NULL: free */
    unsigned char key[SHA256_BYTES];
    uint64_t used;
};

struct grammar_cache {
    pthread_mutex_t lock;
    uint64_t turn;
    struct kept_trie tries[TRIES_KEPT];
    struct kept_grammar grammars[GRAMMARS_KEPT];
};

struct grammar_cache *grammar_cache_new(struct err *e)
{
    struct grammar_cache *c = calloc(1, sizeof *c);

    if (!c) {
        err_nomem(e);
        return NULL;
    }
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void grammar_cache_free(struct grammar_cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < GRAMMARS_KEPT; i++)
        grammar_bound_unref(c->grammars[i].bound);
    for (int i = 0; i < TRIES_KEPT; i++)
        token_trie_unref(c->tries[i].trie);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Grammars of a vocabulary that is no longer kept go with it. */
static void drop_trie(struct grammar_cache *c, struct kept_trie *k)
{
    for (int i = 0; i < GRAMMARS_KEPT; i++) {
        struct kept_grammar *g = &c->grammars[i];

        if (g->bound && grammar_bound_trie(g->bound) == k->trie) {
            grammar_bound_unref(g->bound);
            *g = (struct kept_grammar){0};
        }
    }
    token_trie_unref(k->trie);
    *k = (struct kept_trie){0};
}

/* Borrowed. */
static struct token_trie *find_trie(struct grammar_cache *c, struct tokenizer *t, int vocab,
                                    struct err *e)
{
    struct kept_trie *oldest = &c->tries[0];
    struct token_trie *trie;

    for (int i = 0; i < TRIES_KEPT; i++) {
        struct kept_trie *k = &c->tries[i];

        if (k->trie && k->trie->tokenizer == t && k->trie->vocab == vocab) {
            k->used = ++c->turn;
            return k->trie;
        }
        oldest = k->used < oldest->used ? k : oldest;
    }
    trie = token_trie_new(t, vocab, e);
    if (!trie)
        return NULL;
    drop_trie(c, oldest);
    *oldest = (struct kept_trie){.trie = trie, .used = ++c->turn};
    return trie;
}

/* Borrowed. */
static struct grammar_bound *find_grammar(struct grammar_cache *c, struct grammar *g,
                                          struct token_trie *trie, struct err *e)
{
    struct kept_grammar *oldest = &c->grammars[0];
    struct grammar_bound *bound;

    for (int i = 0; i < GRAMMARS_KEPT; i++) {
        struct kept_grammar *k = &c->grammars[i];

        if (k->bound && grammar_bound_trie(k->bound) == trie &&
            memcmp(k->key, grammar_key(g), SHA256_BYTES) == 0) {
            k->used = ++c->turn;
            return k->bound;
        }
        oldest = k->used < oldest->used ? k : oldest;
    }
    bound = grammar_bind(g, trie, e);
    if (!bound)
        return NULL;
    grammar_bound_unref(oldest->bound);
    *oldest = (struct kept_grammar){.bound = bound, .used = ++c->turn};
    memcpy(oldest->key, grammar_key(g), SHA256_BYTES);
    return bound;
}

struct grammar_bound *grammar_cache_bind(struct grammar_cache *c, struct grammar *g,
                                         struct tokenizer *t, int vocab, struct err *e)
{
    struct token_trie *trie;
    struct grammar_bound *bound = NULL;

    pthread_mutex_lock(&c->lock);
    trie = find_trie(c, t, vocab, e);
    if (trie)
        bound = find_grammar(c, g, trie, e);
    if (bound)
        grammar_bound_ref(bound);
    pthread_mutex_unlock(&c->lock);
    return bound;
}
