/* bench_model - speed of the forward pass beside the limits of this machine, in the same run.
 *
 *   bench_model --dir DIR [--fast | --kernels NAME] [--threads N] [--samples N] [--context N]
 *               [--batch B | --prefill]
 *
 * decode_<B>: B sequences, one token each, greedy, logits included; tokens a second, weight bytes
 * read a second, and their share of the read bandwidth measured just before each sample.
 * prefill_512: one prompt, last logits; tokens a second and the share of the peak of multiply-adds.
 * --dir: a model's directory; CAIRN_SMOLLM2 where it is left out. Medians. The last lines are
 * `name value` pairs. */
#include "limits.h"
#include "model_bench.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/logits.h"

enum { MAX_BATCH = 64, PREFILL = 512, STEPS_PER_SAMPLE = 4 };

struct bench {
    struct model_config config;
    struct weights *weights;
    struct model *model;
    struct pool *pool;
    const struct kernels *kern;
    struct forward *forward;
    struct logits *logits;
    struct kv_cache *kv;
    float *hidden;
    int samples, context;
};

/* ---- set up ---- */

static void start(struct bench *b, int threads)
{
    struct err e = {0};

    b->pool = pool_new(threads, &e);
    if (!b->pool)
        die(&e);
    pool_adopt(b->pool);
    b->forward = forward_new(&b->config, b->kern, b->pool, &e);
    if (!b->forward)
        die(&e);
    b->logits = logits_new(b->forward, &e);
    b->kv = kv_cache_new(&b->config, KV_ALL_LAYERS, (size_t)2 << 30, &e);
    b->hidden = malloc((size_t)FORWARD_ROWS_MAX * (size_t)b->config.hidden * sizeof *b->hidden);
    if (!b->logits || !b->kv || !b->hidden)
        die(&e);
}

static void stop(struct bench *b)
{
    free(b->hidden);
    kv_cache_free(b->kv);
    logits_free(b->logits);
    forward_free(b->forward);
    pool_free(b->pool);
    model_free(b->model);
    weights_free(b->weights);
}

static void run(struct bench *b, const struct forward_span *spans, int n_spans, const int *select,
                int n_select, struct logits_row *rows)
{
    struct forward_batch batch = {spans, n_spans, select, n_select};
    struct err e = {0};

    if (forward_run(b->forward, b->model, &batch, b->hidden, &e) < 0)
        die(&e);
    if (n_select > 0)
        logits_run(b->logits, b->model, b->hidden, n_select, rows);
}

/* ---- decode ---- */

struct decode {
    struct forward_span span[MAX_BATCH];
    struct logits_row row[MAX_BATCH];
    int32_t token[MAX_BATCH];
    int select[MAX_BATCH];
    int n;
};

static void decode_begin(struct bench *b, struct decode *d, int n)
{
    int32_t prompt[FORWARD_ROWS_MAX];
    struct err e = {0};

    d->n = n;
    for (int i = 0; i < FORWARD_ROWS_MAX; i++)
        prompt[i] = (int32_t)((1000 + 7 * i) % b->config.vocab);
    for (int i = 0; i < n; i++) {
        d->token[i] = prompt[i];
        d->select[i] = i;
        d->span[i] = (struct forward_span){kv_seq_new(b->kv, &e), &d->token[i], 1, NULL};
        for (int at = 0; at < b->context;) {
            int len = b->context - at < FORWARD_ROWS_MAX ? b->context - at : FORWARD_ROWS_MAX;
            struct forward_span fill = {d->span[i].seq, prompt, len, NULL};

            run(b, &fill, 1, NULL, 0, NULL);
            at += len;
        }
    }
}

static void decode_steps(struct bench *b, struct decode *d, int steps)
{
    for (int s = 0; s < steps; s++) {
        for (int i = 0; i < d->n; i++)
            d->row[i] = (struct logits_row){.target = -1};
        run(b, d->span, d->n, d->select, d->n, d->row);
        for (int i = 0; i < d->n; i++)
            d->token[i] = d->row[i].argmax;
    }
}

static void bench_decode(struct bench *b, int n)
{
    struct decode d = {0};
    struct series step = {.n = 0}, share = {.n = 0}, read = {.n = 0};
    double bytes = (double)b->model->step_bytes;

    decode_begin(b, &d, n);
    decode_steps(b, &d, 2);
    for (int i = 0; i < b->samples; i++) {
        double limit = limit_read(b->pool, b->weights->base, b->weights->bytes);
        int64_t t0 = clock_mono_ns();

        decode_steps(b, &d, STEPS_PER_SAMPLE);
        double ns = (double)(clock_mono_ns() - t0) / STEPS_PER_SAMPLE;

        step.v[step.n++] = ns;
        read.v[read.n++] = limit;
        share.v[share.n++] = bytes / ns * 1e9 / limit;
    }
    double ns = median(&step);
    printf("decode_%d_tokens_per_s %.1f\n", n, n / ns * 1e9);
    printf("decode_%d_ms_per_step %.3f\n", n, ns / 1e6);
    printf("decode_%d_gb_per_s %.2f\n", n, bytes / ns);
    printf("decode_%d_read_gb_per_s %.2f\n", n, median(&read) / 1e9);
    printf("decode_%d_share_of_read %.3f\n", n, median(&share));
    for (int i = 0; i < n; i++)
        kv_seq_free(d.span[i].seq);
}

/* ---- prefill ---- */

/* Multiply-adds of the weights and of causal attention, two operations each; the head for one row.
 */
static double prefill_flops(const struct bench *b)
{
    const struct model_config *c = &b->config;
    double head = (double)c->vocab * c->hidden;
    double body = (double)b->model->n_parameters - (c->tied ? head : 2 * head);
    double attention =
        (double)(c->n_layers - c->n_conv_layers) * PREFILL * (PREFILL + 1) * model_q_width(c);

    return 2 * (body * PREFILL + head + attention);
}

static void bench_prefill(struct bench *b)
{
    struct series time = {.n = 0}, share = {.n = 0}, peak = {.n = 0};
    int32_t prompt[PREFILL];
    int last = PREFILL - 1;

    for (int i = 0; i < PREFILL; i++)
        prompt[i] = (int32_t)((1000 + 7 * i) % b->config.vocab);
    for (int i = -1; i < b->samples / 4 + 1; i++) {
        struct err e = {0};
        struct kv_seq *seq = kv_seq_new(b->kv, &e);
        struct forward_span span = {seq, prompt, PREFILL, NULL};
        struct logits_row row = {.target = -1};
        double limit = limit_flops(b->pool, b->kern->name);
        int64_t t0 = clock_mono_ns();

        run(b, &span, 1, &last, 1, &row);
        double ns = (double)(clock_mono_ns() - t0);

        kv_seq_free(seq);
        if (i < 0)
            continue; /* touches memory */
        time.v[time.n++] = ns;
        peak.v[peak.n++] = limit;
        share.v[share.n++] = prefill_flops(b) / ns * 1e9 / limit;
    }
    double ns = median(&time);
    printf("prefill_512_tokens_per_s %.1f\n", PREFILL / ns * 1e9);
    printf("prefill_512_ms %.2f\n", ns / 1e6);
    printf("prefill_512_gflop_per_s %.1f\n", prefill_flops(b) / ns);
    printf("prefill_512_peak_gflop_per_s %.1f\n", median(&peak) / 1e9);
    printf("prefill_512_share_of_peak %.3f\n", median(&share));
}

int main(int argc, char **argv)
{
    struct bench b = {.samples = 21, .context = 64};
    const char *dir = getenv("CAIRN_SMOLLM2");
    const char *name = NULL;
    bool fast = false;
    int threads = 0, batch = 0; /* 0: all, -1: prefill alone */

    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "--fast") == 0)
            fast = true;
        else if (strcmp(argv[i], "--dir") == 0)
            dir = next, i++;
        else if (strcmp(argv[i], "--kernels") == 0)
            name = next, i++;
        else if (strcmp(argv[i], "--threads") == 0)
            threads = atoi(next), i++;
        else if (strcmp(argv[i], "--samples") == 0)
            b.samples = atoi(next), i++;
        else if (strcmp(argv[i], "--prefill") == 0)
            batch = -1;
        else if (strcmp(argv[i], "--batch") == 0)
            batch = atoi(next), i++;
        else if (strcmp(argv[i], "--context") == 0)
            b.context = atoi(next), i++;
        else
            return fprintf(stderr, "bench_model: unknown option %s\n", argv[i]), 2;
    }
    if (!dir)
        return fprintf(stderr, "bench_model: no model; give --dir, or set CAIRN_SMOLLM2\n"), 2;
    b.kern = name ? kernels_by_name(name) : kernels_pick(fast);
    if (!b.kern || b.samples < 1 || b.samples > MAX_SAMPLES || b.context < 0 || batch > MAX_BATCH)
        return fprintf(stderr, "bench_model: no such kernels, or a number out of range\n"), 2;
    load_model(dir, &b.config, &b.weights, &b.model);
    start(&b, threads);
    printf("# %s, %s, %d threads, context %d\n", b.kern->name, b.kern->numerics,
           pool_workers(b.pool), b.context);
    for (int n = 1; n <= 16; n *= n == 1 ? 4 : 2)
        if (batch == 0)
            bench_decode(&b, n);
    if (batch > 0)
        bench_decode(&b, batch);
    if (batch <= 0)
        bench_prefill(&b);
    stop(&b);
    return 0;
}
