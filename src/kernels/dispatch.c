#include <cpuid.h>
#include <string.h>

#include "kernels/variants.h"

/* Two features that clang 14 has no name for: bit 29 of ECX of leaf 1, bit 5 of EAX of leaf 7.1. */
static bool cpu_has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

static bool cpu_has_avx512bf16(void)
{
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

/* __builtin_cpu_supports also asks whether the system saves the wide registers. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_bf16(void)
{
    return has_avx512() && cpu_has_avx512bf16();
}

static bool always(void)
{
    return true;
}

/* Best first; kernels_pick takes the first one whose instructions are there. */
static const struct {
    const struct kernels *table;
    bool (*supported)(void);
} variants[] = {
    {&kernels_bf16, has_bf16}, {&kernels_avx512, has_avx512}, {&kernels_avx2, has_avx2},
    {&kernels_ref, always},    {&kernels_bf16_ref, always},
};

enum { N_VARIANTS = sizeof variants / sizeof *variants };

const struct kernels *kernels_pick(bool fast)
{
    for (int i = 0; i < N_VARIANTS; i++) {
        const struct kernels *t = variants[i].table;

        if ((fast || strcmp(t->numerics, "exact-1") == 0) && variants[i].supported())
            return t;
    }
    return &kernels_ref;
}

const struct kernels *kernels_by_name(const char *name)
{
    for (int i = 0; i < N_VARIANTS; i++)
        if (strcmp(variants[i].table->name, name) == 0 && variants[i].supported())
            return variants[i].table;
    return NULL;
}
