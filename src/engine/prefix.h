/* engine/prefix.h - beginnings that were computed lately, so that an equal one is not computed
 * again (inside the room).
 *
 * What a sequence leaves behind when it ends is kept under (image epoch, tokens): the next turn of
 * a chat starts where the last one ended. Entries hold whole KV blocks without copying them; models
 * with convolution layers keep a state that exists at the end only, so there an entry is used as a
 * whole or not at all. KV rows have the same bits whoever computed them, so a hit changes nothing
 * but time.
 *
 * An entry never outlives what it was computed from: all are dropped before weights are written in
 * place, when the gate closes and when the resident changes. They yield to running requests: who
 * needs blocks evicts the entry that was used least lately. Engine thread only. */
#ifndef ENGINE_PREFIX_H
#define ENGINE_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_seq;

enum { PREFIX_MAX = 32 };

struct prefix {
    uint64_t epoch;
    uint64_t used; /* clock of the last use */
    int32_t *tokens;
    int n;
    struct kv_seq *kv; /* exactly n positions */
};

struct prefix_cache { /* a zeroed one is empty */
    struct prefix entries[PREFIX_MAX];
    int n;
    uint64_t clock;
    bool whole;         /* entries are used as a whole: the model has convolution layers */
    size_t block_bytes; /* of the KV memory that entries lie in */
};

/* Keeps what `kv` (borrowed) has stored of the tokens [n]; at most max_bytes of entries stay. */
void prefix_keep(struct prefix_cache *p, uint64_t epoch, const int32_t *tokens, int n,
                 const struct kv_seq *kv, size_t max_bytes);
/* A sequence with the longest known beginning of tokens [n], at most n - 1 of them, so that the
 * last one is computed. Owned; NULL: nothing is known. */
struct kv_seq *prefix_find(struct prefix_cache *p, uint64_t epoch, const int32_t *tokens, int n);
/* Lets the entry go that was used least lately. False: there is none. */
bool prefix_evict(struct prefix_cache *p);
void prefix_drop(struct prefix_cache *p);
#endif
