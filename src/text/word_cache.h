/* text/word_cache.h - the ids of words seen before, for one encode call.
 *
 * One slot for each hash value: a newer word takes the place of an older one, so the size is
 * bounded and hostile text can only make it useless. Words over WORD_CACHE_BYTES or with more than
 * WORD_CACHE_IDS ids are not kept. Not shared between threads. */
#ifndef TEXT_WORD_CACHE_H
#define TEXT_WORD_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORD_CACHE_BYTES = 24, WORD_CACHE_IDS = 9, WORD_CACHE_SLOTS = 1 << 14 };

/* The bytes of a word in three parts that may overlap; with the length they are the word and no
 * other. */
struct word_key {
    uint64_t part[3];
    size_t len;
};

struct word_slot { /* one cache line */
    uint64_t part[3];
    int32_t ids[WORD_CACHE_IDS];
    uint16_t len; /* of the word; 0: empty */
    uint16_t n;
};

struct word_cache {
    struct word_slot *slots; /* owned; NULL: no cache */
    size_t mask;
};

/* Sized for a text of so many bytes. Without memory there is no cache, which is not an error. */
void word_cache_init(struct word_cache *c, size_t text_bytes);
void word_cache_release(struct word_cache *c);

/* The slot for the word, or NULL when it cannot be kept. *hit: the slot holds this word's ids; else
 * the caller may fill it with word_cache_fill. */
struct word_slot *word_cache_slot(struct word_cache *c, const char *word, size_t len,
                                  struct word_key *key, bool *hit);
void word_cache_fill(struct word_slot *s, const struct word_key *key, const int32_t *ids, size_t n);
#endif
