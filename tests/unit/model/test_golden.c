/* Forward values of the reference implementation, for every tiny model and every exact kernel
 * table. */
#include "fixture.h"

/* Limits: ten times and more what float32 against float64 of the reference itself differs. */
static const double hidden_limit = 3e-4, logit_limit = 5e-4, long_logit_limit = 2e-3,
                    logprob_limit = 2e-4, long_logprob_limit = 6e-4, embedding_limit = 2e-5;

static const char *const tables[] = {"ref", "avx2", "avx512"};

static void for_each_model(void (*fn)(struct fixture *fx, struct golden *g, const char *name))
{
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        if (!kernels_by_name(tables[t]))
            continue;
        for (int i = 0; i < N_TINY; i++) {
            struct fixture fx;
            struct golden g = {0};

            fixture_open(&fx, tiny_models[i], tables[t], 2);
            golden_open(&g, tiny_models[i]);
            fn(&fx, &g, tiny_models[i]);
            golden_close(&g);
            fixture_close(&fx);
        }
    }
}

static void check_tensor(const struct golden *g, const char *model, const char *key,
                         const float *got, size_t n, double limit)
{
    size_t want_n;
    float *want = golden_tensor(g, key, &want_n);

    assert_int_equal(n, want_n);
    check_close(model, key, got, want, n, limit);
    free(want);
}

/* Full logits [n,V] and log-probabilities of the given targets. */
static void score(struct fixture *fx, const float *hidden, int n, const int32_t *targets,
                  float *full, float *logprobs)
{
    struct logits_row *rows = calloc((size_t)n, sizeof *rows);

    assert_non_null(rows);
    for (int i = 0; i < n; i++) {
        rows[i].target = targets ? targets[i] : -1;
        rows[i].full = full ? full + (size_t)i * (size_t)fx->config.vocab : NULL;
    }
    logits_run(fx->logits, fx->model, hidden, n, rows);
    for (int i = 0; i < n; i++) {
        assert_true(rows[i].finite);
        if (logprobs)
            logprobs[i] = logits_logprob(&rows[i], rows[i].target_logit);
    }
    free(rows);
}

static void check_prompt_logits(struct fixture *fx, struct golden *g, const char *name)
{
    size_t V = (size_t)fx->config.vocab;

    for (int k = 0; k < 3; k++) {
        char key[64];
        int n;
        int32_t *ids = golden_prompt(g, k, &n);
        float *hidden = run_prompt(fx, ids, n);
        float *full = malloc((size_t)n * V * sizeof *full);
        float *logprobs = malloc((size_t)n * sizeof *logprobs);

        score(fx, hidden, n, NULL, full, NULL);
        score(fx, hidden, n - 1, ids + 1, NULL, logprobs);
        snprintf(key, sizeof key, k < 2 ? "prompt%d.logits" : "prompt%d.logits_last", k);
        if (k < 2)
            check_tensor(g, name, key, full, (size_t)n * V, logit_limit);
        else
            check_tensor(g, name, key, full + (size_t)(n - 1) * V, V, logit_limit);
        snprintf(key, sizeof key, "prompt%d.logprobs", k);
        check_tensor(g, name, key, logprobs, (size_t)(n - 1), logprob_limit);
        free(logprobs);
        free(full);
        free(hidden);
        free(ids);
    }
}

static void prompt_logits_and_logprobs_are_the_recorded_ones(void **state)
{
    (void)state;
    for_each_model(check_prompt_logits);
}

struct tapped {
    const struct golden *g;
    const char *model;
    int seen;
};

static void compare_layer(void *arg, int layer, const float *x, int n_rows, int hidden)
{
    struct tapped *t = arg;
    char key[64] = "prompt0.hidden.embed";

    if (layer >= 0)
        snprintf(key, sizeof key, "prompt0.hidden.layer%d", layer);
    check_tensor(t->g, t->model, key, x, (size_t)n_rows * (size_t)hidden, hidden_limit);
    t->seen++;
}

static void check_hidden_states(struct fixture *fx, struct golden *g, const char *name)
{
    struct tapped t = {.g = g, .model = name};
    int n;
    int32_t *ids = golden_prompt(g, 0, &n);
    float *hidden;

    forward_set_tap(fx->forward, compare_layer, &t);
    hidden = run_prompt(fx, ids, n);
    check_tensor(g, name, "prompt0.hidden.final_norm", hidden, (size_t)(n * fx->config.hidden),
                 hidden_limit);
    assert_int_equal(t.seen, fx->config.n_layers + 1);
    free(hidden);
    free(ids);
}

static void hidden_states_after_every_layer_are_the_recorded_ones(void **state)
{
    (void)state;
    for_each_model(check_hidden_states);
}

static void check_embeddings(struct fixture *fx, struct golden *g, const char *name)
{
    int H = fx->config.hidden;

    for (int k = 0; k < 3; k++) {
        char key[64];
        int n;
        int32_t *ids = golden_prompt(g, k, &n);
        float *hidden = run_prompt(fx, ids, n);
        float *mean = calloc((size_t)H, sizeof *mean);
        double square = 0;

        for (int i = 0; i < n * H; i++)
            mean[i % H] += hidden[i] / (float)n;
        snprintf(key, sizeof key, "prompt%d.embedding_mean", k);
        check_tensor(g, name, key, mean, (size_t)H, embedding_limit);
        for (int i = 0; i < H; i++)
            square += (double)mean[i] * (double)mean[i];
        for (int i = 0; i < H; i++)
            mean[i] = (float)((double)mean[i] / sqrt(square));
        snprintf(key, sizeof key, "prompt%d.embedding_mean_normalized", k);
        check_tensor(g, name, key, mean, (size_t)H, embedding_limit);
        snprintf(key, sizeof key, "prompt%d.embedding_last", k);
        check_tensor(g, name, key, hidden + (size_t)(n - 1) * (size_t)H, (size_t)H, hidden_limit);
        free(mean);
        free(hidden);
        free(ids);
    }
}

static void mean_and_last_embeddings_are_the_recorded_ones(void **state)
{
    (void)state;
    for_each_model(check_embeddings);
}

static void check_long(struct fixture *fx, struct golden *g, const char *name)
{
    int n;
    int32_t *ids = json_ids(json_object_get(json_object_get(g->json, "long"), "ids"), &n);
    float *hidden = run_prompt(fx, ids, n);
    float *last = malloc((size_t)fx->config.vocab * sizeof *last);
    float *logprobs = malloc((size_t)n * sizeof *logprobs);

    score(fx, hidden + (size_t)(n - 1) * (size_t)fx->config.hidden, 1, NULL, last, NULL);
    score(fx, hidden, n - 1, ids + 1, NULL, logprobs);
    check_tensor(g, name, "long.logits_last", last, (size_t)fx->config.vocab, long_logit_limit);
    check_tensor(g, name, "long.logprobs", logprobs, (size_t)(n - 1), long_logprob_limit);
    free(logprobs);
    free(last);
    free(hidden);
    free(ids);
}

static void three_hundred_positions_keep_the_recorded_values(void **state)
{
    (void)state;
    for_each_model(check_long);
}

/* The reference padded its batch; a ragged batch needs no padding and gives the same rows. */
static void check_batch(struct fixture *fx, struct golden *g, const char *name)
{
    struct forward_span span[3] = {{.n = 0}};
    int32_t *ids[3];
    int last[3], rows = 0, V = fx->config.vocab;
    float *hidden = hidden_rows(fx, 3), *full = malloc(3 * (size_t)V * sizeof *full);
    struct forward_batch batch = {span, 3, last, 3};
    struct err e = {0};

    for (int k = 0; k < 3; k++) {
        ids[k] = golden_prompt(g, k, &span[k].n);
        span[k].tokens = ids[k];
        span[k].seq = kv_seq_new(fx->kv, &e);
        rows += span[k].n;
        last[k] = rows - 1;
    }
    must(forward_run(fx->forward, fx->model, &batch, hidden, &e), &e);
    score(fx, hidden, 3, NULL, full, NULL);
    check_tensor(g, name, "batch.right.logits_last", full, 3 * (size_t)V, logit_limit);
    check_tensor(g, name, "batch.left.logits_last", full, 3 * (size_t)V, logit_limit);
    for (int k = 0; k < 3; k++) {
        kv_seq_free(span[k].seq);
        free(ids[k]);
    }
    free(full);
    free(hidden);
}

static void a_ragged_batch_gives_the_recorded_rows(void **state)
{
    (void)state;
    for_each_model(check_batch);
}

/* One greedy step; returns the chosen token's log-probability. */
static float greedy_step(struct fixture *fx, const float *hidden, int32_t *token)
{
    struct logits_row row = {.target = -1};

    logits_run(fx->logits, fx->model, hidden, 1, &row);
    assert_true(row.finite);
    *token = row.argmax;
    return logits_logprob(&row, row.max);
}

static void follow_greedy(struct fixture *fx, const char *name, const int32_t *ids, int n,
                          const json_t *want)
{
    const json_t *want_ids = json_object_get(want, "ids");
    const json_t *margins = json_object_get(want, "margins");
    const json_t *logprobs = json_object_get(want, "logprobs");
    struct err e = {0};
    struct kv_seq *seq = kv_seq_new(fx->kv, &e);
    float *hidden = hidden_rows(fx, n);

    feed(fx, seq, ids, n, FORWARD_ROWS_MAX, hidden);
    memmove(hidden, hidden + (size_t)((n - 1) * fx->config.hidden),
            (size_t)fx->config.hidden * sizeof *hidden);
    for (size_t i = 0; i < json_array_size(want_ids); i++) {
        int32_t token, expected = (int32_t)json_integer_value(json_array_get(want_ids, i));
        float logprob = greedy_step(fx, hidden, &token);

        if (token != expected && json_number_value(json_array_get(margins, i)) < 1e-3)
            break; /* a tie within rounding: the rest is another text */
        if (token != expected)
            fail_msg("%s greedy token %zu: %d, recorded %d", name, i, token, expected);
        if (fabs((double)logprob - json_number_value(json_array_get(logprobs, i))) > 6e-4)
            fail_msg("%s greedy log-probability %zu: %g", name, i, (double)logprob);
        feed(fx, seq, &token, 1, 1, hidden);
    }
    kv_seq_free(seq);
    free(hidden);
}

static void check_greedy(struct fixture *fx, struct golden *g, const char *name)
{
    const json_t *list = json_object_get(g->json, "greedy");

    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *want = json_array_get(list, i);
        int n, k = (int)json_integer_value(json_object_get(want, "prompt"));
        int32_t *ids = golden_prompt(g, k, &n);

        follow_greedy(fx, name, ids, n, want);
        free(ids);
    }
}

static void greedy_tokens_with_the_cache_are_the_recorded_ones(void **state)
{
    (void)state;
    for_each_model(check_greedy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompt_logits_and_logprobs_are_the_recorded_ones),
        cmocka_unit_test(hidden_states_after_every_layer_are_the_recorded_ones),
        cmocka_unit_test(mean_and_last_embeddings_are_the_recorded_ones),
        cmocka_unit_test(three_hundred_positions_keep_the_recorded_values),
        cmocka_unit_test(a_ragged_batch_gives_the_recorded_rows),
        cmocka_unit_test(greedy_tokens_with_the_cache_are_the_recorded_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
