#include <string.h>

#include "kernels/backward_variants.h"

/* Whoever holds a forward table runs on a CPU that has its instructions. */
const struct kernels_back *kernels_back_of(const struct kernels *k)
{
    static const struct kernels_back *const tables[] = {&kernels_back_avx512, &kernels_back_avx2,
                                                        &kernels_back_bf16, &kernels_back_bf16_ref};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strcmp(tables[i]->name, k->name) == 0)
            return tables[i];
    return &kernels_back_ref;
}
