/* generate/token_trie.h - the tokens of a vocabulary, sorted by their bytes: which tokens can
 * follow, found in one walk that gives up a whole branch at its first impossible byte.
 *
 * Nodes stand in pre-order: the subtree of node i is (i, nodes[i].skip). Tokens that end at node i
 * are ids[nodes[i].token .. nodes[i + 1].token). A special token is spelled with TRIE_SPECIAL in
 * front of its text: no UTF-8 text holds that byte, so only a grammar that names the token leads to
 * it. Ids without bytes, tokens longer than TRIE_DEPTH_MAX, and the token of that byte itself are
 * not in the trie.
 *
 * Counted, immutable, any thread. */
#ifndef GENERATE_TOKEN_TRIE_H
#define GENERATE_TOKEN_TRIE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct tokenizer;

enum { TRIE_SPECIAL = 0xff, TRIE_DEPTH_MAX = 250 };

struct trie_node {
    uint32_t skip;  /* the first node behind the subtree */
    uint32_t token; /* first of its tokens in ids */
    uint8_t byte;
    uint8_t depth; /* bytes from the root, 1 for its children */
};

struct token_trie {
    atomic_int refs;
    struct tokenizer *tokenizer; /* counted */
    int vocab;                   /* of the model: masks have this many bits */
    struct trie_node *nodes;     /* [n_nodes + 1]; the last one only ends the lists */
    uint32_t n_nodes;
    int32_t *ids; /* [n_ids] */
    uint32_t n_ids;
};

/* `vocab` is the model's; ids of the tokenizer beyond it are left out. Owned. ERR_NOMEM; ERR_FORMAT
 * when a printable ASCII character or a byte of a longer one has no token of its own, so that not
 * every text can be spelled. */
struct token_trie *token_trie_new(struct tokenizer *t, int vocab, struct err *e);
struct token_trie *token_trie_ref(struct token_trie *t);
void token_trie_unref(struct token_trie *t); /* NULL is allowed */

/* The bytes of a token as the trie spells them, into out [TRIE_DEPTH_MAX]; 0: it is not in it. */
size_t token_trie_spell(const struct token_trie *t, int32_t id, unsigned char *out);
#endif
