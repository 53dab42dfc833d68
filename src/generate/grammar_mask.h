/* generate/grammar_mask.h - which tokens are possible at a place (inside the room).
 *
 * Which tokens are possible at a place depends on its node alone, as long as a token does not leave
 * the rule the place is in. So the mask of a node is found once, by a walk over the trie with no
 * call open, and kept for every answer; where a token left the rule, the node of the trie is noted
 * (an exit), and only the few tokens behind exits are walked anew, with the calls that are open.
 *
 * In a string with a length the mask also depends on how many characters there are. There the walk
 * is done once without a length, and each token and exit keeps its number of characters. */
#ifndef GENERATE_GRAMMAR_MASK_H
#define GENERATE_GRAMMAR_MASK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate/grammar_machine.h"
#include "generate/token_trie.h"

struct grammar;

/* What a walk over the trie has found. */
struct found {
    int32_t *ids;    /* tokens */
    uint32_t *exits; /* nodes of the trie where a token leaves the rule and goes on */
    /* in a string with a length: characters, with CHARS_CLOSED where the string has ended */
    uint8_t *id_chars, *exit_chars;
    uint32_t n_ids, n_exits, cap_exits;
    bool failed;
};

enum { CHARS_CLOSED = 0x80, CHARS_MAX = 0x7f }; /* longer tokens are not possible there */

/* A kept mask. */
struct node_mask {
    struct node_mask *next;
    uint32_t count;  /* characters of the string, at a node inside one of them */
    uint64_t *bits;  /* many tokens */
    struct found in; /* few tokens, or those of a string with a length; exits */
};

struct grammar_bound {
    atomic_int refs;
    struct grammar *grammar;
    struct token_trie *trie;
    _Atomic(struct node_mask *) *masks; /* [n_nodes]: lists that only grow */
    atomic_size_t kept_bytes;
};

/* Room for walks. */
struct walk {
    const struct token_trie *trie;
    struct machine local; /* frames inside one node's mask */
    struct place *places;
    struct place_set sets[TRIE_DEPTH_MAX + 2]; /* one for each byte of a token */
    struct found found;
};

int walk_init(struct walk *w, const struct grammar_bound *b, struct err *e);
void walk_release(struct walk *w);
/* Sets the bits of the tokens that are possible at the place, whose frames are of *m. */
void walk_place(struct walk *w, struct grammar_bound *b, struct machine *m, const struct place *p,
                uint64_t *mask);
#endif
