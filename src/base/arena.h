/* base/arena.h - memory that is freed all at once.
 *
 * A zeroed struct is an empty arena. Pieces are aligned for any type, keep their address, and live
 * until arena_release. Not safe to share between threads. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *head; /* the chunk that is being filled; older ones behind it */
    size_t used;              /* bytes of all pieces, padding included */
    bool failed;              /* a piece could not be had; until arena_release */
};

void *arena_alloc(struct arena *a, size_t n);                 /* not zeroed; NULL: out of memory */
char *arena_strdup(struct arena *a, const char *s, size_t n); /* n bytes and a NUL */
void arena_reset(struct arena *a); /* empty again; keeps one chunk for what comes next */
void arena_release(struct arena *a);
#endif
