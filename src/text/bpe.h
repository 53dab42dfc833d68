/* text/bpe.h - byte pair encoding of one word: merge the pair of lowest rank, leftmost first, until
 * no neighbours form a piece.
 *
 * Calling order: bpe_init, bpe_add for each merge in the order of the file (its rank), then
 * bpe_word. bpe_word is const and keeps its work in a scratch that belongs to the call. Words of up
 * to BPE_SHORT pieces take a quadratic scan over a small array (quickest there), longer ones a
 * heap: n log n. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct token_list;
struct vocab;

enum { BPE_SHORT = 48 };

struct merge {
    int32_t left, right; /* left < 0: an empty slot */
    uint32_t rank;
    int32_t id; /* the piece that the two become */
};

struct bpe {
    struct merge *slots; /* owned; open addressing, at most half full */
    size_t mask;
    uint64_t *filter; /* owned; a set bit: some pair with this hash is there. Small enough for a
                         near cache */
    uint32_t n;
};

int bpe_init(struct bpe *b, size_t n_merges, struct err *e);
/* Ranks count up from 0; a pair that is there already keeps its first rank. */
void bpe_add(struct bpe *b, int32_t left, int32_t right, int32_t id);
void bpe_release(struct bpe *b);

struct bpe_scratch; /* opaque: memory of the heap, kept between words */

struct bpe_work {
    struct bpe_scratch *scratch; /* NULL at first; owned */
};

void bpe_work_release(struct bpe_work *w);

/* Appends the ids of the word to *out. Bytes without a piece vanish before merging. */
int bpe_word(const struct bpe *b, const struct vocab *v, const char *word, size_t len,
             struct bpe_work *w, struct token_list *out, struct err *e);
#endif
