/* tests/unit/model/fixture.h - a loaded model with everything that runs it, and the recorded values
 * of the reference implementation (tests/vectors/golden). Failures to load fail the test that
 * asked. */
#ifndef TESTS_MODEL_FIXTURE_H
#define TESTS_MODEL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/logits.h"
#include "model/model.h"
#include "tensor/model_dir.h"
#include "tensor/weights.h"

#define MODELS "tests/vectors/models/"
#define GOLDEN "tests/vectors/golden/"

static const char *const tiny_models[] = {
    "tiny-llama",     "tiny-llama-untied-rope3", "tiny-qwen2", "tiny-qwen3", "tiny-lfm2",
    "tiny-llama-f16", "tiny-qwen3-sharded-f32",
};
enum { N_TINY = sizeof tiny_models / sizeof *tiny_models };

struct fixture {
    struct model_config config;
    struct weights *weights;
    struct model *model;
    struct pool *pool;
    struct forward *forward;
    struct logits *logits;
    struct kv_cache *kv;
};

static inline void must(int rc, const struct err *e)
{
    if (rc != 0)
        fail_msg("%s (%s)", e->msg, e->detail);
}

static inline void fixture_load(struct fixture *fx, const char *dir)
{
    struct model_dir_rules rules = {.f32_ok = true};
    struct model_dir md = {0};
    struct err e = {0};
    const char *reason = "";
    int fd = open(dir, O_RDONLY | O_DIRECTORY);

    *fx = (struct fixture){0};
    assert_true(fd >= 0);
    must(model_open_dir(fd, &rules, &md, &fx->config, &reason, &e), &e);
    fx->weights = weights_read(&md, NULL, 0, NULL, &e);
    must(fx->weights ? 0 : -1, &e);
    model_dir_close(&md);
    close(fd);
    fx->model = model_bind(&fx->config, fx->weights, &reason, &e);
    must(fx->model ? 0 : -1, &e);
}

static inline void fixture_start(struct fixture *fx, const struct kernels *k, int threads,
                                 size_t kv_bytes)
{
    struct err e = {0};

    fx->pool = pool_new(threads, &e);
    must(fx->pool ? 0 : -1, &e);
    fx->forward = forward_new(&fx->config, k, fx->pool, &e);
    must(fx->forward ? 0 : -1, &e);
    fx->logits = logits_new(fx->forward, &e);
    must(fx->logits ? 0 : -1, &e);
    fx->kv = kv_cache_new(&fx->config, KV_ALL_LAYERS, kv_bytes, &e);
    must(fx->kv ? 0 : -1, &e);
}

static inline void fixture_stop(struct fixture *fx)
{
    kv_cache_free(fx->kv);
    logits_free(fx->logits);
    forward_free(fx->forward);
    pool_free(fx->pool);
}

static inline void fixture_free(struct fixture *fx)
{
    model_free(fx->model);
    weights_free(fx->weights);
}

static inline void fixture_open(struct fixture *fx, const char *name, const char *kernels,
                                int threads)
{
    char dir[256];

    snprintf(dir, sizeof dir, MODELS "%s", name);
    fixture_load(fx, dir);
    fixture_start(fx, kernels_by_name(kernels), threads, 64 << 20);
}

static inline void fixture_close(struct fixture *fx)
{
    fixture_stop(fx);
    fixture_free(fx);
}

/* ---- running ---- */

/* Feeds n tokens of one sequence, cut into pieces of at most `chunk`; out [n,H] gets every row. */
static inline void feed(struct fixture *fx, struct kv_seq *seq, const int32_t *tokens, int n,
                        int chunk, float *out)
{
    int all[FORWARD_ROWS_MAX];

    for (int i = 0; i < FORWARD_ROWS_MAX; i++)
        all[i] = i;
    for (int at = 0; at < n; at += chunk) {
        int len = n - at < chunk ? n - at : chunk;
        struct forward_span span = {seq, tokens + at, len, NULL};
        struct forward_batch batch = {&span, 1, all, len};
        struct err e = {0};

        must(forward_run(fx->forward, fx->model, &batch,
                         out + (size_t)at * (size_t)fx->config.hidden, &e),
             &e);
    }
}

static inline float *hidden_rows(const struct fixture *fx, int n)
{
    float *x = malloc((size_t)n * (size_t)fx->config.hidden * sizeof *x);

    assert_non_null(x);
    return x;
}

/* All rows of a fresh sequence; the caller frees. */
static inline float *run_prompt(struct fixture *fx, const int32_t *tokens, int n)
{
    struct err e = {0};
    struct kv_seq *seq = kv_seq_new(fx->kv, &e);
    float *x = hidden_rows(fx, n);

    must(seq ? 0 : -1, &e);
    feed(fx, seq, tokens, n, FORWARD_ROWS_MAX, x);
    kv_seq_free(seq);
    return x;
}

/* ---- recorded values ---- */

struct golden {
    json_t *json;
    struct st_index index;
    int fd;
};

static inline void golden_open(struct golden *g, const char *name)
{
    char path[256];
    struct err e = {0};

    snprintf(path, sizeof path, GOLDEN "%s/golden.json", name);
    g->json = json_parse_file(AT_FDCWD, path, 64 << 20, &e);
    must(g->json ? 0 : -1, &e);
    snprintf(path, sizeof path, GOLDEN "%s/golden.safetensors", name);
    g->fd = open(path, O_RDONLY);
    assert_true(g->fd >= 0);
    must(st_index_read(&g->index, g->fd, &e), &e);
}

static inline void golden_close(struct golden *g)
{
    json_decref(g->json);
    st_index_release(&g->index);
    close(g->fd);
}

/* Values of a tensor; the caller frees. *n counts them. */
static inline float *golden_tensor(const struct golden *g, const char *name, size_t *n)
{
    const struct st_tensor *t = st_index_find(&g->index, name);
    float *v;

    if (!t)
        fail_msg("no recorded tensor %s", name);
    v = malloc(t->bytes + 1);
    assert_non_null(v);
    assert_int_equal(pread(g->fd, v, t->bytes, (off_t)(g->index.data_start + t->offset)), t->bytes);
    *n = t->bytes / sizeof *v;
    return v;
}

/* Numbers of a JSON list of ids; the caller frees. */
static inline int32_t *json_ids(const json_t *list, int *n)
{
    int32_t *ids = malloc((json_array_size(list) + 1) * sizeof *ids);

    assert_non_null(ids);
    assert_true(json_is_array(list));
    *n = (int)json_array_size(list);
    for (int i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return ids;
}

static inline int32_t *golden_prompt(const struct golden *g, int k, int *n)
{
    return json_ids(
        json_object_get(json_array_get(json_object_get(g->json, "prompts"), (size_t)k), "ids"), n);
}

static inline void check_close(const char *model, const char *what, const float *got,
                               const float *want, size_t n, double limit)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= limit))
            fail_msg("%s %s [%zu]: %.7g, recorded %.7g", model, what, i, (double)got[i],
                     (double)want[i]);
}
#endif
