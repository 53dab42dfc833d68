/* kernels/backward_variants.h - the tables behind backward_dispatch.c. */
#ifndef KERNELS_BACKWARD_VARIANTS_H
#define KERNELS_BACKWARD_VARIANTS_H

#include "kernels/backward.h"

enum { CONV_TAPS_MAX = 16 }; /* a model has no more: model/config.h */

extern const struct kernels_back kernels_back_ref;
extern const struct kernels_back kernels_back_avx2;
extern const struct kernels_back kernels_back_avx512;
#endif
