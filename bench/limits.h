/* bench/limits.h - what this machine can do at this moment: bytes read and multiply-adds, with
 * every worker of a pool. The _work functions do the work and say how much it was, for a caller
 * with a clock of its own; the others give it a second. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"

enum {
    LIMIT_READ_ITEM = 512 << 10,
    LIMIT_FLOPS_ITEMS = 32, /* of each worker: all are busy from the first to the last */
    LIMIT_FLOPS_ROUNDS = 20000,
    LIMIT_CHAINS = 12, /* sums in flight: more than latency times throughput of the multiply-adds */
};

/* ---- bytes read ---- */

/* Sum of four streams. */
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

/* Reads n bytes (cut to whole items), which caches should not hold. Bytes. */
static inline double limit_read_work(struct pool *p, const void *bytes, size_t n)
{
    int items = (int)(n / LIMIT_READ_ITEM);

    pool_run(p, limit_read_item, (void *)(uintptr_t)bytes, items);
    return (double)items * LIMIT_READ_ITEM;
}

/* Bytes a second. */
static inline double limit_read(struct pool *p, const void *bytes, size_t n)
{
    int64_t t0 = clock_mono_ns();
    double read = limit_read_work(p, bytes, n);

    return read / (double)(clock_mono_ns() - t0) * 1e9;
}

/* ---- multiply-adds ---- */

/* LIMIT_CHAINS sums of type `acc` that a = STEP goes on with, LIMIT_FLOPS_ROUNDS times. */
#define LIMIT_LOOP(acc, zero, step)                                                  \
    acc a[LIMIT_CHAINS];                                                             \
    (void)arg, (void)item, (void)worker;                                             \
    for (int i = 0; i < LIMIT_CHAINS; i++)                                           \
        a[i] = zero((float)i);                                                       \
    for (int r = 0; r < LIMIT_FLOPS_ROUNDS; r++) {                                   \
        _Pragma("GCC unroll 12") for (int i = 0; i < LIMIT_CHAINS; i++) a[i] = step; \
        __asm__ volatile("" : "+v"(x));                                              \
    }                                                                                \
    for (int i = 0; i < LIMIT_CHAINS; i++)                                           \
    __asm__ volatile("" ::"v"(a[i]))

__attribute__((target("avx512f"))) static inline void limit_fma512_item(void *arg, int item,
                                                                        int worker)
{
    __m512 x = _mm512_set1_ps(0.5f);

    LIMIT_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps(a[i], x, x));
}

__attribute__((target("avx512f,avx512bf16"))) static inline void
limit_bf16_item(void *arg, int item, int worker)
{
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f003f00);

    LIMIT_LOOP(__m512, _mm512_set1_ps, _mm512_dpbf16_ps(a[i], x, x));
}

__attribute__((target("avx2,fma"))) static inline void limit_fma256_item(void *arg, int item,
                                                                         int worker)
{
    __m256 x = _mm256_set1_ps(0.5f);

    LIMIT_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps(a[i], x, x));
}
#undef LIMIT_LOOP

/* Multiply-adds with the widest instructions of this table of kernels. Operations: two each. */
static inline double limit_flops_work(struct pool *p, const char *kernels)
{
    pool_fn *item = limit_fma256_item;
    int each = 16; /* operations of one instruction */
    int items = pool_workers(p) * LIMIT_FLOPS_ITEMS;

    if (strcmp(kernels, "bf16") == 0)
        item = limit_bf16_item, each = 64;
    else if (strcmp(kernels, "avx512") == 0)
        item = limit_fma512_item, each = 32;
    pool_run(p, item, NULL, items);
    return (double)LIMIT_CHAINS * each * LIMIT_FLOPS_ROUNDS * items;
}

/* Operations a second. */
static inline double limit_flops(struct pool *p, const char *kernels)
{
    int64_t t0 = clock_mono_ns();
    double done = limit_flops_work(p, kernels);

    return done / (double)(clock_mono_ns() - t0) * 1e9;
}
#endif
