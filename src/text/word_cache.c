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
    c->slots = calloc(n, sizeof *c->slots);
    c->mask = n - 1;
}

void word_cache_release(struct word_cache *c)
{
    free(c->slots);
    *c = (struct word_cache){0};
}

static void make_key(struct word_key *key, const char *word, size_t len)
{
    unsigned char bytes[sizeof *key] = {0};

    memcpy(bytes, word, len);
    bytes[sizeof bytes - 1] = (unsigned char)len;
    memcpy(key, bytes, sizeof *key);
}

static bool same_key(const struct word_key *a, const struct word_key *b)
{
    return ((a->part[0] ^ b->part[0]) | (a->part[1] ^ b->part[1]) | (a->part[2] ^ b->part[2])) == 0;
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
    h = hash_mix(key->part[0] ^ key->part[2], key->part[1] + key->part[2]);
    s = &c->slots[h & c->mask];
    *hit = same_key(&s->key, key);
    return s;
}

void word_cache_fill(struct word_slot *s, const struct word_key *key, const int32_t *ids, size_t n)
{
    if (n > WORD_CACHE_IDS || n == 0)
        return;
    s->key = *key;
    s->n = (int32_t)n;
    memcpy(s->ids, ids, n * sizeof *ids);
}
