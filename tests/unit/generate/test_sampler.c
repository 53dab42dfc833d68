#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "generate/sampler.h"
#include "kernels/kernels.h"

static const struct sample_params plain = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 42};

static int32_t pick_at(const struct sample_params *p, const float *logits, int vocab,
                       const struct sample_history *h, int64_t position)
{
    void *scratch = malloc(sample_scratch_bytes(vocab));
    int32_t token;

    assert_non_null(scratch);
    token = sample_pick(kernels_pick(false), p, logits, vocab, h, position, NULL, scratch);
    free(scratch);
    return token;
}

static int32_t pick(const struct sample_params *p, const float *logits, int vocab)
{
    return pick_at(p, logits, vocab, NULL, 0);
}

/* How often each token comes in n draws at positions 0 .. n-1. */
static void draw(const struct sample_params *p, const float *logits, int vocab, int n, int *count)
{
    memset(count, 0, (size_t)vocab * sizeof *count);
    for (int i = 0; i < n; i++) {
        int32_t token = pick_at(p, logits, vocab, NULL, i);

        assert_in_range(token, 0, vocab - 1);
        count[token]++;
    }
}

/* Within five standard deviations of a binomial: the sequence is fixed, so it holds or does not. */
static void check_share(int count, int n, double share)
{
    double spread = 5 * sqrt(n * share * (1 - share)) + 1;

    if (fabs(count - n * share) > spread)
        fail_msg("%d of %d draws, expected %.0f", count, n, n * share);
}

static float logit_of(double probability)
{
    return (float)log(probability);
}

static void greedy_takes_the_first_of_equal_logits(void **state)
{
    const float logits[] = {1, 3, 2, 3};
    struct sample_params p = plain;

    (void)state;
    p.temperature = 0;
    assert_int_equal(pick(&p, logits, 4), 1);
    p.top_k = 50000; /* over the vocabulary: off */
    p.top_p = 0.1f;
    assert_int_equal(pick(&p, logits, 4), 1);
}

static void greedy_ignores_the_seed(void **state)
{
    const float logits[] = {1, 2, 3};
    struct sample_params p = plain;

    (void)state;
    p.temperature = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        p.seed = seed;
        assert_int_equal(pick(&p, logits, 3), 2);
    }
}

static void draws_follow_the_softmax(void **state)
{
    enum { N = 20000 };
    const float logits[] = {logit_of(0.5), logit_of(0.3), logit_of(0.15), logit_of(0.05)};
    int count[4];

    (void)state;
    draw(&plain, logits, 4, N, count);
    check_share(count[0], N, 0.5);
    check_share(count[1], N, 0.3);
    check_share(count[2], N, 0.15);
    check_share(count[3], N, 0.05);
}

static void temperature_divides_the_logits(void **state)
{
    enum { N = 20000 };
    const float logits[] = {0, logit_of(4)}; /* at T = 2: weights 1 and 2 */
    struct sample_params p = plain;
    int count[2];

    (void)state;
    p.temperature = 2;
    draw(&p, logits, 2, N, count);
    check_share(count[1], N, 2.0 / 3);
}

static void a_tiny_temperature_takes_the_largest(void **state)
{
    const float logits[] = {1, 1.001f, -1};
    struct sample_params p = plain;

    (void)state;
    p.temperature = 1e-30f;
    for (int i = 0; i < 100; i++)
        assert_int_equal(pick_at(&p, logits, 3, NULL, i), 1);
}

static void top_k_keeps_the_k_likeliest(void **state)
{
    enum { N = 9000 };
    const float logits[] = {logit_of(0.1), logit_of(0.4), logit_of(0.2), logit_of(0.3)};
    struct sample_params p = plain;
    int count[4];

    (void)state;
    p.top_k = 2;
    draw(&p, logits, 4, N, count);
    assert_int_equal(count[0] + count[2], 0);
    check_share(count[1], N, 4.0 / 7);
    p.top_k = 1;
    draw(&p, logits, 4, 200, count);
    assert_int_equal(count[1], 200);
}

static void top_p_keeps_the_smallest_set_that_reaches_p(void **state)
{
    enum { N = 9000 };
    const float logits[] = {logit_of(0.1), logit_of(0.4), logit_of(0.2), logit_of(0.3)};
    struct sample_params p = plain;
    int count[4];

    (void)state;
    p.top_p = 0.69f; /* 0.4 + 0.3 */
    draw(&p, logits, 4, N, count);
    assert_int_equal(count[0] + count[2], 0);
    check_share(count[1], N, 4.0 / 7);
    p.top_p = 0.71f; /* needs a third */
    draw(&p, logits, 4, N, count);
    assert_int_equal(count[0], 0);
    check_share(count[2], N, 2.0 / 9);
    p.top_p = 0;
    draw(&p, logits, 4, 200, count);
    assert_int_equal(count[1], 200);
}

/* The mass of top_p is a share of the whole distribution, not of what top_k left. */
static void top_k_and_top_p_cut_one_distribution(void **state)
{
    enum { N = 4000 };
    const float logits[] = {logit_of(0.4), logit_of(0.3), logit_of(0.2), logit_of(0.1)};
    struct sample_params p = plain;
    int count[4];

    (void)state;
    p.top_k = 2;
    p.top_p = 0.5f; /* 0.4 is not enough; of the two that are left it would be 0.57 */
    draw(&p, logits, 4, N, count);
    check_share(count[1], N, 3.0 / 7);
}

static void min_p_is_a_share_of_the_likeliest(void **state)
{
    enum { N = 9000 };
    const float logits[] = {logit_of(0.5), logit_of(0.3), logit_of(0.12), logit_of(0.08)};
    struct sample_params p = plain;
    int count[4];

    (void)state;
    p.min_p = 0.2f; /* 0.1 */
    draw(&p, logits, 4, N, count);
    assert_int_equal(count[3], 0);
    check_share(count[2], N, 0.12 / 0.92);
}

/* 150,000 entries: candidates are found block by block and threshold by threshold. */
static void a_large_flat_vocabulary_is_cut_exactly(void **state)
{
    enum { V = 150000, N = 300 };
    float *logits = malloc(V * sizeof *logits);
    struct sample_params p = plain;
    int seen_low = 0;

    (void)state;
    for (int i = 0; i < V; i++)
        logits[i] = (float)(i % 100) * 1e-3f;
    p.top_k = 1500; /* exactly the entries with i % 100 == 99, by number */
    for (int i = 0; i < N; i++) {
        int32_t token = pick_at(&p, logits, V, NULL, i);

        assert_int_equal(token % 100, 99);
        seen_low += token < V / 2;
    }
    check_share(seen_low, N, 0.5);
    p.top_k = 10; /* among equals the lowest ids */
    for (int i = 0; i < N; i++)
        assert_in_range(pick_at(&p, logits, V, NULL, i), 99, 999);
    p.top_k = 0;
    seen_low = 0;
    for (int i = 0; i < N; i++)
        seen_low += pick_at(&p, logits, V, NULL, i) < V / 4;
    check_share(seen_low, N, 0.25);
    free(logits);
}

static void the_draw_depends_on_seed_choice_and_position_alone(void **state)
{
    enum { V = 5000 };
    float logits[V];
    struct sample_params p = plain;
    int32_t first;
    int same[3] = {0};

    (void)state;
    for (int i = 0; i < V; i++)
        logits[i] = (float)rng_unit(5, 0, (uint64_t)i, 0);
    first = pick_at(&p, logits, V, NULL, 7);
    assert_int_equal(first, pick_at(&p, logits, V, NULL, 7));
    for (int i = 1; i <= 20; i++) {
        struct sample_params q = p;

        q.seed = p.seed + (uint64_t)i;
        same[0] += pick_at(&q, logits, V, NULL, 7) == first;
        q = p;
        q.sample_index = (uint32_t)i;
        same[1] += pick_at(&q, logits, V, NULL, 7) == first;
        same[2] += pick_at(&p, logits, V, NULL, 7 + i) == first;
    }
    for (int i = 0; i < 3; i++)
        assert_true(same[i] <= 1);
}

static void penalties_change_seen_tokens_only(void **state)
{
    const float logits[] = {2.0f, 1.9f, -1.0f, 1.0f};
    struct sample_params p = plain;
    struct sample_history h = {0};
    struct err e = {0};

    (void)state;
    p.temperature = 0;
    assert_int_equal(sample_history_add(&h, 0, false, &e), 0); /* from the prompt */
    p.frequency_penalty = 2;
    p.presence_penalty = 2;
    assert_int_equal(pick_at(&p, logits, 4, &h, 0), 0); /* the prompt does not count */
    assert_int_equal(sample_history_add(&h, 0, true, &e), 0);
    assert_int_equal(pick_at(&p, logits, 4, &h, 0), 1);
    p.presence_penalty = 0;
    p.frequency_penalty = 0.06f; /* once is not enough, twice is */
    assert_int_equal(pick_at(&p, logits, 4, &h, 0), 0);
    assert_int_equal(sample_history_add(&h, 0, true, &e), 0);
    assert_int_equal(pick_at(&p, logits, 4, &h, 0), 1);
    sample_history_release(&h);

    p = plain;
    p.temperature = 0;
    p.repetition_penalty = 1.1f; /* 2 / 1.1 = 1.82 < 1.9: prompt tokens count */
    assert_int_equal(sample_history_add(&h, 0, false, &e), 0);
    assert_int_equal(pick_at(&p, logits, 4, &h, 0), 1);
    sample_history_release(&h);
}

static void a_long_history_counts_every_token(void **state)
{
    enum { V = 4000 };
    float logits[V] = {0};
    struct sample_params p = plain;
    struct sample_history h = {0};
    struct err e = {0};

    (void)state;
    p.temperature = 0;
    p.presence_penalty = 1;
    for (int i = 0; i < V; i++)
        if (i != 3210)
            assert_int_equal(sample_history_add(&h, i, true, &e), 0);
    assert_int_equal(h.n, V - 1);
    assert_int_equal(pick_at(&p, logits, V, &h, 0), 3210);
    sample_history_release(&h);
}

static void bias_and_allowed_ids_steer_the_choice(void **state)
{
    const float logits[] = {5, 4, 3, 2};
    const struct sample_bias bias[] = {{3, 10}, {0, -INFINITY}};
    const int32_t allowed[] = {2, 1, 2};
    struct sample_params p = plain;

    (void)state;
    p.temperature = 0;
    p.bias = bias;
    p.n_bias = 2;
    assert_int_equal(pick(&p, logits, 4), 3);
    p.allowed = allowed;
    p.n_allowed = 3;
    assert_int_equal(pick(&p, logits, 4), 1);
    p.temperature = 1;
    for (int i = 0; i < 200; i++)
        assert_in_range(pick_at(&p, logits, 4, NULL, i), 1, 2);
}

static void nothing_is_picked_from_broken_or_forbidden_logits(void **state)
{
    float logits[] = {5, NAN, 3};
    const struct sample_bias bias[] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}};
    struct sample_params p = plain;

    (void)state;
    assert_int_equal(pick(&p, logits, 3), -1);
    logits[1] = INFINITY;
    assert_int_equal(pick(&p, logits, 3), -1);
    logits[1] = -INFINITY;
    assert_int_not_equal(pick(&p, logits, 3), -1);
    assert_int_not_equal(pick(&p, logits, 3), 1);
    p.bias = bias;
    p.n_bias = 3;
    assert_int_equal(pick(&p, logits, 3), -1);
}

static void refuse(struct sample_params p, const char *field)
{
    struct err e = {0};

    assert_int_equal(sample_params_check(&p, 10, &e), -1);
    assert_int_equal(e.code, ERR_ARG);
    if (!strstr(e.msg, field))
        fail_msg("\"%s\" does not name %s", e.msg, field);
}

static void values_that_are_no_numbers_are_refused_by_name(void **state)
{
    const struct sample_bias nan_bias = {1, NAN}, far = {10, 1};
    const int32_t outside = -1;
    struct sample_params p;
    struct err e = {0};

    (void)state;
    p = plain, p.temperature = NAN, refuse(p, "temperature");
    p = plain, p.temperature = -0.1f, refuse(p, "temperature");
    p = plain, p.temperature = INFINITY, refuse(p, "temperature");
    p = plain, p.top_p = NAN, refuse(p, "top_p");
    p = plain, p.min_p = 1.5f, refuse(p, "min_p");
    p = plain, p.frequency_penalty = NAN, refuse(p, "frequency_penalty");
    p = plain, p.presence_penalty = -INFINITY, refuse(p, "presence_penalty");
    p = plain, p.repetition_penalty = 0, refuse(p, "repetition_penalty");
    p = plain, p.bias = &nan_bias, p.n_bias = 1, refuse(p, "logit_bias");
    p = plain, p.bias = &far, p.n_bias = 1, refuse(p, "logit_bias");
    p = plain, p.allowed = &outside, p.n_allowed = 1, refuse(p, "allowed");
    p = plain, p.allowed = &outside, p.n_allowed = 0, refuse(p, "allowed");
    p = plain;
    assert_int_equal(sample_params_check(&p, 10, &e), 0);
}

static struct sample_drawn drawn_from(const struct sample_params *p, const float *logits, int vocab,
                                      int32_t *token)
{
    void *scratch = malloc(sample_scratch_bytes(vocab));
    struct sample_drawn d = {0};

    assert_non_null(scratch);
    *token = sample_pick(kernels_pick(false), p, logits, vocab, NULL, 0, &d, scratch);
    assert_int_equal(*token, pick(p, logits, vocab)); /* asking changes nothing */
    free(scratch);
    return d;
}

static void the_distribution_drawn_from_is_told_with_its_ids_and_the_token_s_share(void **state)
{
    const float logits[] = {logit_of(0.1), logit_of(0.4), logit_of(0.2), logit_of(0.3)};
    const double share[] = {0, 0.4 / 0.7, 0, 0.3 / 0.7};
    struct sample_params p = plain;
    int32_t token;

    (void)state;
    p.top_k = 2;
    struct sample_drawn d = drawn_from(&p, logits, 4, &token);

    assert_int_equal(d.n_allowed, 2);
    assert_true(d.allowed[0] == 1 && d.allowed[1] == 3);
    assert_float_equal(d.logprob, log(share[token]), 1e-5);
    free(d.allowed);
    d = drawn_from(&plain, logits, 4, &token);
    assert_true(d.n_allowed == 0 && !d.allowed);
    assert_float_equal(d.logprob, logits[token], 1e-5);
    p.temperature = 0;
    d = drawn_from(&p, logits, 4, &token);
    assert_int_equal(d.n_allowed, 1);
    assert_int_equal(d.allowed[0], 1);
    assert_float_equal(d.logprob, 0, 0);
    free(d.allowed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_equal_logits),
        cmocka_unit_test(greedy_ignores_the_seed),
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(temperature_divides_the_logits),
        cmocka_unit_test(a_tiny_temperature_takes_the_largest),
        cmocka_unit_test(top_k_keeps_the_k_likeliest),
        cmocka_unit_test(top_p_keeps_the_smallest_set_that_reaches_p),
        cmocka_unit_test(top_k_and_top_p_cut_one_distribution),
        cmocka_unit_test(min_p_is_a_share_of_the_likeliest),
        cmocka_unit_test(a_large_flat_vocabulary_is_cut_exactly),
        cmocka_unit_test(the_draw_depends_on_seed_choice_and_position_alone),
        cmocka_unit_test(penalties_change_seen_tokens_only),
        cmocka_unit_test(a_long_history_counts_every_token),
        cmocka_unit_test(bias_and_allowed_ids_steer_the_choice),
        cmocka_unit_test(nothing_is_picked_from_broken_or_forbidden_logits),
        cmocka_unit_test(values_that_are_no_numbers_are_refused_by_name),
        cmocka_unit_test(the_distribution_drawn_from_is_told_with_its_ids_and_the_token_s_share),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
