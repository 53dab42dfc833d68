/* bench_kernels - speed of the kernels beside the limits of this machine, in the same run.
 *
 *   bench_kernels [--avx2 | --variant NAME] [--threads N] [--samples N] [--quick]
 *
 * Limits: fused multiply-adds a second in 512-bit (or 256-bit) registers, BF16 dot products a
 * second, bytes read a second. Each sample of a kernel is taken right after one of its limit; a
 * line shows the median and the best sample of both and the ratio of the medians. Weights lie in an
 * arena larger than the caches and every sample reads another part of it, so decode is measured
 * from memory. The last lines are `name value` pairs for programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "limits.h"
#include "series.h"

enum {
    ARENA = 256 << 20, /* bytes of weights */
    MAX_ROWS = 512,
    MAX_K = 8192,
    MAX_PAIRS = 64,
};

struct bench {
    struct pool *pool;
    const struct kernels *kern;
    unsigned char *arena;
    size_t at; /* where the next sample's weights begin */
    float *x, *y;
    void *px;
    char *scratch; /* LINEAR_SCRATCH for each worker */
    int samples;
    bool wide; /* attention is in 512-bit registers */
    int n_pairs;
    struct {
        char name[64];
        double value;
    } pairs[MAX_PAIRS];
};

static int64_t now_ns(const struct bench *b)
{
    struct timespec t;

    if (pool_workers(b->pool) > 1)
        return clock_mono_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- limits ---- */

static double measure_flops(struct bench *b, const char *kernels)
{
    int64_t t = now_ns(b);
    double done = limit_flops_work(b->pool, kernels);

    return done / (double)(now_ns(b) - t);
}

static double measure_read(struct bench *b)
{
    int64_t t = now_ns(b);
    double read = limit_read_work(b->pool, b->arena, ARENA / 4);

    return read / (double)(now_ns(b) - t);
}

/* ---- linear ---- */

struct call {
    struct bench *b;
    struct kern_matrix w;
    const void *px;
    int m, step;
};

static void linear_item(void *arg, int item, int worker)
{
    const struct call *c = arg;
    int n0 = item * c->step;
    int n1 = n0 + c->step < c->w.n ? n0 + c->step : c->w.n;

    c->b->kern->linear(c->b->y, c->w.n, c->b->x, c->w.k, c->px, c->m, &c->w, n0, n1, NULL, false,
                       c->b->scratch + (size_t)worker * LINEAR_SCRATCH, NULL);
}

/* One pass over enough different matrices to take about a millisecond; returns nanoseconds per
 * matrix. */
static double run_linear(struct bench *b, int m, int n, int k, int repeat)
{
    struct call c = {.b = b, .w = {.dtype = KERN_BF16, .n = n, .k = k}, .m = m};
    size_t bytes = (size_t)n * (size_t)k * 2;
    int64_t t;

    if (b->kern->linear_x_bytes(m, k) > 0) {
        b->kern->linear_x_prepare(b->px, b->x, k, 0, m, k);
        c.px = b->px;
    }
    c.step = (n / (pool_workers(b->pool) * 4) + 15) / 16 * 16;
    c.step = c.step > 512 ? 512 : c.step;
    t = now_ns(b);
    for (int i = 0; i < repeat; i++) {
        if (b->at + bytes > ARENA)
            b->at = 0;
        c.w.w = b->arena + b->at;
        b->at += (bytes + 4095) / 4096 * 4096;
        pool_run(b->pool, linear_item, &c, (n + c.step - 1) / c.step);
    }
    return (double)(now_ns(b) - t) / repeat;
}

/* ---- attention ---- */

struct attention_call {
    struct bench *b;
    int rows, context, heads, group, head_dim;
    const float *pages[MAX_ROWS / KV_BLOCK * 8];
};

static void attention_item(void *arg, int item, int worker)
{
    const struct attention_call *c = arg;
    int ld = c->heads * c->group * c->head_dim;
    int rows = c->rows < 32 ? c->rows : 32;
    int head = item % c->heads;
    int r0 = item / c->heads * rows;
    ptrdiff_t at = (ptrdiff_t)r0 * ld + (ptrdiff_t)head * c->group * c->head_dim;

    (void)worker;
    c->b->kern->attention(c->b->y + at, ld, c->b->x + at, ld, rows, c->context - c->rows + r0,
                          c->group, c->head_dim, c->pages, c->pages, 0.125f, NULL);
}

static double run_attention(struct bench *b, int rows, int context)
{
    struct attention_call c = {
        .b = b, .rows = rows, .context = context, .heads = 3, .group = 3, .head_dim = 64};
    int items = c.heads * (rows < 32 ? 1 : rows / 32);
    int64_t t;

    for (int i = 0; i * KV_BLOCK < context; i++)
        c.pages[i] = b->x + (size_t)i * KV_BLOCK * 64;
    t = now_ns(b);
    pool_run(b->pool, attention_item, &c, items);
    return (double)(now_ns(b) - t);
}

/* ---- series and lines ---- */

static double best(struct series *s)
{
    median(s);
    return s->v[s->n - 1];
}

static void report(struct bench *b, const char *name, struct series *got, struct series *limit,
                   const char *unit)
{
    printf("%-28s %8.1f (best %8.1f) %-7s of %8.1f (best %8.1f)  %5.1f %%  best/best %5.1f %%\n",
           name, median(got), best(got), unit, median(limit), best(limit),
           100 * median(got) / median(limit), 100 * best(got) / best(limit));
    fflush(stdout);
    if (b->n_pairs + 1 < MAX_PAIRS) {
        snprintf(b->pairs[b->n_pairs].name, sizeof b->pairs[0].name, "%s", name);
        b->pairs[b->n_pairs++].value = median(got) / median(limit);
    }
}

static void bench_linear_flops(struct bench *b, int m, int n, int k)
{
    struct series got = {.n = b->samples};
    struct series limit = {.n = b->samples};
    double flop = 2.0 * m * n * k;
    int repeat = (int)(2e8 / flop) + 1;
    char name[64];

    for (int i = 0; i < b->samples; i++) {
        limit.v[i] = measure_flops(b, b->kern->name);
        got.v[i] = flop / run_linear(b, m, n, k, repeat);
    }
    snprintf(name, sizeof name, "%s.linear.%dx%dx%d", b->kern->name, m, n, k);
    report(b, name, &got, &limit, "GFLOP/s");
}

static void bench_linear_bytes(struct bench *b, int m, int n, int k)
{
    struct series got = {.n = b->samples};
    struct series limit = {.n = b->samples};
    double bytes = 2.0 * n * k;
    int repeat = (int)(5e7 / bytes) + 1;
    char name[64];

    for (int i = 0; i < b->samples; i++) {
        limit.v[i] = measure_read(b);
        got.v[i] = bytes / run_linear(b, m, n, k, repeat);
    }
    snprintf(name, sizeof name, "%s.read.%dx%dx%d", b->kern->name, m, n, k);
    report(b, name, &got, &limit, "GB/s");
}

static void bench_attention(struct bench *b, int rows, int context)
{
    struct series got = {.n = b->samples};
    struct series limit = {.n = b->samples};
    double keys = (double)rows * context - 0.5 * rows * (rows - 1);
    char name[64];

    for (int i = 0; i < b->samples; i++) {
        limit.v[i] = measure_flops(b, b->wide ? "avx512" : "avx2");
        got.v[i] = keys * 9 * 64 * 4 / run_attention(b, rows, context);
    }
    snprintf(name, sizeof name, "%s.attention.%dof%d", b->kern->name, rows, context);
    report(b, name, &got, &limit, "GFLOP/s");
}

/* ---- the run ---- */

static void *must_map(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        perror("bench_kernels: memory");
        exit(1);
    }
    madvise(p, n, MADV_HUGEPAGE);
    return p;
}

static void fill_memory(struct bench *b)
{
    uint32_t u = 1;
    uint16_t *w = (uint16_t *)(void *)b->arena;

    for (size_t i = 0; i < ARENA / 2; i++) {
        u = u * 1664525 + 1013904223;
        w[i] = (uint16_t)((u >> 16 & 0x807f) | 0x3c00); /* about 1/128 */
    }
    for (size_t i = 0; i < (size_t)MAX_ROWS * MAX_K; i++) {
        u = u * 1664525 + 1013904223;
        b->x[i] = (float)(int32_t)u * 0x1p-31f;
    }
}

static void run_all(struct bench *b, bool quick)
{
    static const int prefill[][3] = {{512, 1536, 576},  {512, 576, 1536}, {512, 960, 576},
                                     {128, 49152, 576}, {32, 1536, 576},  {64, 3072, 576},
                                     {256, 2048, 2048}, {128, 2048, 8192}};
    static const int decode[][2] = {{49152, 576}, {1536, 576}, {576, 1536}, {8192, 2048}};

    for (int i = 0; i < (quick ? 2 : 8); i++)
        bench_linear_flops(b, prefill[i][0], prefill[i][1], prefill[i][2]);
    for (int i = 0; i < (quick ? 1 : 4); i++)
        for (int m = 1; m <= 16; m *= 2)
            bench_linear_bytes(b, m, decode[i][0], decode[i][1]);
    bench_attention(b, 512, 512);
    bench_attention(b, 32, 512);
    bench_attention(b, 1, 512);
}

static int usage(void)
{
    fprintf(
        stderr,
        "usage: bench_kernels [--avx2 | --variant NAME] [--threads N] [--samples N] [--quick]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = {.samples = 31, .kern = kernels_pick(false)};
    struct err e = {0};
    int threads = 0;
    bool quick = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--avx2") == 0)
            b.kern = kernels_by_name("avx2");
        else if (strcmp(argv[i], "--variant") == 0 && i + 1 < argc)
            b.kern = kernels_by_name(argv[++i]);
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--samples") == 0 && i + 1 < argc)
            b.samples = atoi(argv[++i]);
        else if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else
            return usage();
    }
    if (!b.kern || b.samples < 1 || b.samples > MAX_SAMPLES)
        return usage();
    b.pool = pool_new(threads, &e);
    if (!b.pool) {
        fprintf(stderr, "bench_kernels: %s\n", e.msg);
        return 1;
    }
    pool_adopt(b.pool);
    b.wide = strcmp(b.kern->name, "avx512") == 0 || strcmp(b.kern->name, "bf16") == 0;
    b.arena = must_map(ARENA);
    b.x = must_map((size_t)MAX_ROWS * MAX_K * sizeof *b.x);
    b.px = must_map((size_t)MAX_ROWS * MAX_K * sizeof *b.x);
    b.y = must_map((size_t)MAX_ROWS * 49152 * sizeof *b.y);
    b.scratch = must_map((size_t)pool_workers(b.pool) * LINEAR_SCRATCH);
    fill_memory(&b);
    printf("variant %s, %d workers, %d samples\n", b.kern->name, pool_workers(b.pool), b.samples);
    run_all(&b, quick);
    for (int i = 0; i < b.n_pairs; i++)
        printf("%s %.4f\n", b.pairs[i].name, b.pairs[i].value);
    pool_free(b.pool);
    return 0;
}
