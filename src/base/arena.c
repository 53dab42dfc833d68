#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/nomem.h"

enum { CHUNK_MIN = 4096, CHUNK_MAX = 1 << 18 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    alignas(max_align_t) unsigned char bytes[];
};

/* Chunks double up to CHUNK_MAX; a larger piece gets a chunk of its own size. */
static struct arena_chunk *add_chunk(struct arena *a, size_t n)
{
    size_t size = a->head ? a->head->size * 2 : CHUNK_MIN;
    struct arena_chunk *c;

    if (size > CHUNK_MAX)
        size = CHUNK_MAX;
    if (size < n)
        size = n;
    c = nomem_malloc(sizeof *c + size);
    if (!c)
        return NULL;
    *c = (struct arena_chunk){.next = a->head, .size = size};
    a->head = c;
    return c;
}

static void *fail(struct arena *a)
{
    a->failed = true;
    nomem_note();
    return NULL;
}

void *arena_alloc(struct arena *a, size_t n)
{
    struct arena_chunk *c = a->head;
    void *piece;

    if (n > SIZE_MAX / 2)
        return fail(a);
    n = (n + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
    if (!c || c->size - c->used < n)
        c = add_chunk(a, n);
    if (!c)
        return fail(a);
    piece = c->bytes + c->used;
    c->used += n;
    a->used += n;
    return piece;
}

char *arena_strdup(struct arena *a, const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;

    if (!copy)
        return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

static void free_chunks(struct arena_chunk *c)
{
    while (c) {
        struct arena_chunk *next = c->next;

        free(c);
        c = next;
    }
}

void arena_reset(struct arena *a)
{
    a->used = 0;
    if (!a->head)
        return;
    free_chunks(a->head->next);
    a->head->next = NULL;
    a->head->used = 0;
}

void arena_release(struct arena *a)
{
    free_chunks(a->head);
    *a = (struct arena){0};
}
