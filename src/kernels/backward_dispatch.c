#include <string.h>

#include "kernels/backward_variants.h"

/* Whoever holds a forward table runs on a CPU that has its instructions. */
const struct kernels_back *kernels_back_of(const struct kernels *k)
{
    enum { N_TABLES = 4 };
    static const struct kernels_back *const tables[N_TABLES] = {
        &kernels_back_avx512, &kernels_back_avx2, &kernels_back_bf16, &kernels_back_bf16_ref};

    for (int i = 0; i < N_TABLES; i++)
        if (strcmp(tables[i]->name, k->name) == 0)
            return tables[i];
    return &kernels_back_ref;
}
