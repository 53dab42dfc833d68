/* bench/limits.h - what this machine can do at this moment: bytes read and multiply-adds, with
 * every worker. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"

enum { LIMIT_READ_ITEM = 512 << 10, LIMIT_FLOPS_ITEMS = 64, LIMIT_FLOPS_ROUNDS = 20000 };

__attribute__((target("avx2"))) static inline void limit_read_item(void *arg, int item, int worker)
{
    const __m256i *p = (const __m256i *)((const char *)arg + (size_t)item * LIMIT_READ_ITEM);
    size_t quarter = LIMIT_READ_ITEM / 4 / sizeof *p;
    __m256i s = _mm256_setzero_si256();

    (void)worker;
    for (size_t i = 0; i < quarter; i++) {
        __m256i a =
            _mm256_xor_si256(_mm256_loadu_si256(p + i), _mm256_loadu_si256(p + i + quarter));
        __m256i b = _mm256_xor_si256(_mm256_loadu_si256(p + i + 2 * quarter),
                                     _mm256_loadu_si256(p + i + 3 * quarter));

        s = _mm256_add_epi64(s, _mm256_xor_si256(a, b));
    }
    __asm__ volatile("" ::"x"(s));
}

/* Bytes a second over n bytes (cut to whole items) that caches do not hold. */
static inline double limit_read(struct pool *p, const void *bytes, size_t n)
{
    int items = (int)(n / LIMIT_READ_ITEM);
    int64_t t0 = clock_mono_ns();

    pool_run(p, limit_read_item, (void *)(uintptr_t)bytes, items);
    return (double)items * LIMIT_READ_ITEM / (double)(clock_mono_ns() - t0) * 1e9;
}

__attribute__((target("avx512f"))) static inline void limit_fma512_item(void *arg, int item,
                                                                        int worker)
{
    __m512 a[12], x = _mm512_set1_ps(0.5f);

    (void)arg, (void)item, (void)worker;
    for (int i = 0; i < 12; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < LIMIT_FLOPS_ROUNDS; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm512_fmadd_ps(a[i], x, x);
        __asm__ volatile("" : "+v"(x));
    }
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" ::"v"(a[i]));
}

__attribute__((target("avx512f,avx512bf16"))) static inline void
limit_bf16_item(void *arg, int item, int worker)
{
    __m512 a[12];
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f003f00);

    (void)arg, (void)item, (void)worker;
    for (int i = 0; i < 12; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < LIMIT_FLOPS_ROUNDS; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm512_dpbf16_ps(a[i], x, x);
        __asm__ volatile("" : "+v"(x));
    }
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" ::"v"(a[i]));
}

__attribute__((target("avx2,fma"))) static inline void limit_fma256_item(void *arg, int item,
                                                                         int worker)
{
    __m256 a[12], x = _mm256_set1_ps(0.5f);

    (void)arg, (void)item, (void)worker;
    for (int i = 0; i < 12; i++)
        a[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < LIMIT_FLOPS_ROUNDS; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm256_fmadd_ps(a[i], x, x);
        __asm__ volatile("" : "+x"(x));
    }
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" ::"x"(a[i]));
}

/* Floating-point operations a second: item and operations per item of the widest form asked for. */
static inline double limit_flops(struct pool *p, pool_fn *item, double per_instruction)
{
    int64_t t0 = clock_mono_ns();

    pool_run(p, item, NULL, LIMIT_FLOPS_ITEMS);
    return 12.0 * per_instruction * LIMIT_FLOPS_ROUNDS * LIMIT_FLOPS_ITEMS /
           (double)(clock_mono_ns() - t0) * 1e9;
}
/* Multiply-adds a second, twice, that the instructions of this table of kernels can do at most. */
static inline double flops_limit(const char *kernels, struct pool *pool)
{
    if (strcmp(kernels, "bf16") == 0)
        return limit_flops(pool, limit_bf16_item, 64);
    if (strcmp(kernels, "avx512") == 0)
        return limit_flops(pool, limit_fma512_item, 32);
    return limit_flops(pool, limit_fma256_item, 16);
}
#endif
