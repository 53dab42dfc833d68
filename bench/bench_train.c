/* bench_train - speed of one forward and backward pass beside the peak of multiply-adds, in the
 * same run.
 *
 *   bench_train --dir DIR [--fast | --kernels NAME] [--threads N] [--samples N] [--batch N]
 *               [--length N] [--budget MB] [--lora RANK] [--slice MS]
 *
 * Work: 2 operations for each multiply-add of weights and causal attention forward, 4 backward (2
 * of the weights with LoRA, whose own products are not counted). --dir: a model's directory;
 * CAIRN_SMOLLM2 where it is left out. Medians. The last lines are `name value` pairs. */
#include "limits.h"
#include "model_bench.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "model/adapter_make.h"
#include "train/grads.h"
#include "train/pass.h"

enum { MAX_SLICES = 1 << 16 };

struct bench {
    struct model_config config;
    struct weights *weights;
    struct model *model;
    struct adapter *adapter;
    struct pool *pool;
    const struct kernels *kern;
    struct pass *pass;
    struct pass_sequence *sequences;
    float *coef;
    struct grads grads;
    float *gradients; /* all of them */
    size_t n_gradients;
    int samples, batch, length, lora;
    size_t budget;
    double slice_ms;
};

/* Times between two looks at the requests, in ms. */
struct slices {
    double v[MAX_SLICES];
    int n;
};

/* ---- set up ---- */

/* First call (memory NULL) counts, the second hands out. */
static float *take(struct bench *b, int rows, int cols)
{
    float *at = b->gradients ? b->gradients + b->n_gradients : NULL;

    b->n_gradients += (size_t)rows * (size_t)cols;
    return rows > 0 ? at : NULL;
}

static float *take_matrix(struct bench *b, const struct kern_matrix *w)
{
    return take(b, w->n, w->k);
}

static void take_layer(struct bench *b, const struct layer *l, struct layer_grads *g)
{
    const struct model_config *c = &b->config;

    g->norm_in = take(b, c->hidden, 1);
    g->norm_ff = take(b, c->hidden, 1);
    g->gate = take_matrix(b, &l->gate);
    g->up = take_matrix(b, &l->up);
    g->down = take_matrix(b, &l->down);
    g->q = take_matrix(b, &l->q);
    g->k = take_matrix(b, &l->k);
    g->v = take_matrix(b, &l->v);
    g->o = take_matrix(b, &l->o);
    g->conv_in = take_matrix(b, &l->conv_in);
    g->conv_out = take_matrix(b, &l->conv_out);
    g->conv_taps = take(b, l->is_conv ? c->hidden : 0, c->conv_taps);
    g->q_norm = take(b, l->q_norm ? c->head_dim : 0, 1);
    g->k_norm = take(b, l->k_norm ? c->head_dim : 0, 1);
}

static void take_adapter(struct bench *b)
{
    for (int i = 0; i < b->adapter->n_layers; i++)
        for (int j = 0; j < PROJECTIONS; j++) {
            const struct lora *l = &b->adapter->loras[i * PROJECTIONS + j];

            b->grads.layers[i].lora[j].a = take_matrix(b, &l->a);
            b->grads.layers[i].lora[j].b = take_matrix(b, &l->b);
        }
}

static void take_gradients(struct bench *b)
{
    b->n_gradients = 0;
    if (b->adapter) {
        take_adapter(b);
        return;
    }
    b->grads.embed = take_matrix(b, &b->model->embed);
    b->grads.head = b->config.tied ? b->grads.embed : take_matrix(b, &b->model->head);
    b->grads.final_norm = take(b, b->config.hidden, 1);
    for (int i = 0; i < b->config.n_layers; i++)
        take_layer(b, &b->model->layers[i], &b->grads.layers[i]);
}

static void make_batch(struct bench *b)
{
    uint32_t x = 1;

    b->sequences = calloc((size_t)b->batch, sizeof *b->sequences);
    b->coef = calloc((size_t)b->batch * (size_t)b->length, sizeof *b->coef);
    for (int i = 0; i < b->batch; i++) {
        int32_t *tokens = calloc((size_t)b->length + 1, sizeof *tokens);

        for (int t = 0; t <= b->length; t++, x = x * 1664525 + 1013904223)
            tokens[t] = (int32_t)((x >> 8) % (uint32_t)b->config.vocab);
        b->sequences[i] = (struct pass_sequence){tokens, tokens + 1, b->length};
        for (int t = 0; t < b->length; t++)
            b->coef[i * b->length + t] = -1.0f / (float)(b->batch * b->length);
    }
}

static void start(struct bench *b, int threads)
{
    struct lora_settings lora = {
        .rank = b->lora, .alpha = 32, .attn = true, .mlp = true, .seed = 1};
    struct err e = {0};

    b->pool = pool_new(threads, &e);
    if (!b->pool)
        die(&e);
    pool_adopt(b->pool);
    if (b->lora && !(b->adapter = adapter_new(&b->config, &lora, &e)))
        die(&e);
    b->pass = pass_new(&b->config, b->kern, b->pool, b->budget, &e);
    if (!b->pass)
        die(&e);
    b->grads.n_layers = b->config.n_layers;
    b->grads.layers = calloc((size_t)b->config.n_layers, sizeof *b->grads.layers);
    take_gradients(b);
    b->gradients = calloc(b->n_gradients, sizeof *b->gradients);
    take_gradients(b);
    make_batch(b);
}

static void stop(struct bench *b)
{
    for (int i = 0; i < b->batch; i++)
        free((void *)b->sequences[i].tokens);
    free(b->sequences);
    free(b->coef);
    free(b->gradients);
    free(b->grads.layers);
    pass_free(b->pass);
    adapter_unref(b->adapter);
    pool_free(b->pool);
    model_free(b->model);
    weights_free(b->weights);
}

/* ---- running ---- */

/* Operations of the forward half. */
static double forward_flops(const struct bench *b)
{
    const struct model_config *c = &b->config;
    double rows = (double)b->batch * b->length;
    double weights = (double)b->model->n_parameters - (c->tied ? 0 : (double)c->vocab * c->hidden);
    double attention =
        (double)(c->n_layers - c->n_conv_layers) * (b->length + 1) * model_q_width(c);

    return 2 * rows * (weights + attention);
}

static double run_half(struct bench *b, struct slices *slices)
{
    int64_t t0 = clock_mono_ns(), from = t0;
    int64_t slice = (int64_t)(b->slice_ms * 1e6);

    while (pass_run(b->pass, slice ? from + slice : 0) == PASS_MORE) {
        int64_t now = clock_mono_ns();

        if (slices->n < MAX_SLICES)
            slices->v[slices->n++] = (double)(now - from) / 1e6;
        from = now;
    }
    return (double)(clock_mono_ns() - t0);
}

static void print_slices(struct slices *s)
{
    if (s->n == 0)
        return;
    qsort(s->v, (size_t)s->n, sizeof *s->v, compare_doubles);
    printf("train_slice_ms %.2f\n", s->v[s->n / 2]);
    printf("train_slice_p99_ms %.2f\n", s->v[s->n * 99 / 100]);
    printf("train_slice_most_ms %.2f\n", s->v[s->n - 1]);
}

static void run(struct bench *b)
{
    struct series forward = {.n = 0}, backward = {.n = 0}, share = {.n = 0}, peak = {.n = 0};
    struct slices *slices = calloc(1, sizeof *slices);
    struct pass_job job = {.model = b->model,
                           .adapter = b->adapter,
                           .sequences = b->sequences,
                           .n_sequences = b->batch,
                           .temperature = 1,
                           .backward = true};
    double work = forward_flops(b) * (b->lora ? 2 : 3);

    for (int i = -1; i < b->samples; i++) {
        struct err e = {0};
        double limit = limit_flops(b->pool, b->kern->name), f, g;

        if (pass_begin(b->pass, &job, &e) < 0)
            die(&e);
        f = run_half(b, slices);
        pass_back(b->pass, b->coef, NULL, &b->grads);
        g = run_half(b, slices);
        pass_end(b->pass);
        if (i < 0) { /* touches memory */
            slices->n = 0;
            continue;
        }
        forward.v[forward.n++] = f;
        backward.v[backward.n++] = g;
        peak.v[peak.n++] = limit;
        share.v[share.n++] = work / (f + g) * 1e9 / limit;
    }
    double f = median(&forward), g = median(&backward);

    printf("train_forward_ms %.1f\n", f / 1e6);
    printf("train_backward_ms %.1f\n", g / 1e6);
    printf("train_tokens_per_s %.1f\n", b->batch * b->length / (f + g) * 1e9);
    printf("train_forward_gflop_per_s %.1f\n", forward_flops(b) / f);
    printf("train_backward_gflop_per_s %.1f\n", (work - forward_flops(b)) / g);
    printf("train_peak_gflop_per_s %.1f\n", median(&peak) / 1e9);
    printf("train_share_of_peak %.3f\n", median(&share));
    printf("train_memory_mb %.0f\n", (double)pass_memory(b->pass) / 1e6);
    print_slices(slices);
    free(slices);
}

int main(int argc, char **argv)
{
    struct bench b = {.samples = 3, .batch = 4, .length = 256, .budget = (size_t)4 << 30};
    const char *dir = getenv("CAIRN_SMOLLM2");
    const char *name = NULL;
    bool fast = false;
    int threads = 0; /* all */

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
        else if (strcmp(argv[i], "--batch") == 0)
            b.batch = atoi(next), i++;
        else if (strcmp(argv[i], "--length") == 0)
            b.length = atoi(next), i++;
        else if (strcmp(argv[i], "--budget") == 0)
            b.budget = (size_t)atoi(next) << 20, i++;
        else if (strcmp(argv[i], "--lora") == 0)
            b.lora = atoi(next), i++;
        else if (strcmp(argv[i], "--slice") == 0)
            b.slice_ms = atof(next), i++;
        else
            return fprintf(stderr, "bench_train: unknown option %s\n", argv[i]), 2;
    }
    if (!dir)
        return fprintf(stderr, "bench_train: no model; give --dir, or set CAIRN_SMOLLM2\n"), 2;
    b.kern = name ? kernels_by_name(name) : kernels_pick(fast);
    if (!b.kern || b.samples < 1 || b.samples > MAX_SAMPLES || b.batch < 1 || b.length < 1)
        return fprintf(stderr, "bench_train: no such kernels, or a number out of range\n"), 2;
    load_model(dir, &b.config, &b.weights, &b.model);
    start(&b, threads);
    printf("# %s, %s, %d threads, %d x %d tokens\n", b.kern->name, b.kern->numerics,
           pool_workers(b.pool), b.batch, b.length);
    run(&b);
    stop(&b);
    return 0;
}
