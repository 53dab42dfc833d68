/* What the kernel tests share: the variants of this CPU, repeatable inputs, comparison by bits. */
#ifndef KERN_TEST_H
#define KERN_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

static const char *const variant_names[] = {"avx2", "avx512", "bf16", "bf16-ref", "ref"};

/* Calls body for every table that this CPU can run. */
#define FOR_EACH_VARIANT(t)                                                         \
    for (size_t vi_ = 0; vi_ < sizeof variant_names / sizeof *variant_names; vi_++) \
        for (const struct kernels *t = kernels_by_name(variant_names[vi_]); t; t = NULL)

/* The scalar definition of a table's numerics. */
static inline const struct kernels *reference_of(const struct kernels *t)
{
    return kernels_by_name(strcmp(t->numerics, "bf16-1") == 0 ? "bf16-ref" : "ref");
}

static inline uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* About normal in [-2, 2], with a few exact zeros. */
static inline float random_float(uint64_t *state)
{
    uint32_t u = next_random(state);

    return u % 97 == 0 ? 0.0f : (float)(u % 65536) / 16384.0f - 2.0f;
}

static inline void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(&seed);
}

static inline void *must_alloc(size_t bytes)
{
    void *p = NULL;

    if (posix_memalign(&p, 64, bytes ? bytes : 1) != 0)
        abort();
    return p;
}

static inline float *random_floats(size_t n, uint64_t seed)
{
    float *x = must_alloc(n * sizeof *x);

    fill(x, n, seed);
    return x;
}

/* Any bits that are finite numbers of the type: exponents near 1, so that sums stay in range. */
static inline void *random_weights(enum kern_dtype dtype, size_t n, uint64_t seed)
{
    uint16_t *h;

    if (dtype == KERN_F32)
        return random_floats(n, seed);
    h = must_alloc(n * sizeof *h);
    for (size_t i = 0; i < n; i++) {
        uint32_t u = next_random(&seed);

        h[i] = (uint16_t)(dtype == KERN_F16 ? (u & 0x8fff) | 0x2800 : (u & 0x81ff) | 0x3e00);
    }
    return h;
}

/* A NaN equals any NaN: which payload survives an addition is not promised. */
static inline bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static inline void assert_same(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!same_bits(got[i], want[i]))
            fail_msg("%s: element %zu is %a (%g), not %a (%g)", what, i, (double)got[i],
                     (double)got[i], (double)want[i], (double)want[i]);
}
#endif
