/* engine/pooling.h - one vector of a whole text: what a request for embeddings keeps of its rows
 * (inside the room).
 *
 * The rows are outputs of the final norm. Sums are made in double, position by position, so the
 * vector has the same bits however the prompt is cut into steps. Engine thread only. */
#ifndef ENGINE_POOLING_H
#define ENGINE_POOLING_H

#include <stdbool.h>

#include "engine/engine.h"

struct err;
struct sequence;

static inline bool pooling_wanted(const struct gen_spec *spec)
{
    return spec->pooling != GEN_POOL_NONE;
}
/* Rows before the last one count: the prompt is computed from its beginning. */
static inline bool pooling_needs_beginning(const struct gen_spec *spec)
{
    return spec->pooling == GEN_POOL_MEAN || spec->pooling == GEN_POOL_FIRST;
}

/* Whether the row at this position of the sequence's prompt counts. */
bool pooling_takes(const struct sequence *s, int position);
/* Counts the next n rows that pooling_takes has chosen, [n, width]. -1: ERR_NOMEM. */
int pooling_add(struct sequence *s, const float *rows, int n, int width, struct err *e);
/* Tells `to` (s, or one that follows it) the vector of s. -1: ERR_NOMEM. */
int pooling_tell(const struct sequence *s, struct sequence *to, int width, struct err *e);
#endif
