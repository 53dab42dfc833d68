#include "text/word_cache.h"

#include <stdlib.h>
#include <string.h>

#include "text/hash.h"

void word_cache_init(struct word_cache *c, size_t text_bytes)
{
    size_t n = 16;

    *c = (struct word_cache){0};
    while (n < text_bytes / 16 && n < WORD_CACHE_SLOTS)
        n *= 2;
    c->slots = aligned_alloc(64, n * sizeof *c->slots); /* a slot is a cache line */
    if (c->slots)
        memset(c->slots, 0, n * sizeof *c->slots);
    c->mask = n - 1;
}

void word_cache_release(struct word_cache *c)
{
    free(c->slots);
    *c = (struct word_cache){0};
}

static uint64_t load64(const char *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t load32(const char *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* Reads no byte beyond the word: a short one in two halves that overlap. */
static void make_key(struct word_key *key, const char *word, size_t len)
{
    *key = (struct word_key){.len = len};
    if (len >= 8) {
        key->part[0] = load64(word);
        key->part[1] = load64(word + len - 8);
        if (len > 16)
            key->part[2] = load64(word + 8);
    } else if (len >= 4) {
        key->part[0] = load32(word) | load32(word + len - 4) << 32;
    } else {
        for (size_t i = 0; i < len; i++)
            key->part[0] |= (uint64_t)(unsigned char)word[i] << (8 * i);
    }
}

static bool holds(const struct word_slot *s, const struct word_key *key)
{
    return s->len == key->len && ((s->part[0] ^ key->part[0]) | (s->part[1] ^ key->part[1]) |
                                  (s->part[2] ^ key->part[2])) == 0;
}

struct word_slot *word_cache_slot(struct word_cache *c, const char *word, size_t len,
                                  struct word_key *key, bool *hit)
{
    struct word_slot *s;
    uint64_t h;

    *hit = false;
    if (!c->slots || len > WORD_CACHE_BYTES)
        return NULL;
    make_key(key, word, len);
    h = hash_mix(key->part[0] ^ key->part[2], key->part[1] + key->part[2] * 3 + len);
    s = &c->slots[h & c->mask];
    *hit = holds(s, key);
    return s;
}

void word_cache_fill(struct word_slot *s, const struct word_key *key, const int32_t *ids, size_t n)
{
    if (n > WORD_CACHE_IDS || n == 0)
        return;
    memcpy(s->part, key->part, sizeof s->part);
    s->len = (uint16_t)key->len;
    s->n = (uint16_t)n;
    memcpy(s->ids, ids, n * sizeof *ids);
}
