/* bench_limits - what this machine can do now, with all cores: "read_gbs", "fma_gflops" (f32) and
 * "bf16_gflops" (the dot instruction; without it the same as f32), each the median of SAMPLES short
 * samples. For the rows of bench/run that are judged against the machine. */
#include "limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "series.h"

enum { BYTES = 512 << 20, SAMPLES = 9 };

int main(void)
{
    struct err e = {0};
    struct pool *p = pool_new(0, &e);
    void *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct series read = {.n = SAMPLES}, fma = {.n = SAMPLES}, dot = {.n = SAMPLES};
    const char *widest = __builtin_cpu_supports("avx512f") ? "avx512" : "avx2";
    const char *fastest = __builtin_cpu_supports("avx512bf16") ? "bf16" : widest;

    if (!p || bytes == MAP_FAILED) {
        fprintf(stderr, "bench_limits: no threads or no memory\n");
        return 1;
    }
    madvise(bytes, BYTES, MADV_HUGEPAGE);
    memset(bytes, 1, BYTES);
    pool_adopt(p);
    for (int i = 0; i < SAMPLES; i++) {
        read.v[i] = limit_read(p, bytes, BYTES) / 1e9;
        fma.v[i] = limit_flops(p, widest) / 1e9;
        dot.v[i] = limit_flops(p, fastest) / 1e9;
    }
    printf("read_gbs %.2f\nfma_gflops %.1f\nbf16_gflops %.1f\n", median(&read), median(&fma),
           median(&dot));
    pool_free(p);
    munmap(bytes, BYTES);
    return 0;
}
