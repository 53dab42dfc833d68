/* generate/history.c - which tokens a sequence holds, and how often it generated each: an open hash
 * table. */
#include "generate/history.h"

#include <stdlib.h>

#include "base/err.h"
#include "generate/sampler.h"

enum { FIRST_CAPACITY = 64 };

static int slot_of(const struct sample_seen *table, int capacity, int32_t token)
{
    uint32_t at = (uint32_t)token * 0x9E3779B1u;

    for (at &= (uint32_t)capacity - 1; table[at].used; at = (at + 1) & ((uint32_t)capacity - 1))
        if (table[at].token == token)
            break;
    return (int)at;
}

static int grow(struct sample_history *h, struct err *e)
{
    int capacity = h->capacity ? 2 * h->capacity : FIRST_CAPACITY;
    struct sample_seen *to = calloc((size_t)capacity, sizeof *to);

    if (!to)
        return err_nomem(e);
    for (int i = 0; i < h->capacity; i++)
        if (h->table[i].used)
            to[slot_of(to, capacity, h->table[i].token)] = h->table[i];
    free(h->table);
    h->table = to;
    h->capacity = capacity;
    return 0;
}

int sample_history_add(struct sample_history *h, int32_t token, bool generated, struct err *e)
{
    struct sample_seen *at;

    if (2 * (h->n + 1) > h->capacity && grow(h, e) < 0)
        return -1;
    at = &h->table[slot_of(h->table, h->capacity, token)];
    if (!at->used) {
        *at = (struct sample_seen){.token = token, .used = true};
        h->n++;
    }
    at->generated += generated;
    return 0;
}

void sample_history_release(struct sample_history *h)
{
    free(h->table);
    *h = (struct sample_history){0};
}
