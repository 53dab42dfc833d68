/* What must not change a bit: threads, kernels, slices, budget. */
#include "pass_fixture.h"

/* One way to run the same pass. */
struct way {
    const char *what, *table;
    int threads;
    struct how how;
};

struct result {
    struct places pl;
    float *logprobs;
    int rows;
};

static struct result run_way(const char *model, const struct way *w, bool lora, bool entropy)
{
    struct fixture fx;
    struct golden recorded = {0};
    struct batch b;
    struct result r;
    struct adapter *a;

    fixture_open(&fx, model, w->table, w->threads);
    recorded_open(&recorded, model, lora ? "lora_grads.safetensors" : "train_grads.safetensors");
    batch_make(&b, &fx.config);
    if (entropy)
        batch_add_entropy(&b, false);
    places_open(&r.pl, &recorded.index, &fx.config);
    r.rows = b.rows;
    r.logprobs = calloc((size_t)b.rows, sizeof *r.logprobs);
    a = lora ? adapter_open(&fx, model) : NULL;
    run_pass(&fx, fx.model, a, &b, w->how, r.logprobs, &r.pl.g);
    adapter_unref(a);
    batch_free(&b);
    st_index_release(&recorded.index);
    close(recorded.fd);
    fixture_close(&fx);
    return r;
}

static void result_free(struct result *r)
{
    free(r->logprobs);
    places_close(&r->pl);
}

static void check_ways(const char *model, const struct way *first, const struct way *ways, size_t n,
                       bool lora, bool entropy)
{
    struct result want = run_way(model, first, lora, entropy);

    for (size_t w = 0; w < n; w++) {
        struct result got;

        if (!kernels_by_name(ways[w].table))
            continue;
        got = run_way(model, &ways[w], lora, entropy);
        if (memcmp(got.pl.memory, want.pl.memory, want.pl.n * sizeof(float)) != 0)
            fail_msg("%s: other gradients with %s", model, ways[w].what);
        assert_int_equal(got.rows, want.rows);
        if (memcmp(got.logprobs, want.logprobs, (size_t)want.rows * sizeof(float)) != 0)
            fail_msg("%s: other log-probabilities with %s", model, ways[w].what);
        result_free(&got);
    }
    result_free(&want);
}

static const struct way reference = {"", "ref", 1, {BUDGET, 0, 1}};

static void kernels_and_threads_give_the_same_bits(void **state)
{
    static const struct way ways[] = {
        {"AVX2 and 2 threads", "avx2", 2, {BUDGET, 0, 1}},
        {"AVX-512", "avx512", 1, {BUDGET, 0, 1}},
    };

    (void)state;
    for (int i = 0; i < N_TRAINED; i++) {
        check_ways(trained_models[i], &reference, ways, sizeof ways / sizeof *ways, false, false);
        check_ways(trained_models[i], &reference, ways, sizeof ways / sizeof *ways, true, false);
    }
}

static void entropies_change_no_bit_either(void **state)
{
    static const struct way first = {"", "ref", 1, {BUDGET, 0, 1.5f}};
    static const struct way ways[] = {
        {"AVX2 and 2 threads", "avx2", 2, {BUDGET, 0, 1.5f}},
        {"AVX-512", "avx512", 1, {BUDGET, 0, 1.5f}},
        {"slices", "ref", 2, {BUDGET, 200000, 1.5f}},
    };

    (void)state;
    check_ways("tiny-llama", &first, ways, sizeof ways / sizeof *ways, false, true);
    check_ways("tiny-llama-untied-rope3", &first, ways, sizeof ways / sizeof *ways, true, true);
}

/* Bytes that a pass over the batch takes with this budget; 0: it does not fit. */
static size_t memory_at(const struct fixture *fx, const struct batch *b, struct adapter *a,
                        size_t budget, float temperature)
{
    struct err e = {0};
    struct pass *p = pass_new(&fx->config, forward_kernels(fx->forward), fx->pool, budget, &e);
    struct pass_job job = {.model = fx->model,
                           .sequences = b->sequences,
                           .n_sequences = b->n,
                           .adapter = a,
                           .temperature = temperature,
                           .backward = true};
    size_t bytes = 0;

    must(p ? 0 : -1, &e);
    if (pass_begin(p, &job, &e) == 0)
        bytes = pass_memory(p);
    else
        assert_int_equal(e.code, ERR_SPACE);
    pass_free(p);
    return bytes;
}

static size_t memory_with(const struct fixture *fx, const struct batch *b, struct adapter *a,
                          size_t budget)
{
    return memory_at(fx, b, a, budget, 1);
}

/* The smallest budget, to 64 KiB; kernels lay their operands out in different sizes. */
static size_t least_budget(const char *model, const char *kernels, bool lora)
{
    struct fixture fx;
    struct batch b;
    struct adapter *a;
    size_t low = 0, high = BUDGET;

    fixture_open(&fx, model, kernels, 1);
    batch_make(&b, &fx.config);
    a = lora ? adapter_open(&fx, model) : NULL;
    while (high - low > 64 * 1024) {
        size_t mid = (low + high) / 2;

        if (memory_with(&fx, &b, a, mid))
            high = mid;
        else
            low = mid;
    }
    assert_true(memory_with(&fx, &b, a, high) < memory_with(&fx, &b, a, BUDGET));
    adapter_unref(a);
    batch_free(&b);
    fixture_close(&fx);
    return high;
}

/* A budget that keeps some of the logits, but not all of them: with several groups, whose logits
 * take memory of their own. Under a temperature none stay. */
static size_t some_logits_budget(const char *model, const char *kernels)
{
    size_t budget = least_budget(model, kernels, false), kept = 0, all;
    struct fixture fx;
    struct batch b;

    fixture_open(&fx, model, kernels, 1);
    batch_make(&b, &fx.config);
    all = (size_t)b.rows * (size_t)fx.config.vocab * sizeof(float);
    for (; budget < BUDGET && (kept == 0 || kept >= all); budget += 16 * 1024)
        kept = memory_at(&fx, &b, NULL, budget, 1) - memory_at(&fx, &b, NULL, budget, 2);
    assert_true(kept > 0 && kept < all);
    batch_free(&b);
    fixture_close(&fx);
    return budget - 16 * 1024;
}

/* One group's logits lie where its layers' gradients come later. */
static void logits_of_the_only_group_take_less_memory_than_they_have(void **state)
{
    struct fixture fx;
    struct batch b;

    (void)state;
    fixture_open(&fx, trained_models[0], "avx2", 1);
    batch_make(&b, &fx.config);
    size_t all = (size_t)b.rows * (size_t)fx.config.vocab * sizeof(float);
    size_t kept = memory_at(&fx, &b, NULL, BUDGET, 1) - memory_at(&fx, &b, NULL, BUDGET, 2);

    assert_true(kept < all / 2);
    batch_free(&b);
    fixture_close(&fx);
}

static void logits_that_are_kept_are_those_that_are_computed_again(void **state)
{
    (void)state;
    for (int i = 0; i < N_TRAINED; i++) {
        const struct way all = {"", "avx2", 2, {BUDGET, 0, 1}};
        const struct way some = {
            "some logits kept", "avx2", 2, {some_logits_budget(trained_models[i], "avx2"), 0, 1}};

        check_ways(trained_models[i], &all, &some, 1, false, false);
        check_ways(trained_models[i], &all, &some, 1, false, true);
    }
}

static void slices_and_budgets_give_the_same_bits(void **state)
{
    static const struct way all = {"", "avx2", 2, {BUDGET, 0, 1}};

    (void)state;
    for (int i = 0; i < N_TRAINED; i++) {
        size_t least = least_budget(trained_models[i], "avx2", i % 2);
        const struct way ways[] = {
            {"slices of 1 ns", "avx2", 2, {BUDGET, 1, 1}},
            {"slices of 0.1 ms", "avx2", 2, {BUDGET, 100 * 1000, 1}},
            {"slices of 20 ms", "avx2", 2, {BUDGET, 20 * 1000 * 1000, 1}},
            {"the least budget", "avx2", 2, {least, 0, 1}},
            {"the least budget in slices", "avx2", 1, {least, 1, 1}},
            {"half as much again", "avx2", 2, {least + least / 2, 0, 1}},
            {"twice the least budget", "avx2", 2, {2 * least, 0, 1}},
        };

        check_ways(trained_models[i], &all, ways, sizeof ways / sizeof *ways, i % 2, false);
    }
}

/* Pairs of steps must not depend on what is in a group or a tile of logits. */
static void fast_numerics_keep_their_bits(void **state)
{
    static const struct way reference_of_fast = {"", "bf16-ref", 1, {BUDGET, 0, 1}};

    (void)state;
    for (int i = 0; i < N_TRAINED; i += N_TRAINED - 1) { /* attention, convolution */
        size_t least = least_budget(trained_models[i], "bf16", true);
        const struct way ways[] = {
            {"the BF16 instruction", "bf16", 2, {BUDGET, 0, 1}},
            {"slices of 1 ns", "bf16", 1, {BUDGET, 1, 1}},
            {"slices of 20 ms", "bf16", 2, {BUDGET, 20 * 1000 * 1000, 1}},
            {"the least budget", "bf16", 2, {least, 0, 1}},
            {"twice the least budget", "bf16", 2, {2 * least, 0, 1}},
        };

        check_ways(trained_models[i], &reference_of_fast, ways, sizeof ways / sizeof *ways, false,
                   false);
        check_ways(trained_models[i], &reference_of_fast, ways, 3, true, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_and_threads_give_the_same_bits),
        cmocka_unit_test(entropies_change_no_bit_either),
        cmocka_unit_test(slices_and_budgets_give_the_same_bits),
        cmocka_unit_test(logits_of_the_only_group_take_less_memory_than_they_have),
        cmocka_unit_test(logits_that_are_kept_are_those_that_are_computed_again),
        cmocka_unit_test(fast_numerics_keep_their_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
