#include <string.h>

#include "kernels/backward_variants.h"

/* Whoever holds a forward table runs on a CPU that has its instructions. */
const struct kernels_back *kernels_back_of(const struct kernels *k)
{
    if (strcmp(k->name, "avx512") == 0 || strcmp(k->name, "bf16") == 0)
        return &kernels_back_avx512;
    return strcmp(k->name, "avx2") == 0 ? &kernels_back_avx2 : &kernels_back_ref;
}
