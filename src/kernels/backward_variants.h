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
