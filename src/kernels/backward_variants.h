/* kernels/backward_variants.h - the tables behind backward_dispatch.c. */
#ifndef KERNELS_BACKWARD_VARIANTS_H
#define KERNELS_BACKWARD_VARIANTS_H

#include "kernels/backward.h"

enum { CONV_TAPS_MAX = 16 }; /* a model has no more: model/config.h */

extern const struct kernels_back kernels_back_ref;
extern const struct kernels_back kernels_back_bf16_ref;
extern const struct kernels_back kernels_back_avx2;
extern const struct kernels_back kernels_back_avx512;
extern const struct kernels_back kernels_back_bf16;

void chain_bf16(const struct chain *p, void *scratch);

/* The next tile's part of C, at most CHAIN_TILE_ROWS of `rows` rows: gradients of weights come from
 * memory, and the CPU's own prefetcher does not see rows that lie far apart. */
static inline void chain_fetch_c(const float *c, ptrdiff_t ldc, int rows, int cols)
{
    enum { CHAIN_TILE_ROWS = 6, LINE_FLOATS = 16 };

    for (int r = 0; r < rows && r < CHAIN_TILE_ROWS; r++, c += ldc)
        for (int i = 0; i < cols; i += LINE_FLOATS)
            __builtin_prefetch(c + i, 1, 3);
}

/* Keys that row i sees. */
static inline int attention_keys(const struct attention_tile *t, int i)
{
    return t->keys + i < KV_BLOCK ? t->keys + i : KV_BLOCK;
}

/* Two steps, or one and nothing. */
struct chain_pair {
    int t;
    bool two;
};

/* The pairs from *t on, at most `most` of them. *segment: index into p->ends. */
static inline int chain_next_pairs(const struct chain *p, int *t, int *segment,
                                   struct chain_pair *pairs, int most)
{
    int n = 0;

    while (n < most && *t < p->steps) {
        int end = p->ends ? p->ends[*segment] : p->steps;

        if (*t >= end) {
            (*segment)++;
            continue;
        }
        pairs[n] = (struct chain_pair){*t, *t + 1 < end};
        *t += pairs[n++].two ? 2 : 1;
    }
    return n;
}
#endif
