#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/score.h"
#include "generate/sampler.h"
#include "model/logits.h"

enum { VOCAB = 7 };
static const float logits[VOCAB] = {0.5f, 3, -2, 3, 1, 0, 2};

static double log_probability(int token, const int *ids, int n, double temperature)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += exp(logits[ids[i]] / temperature);
    return logits[token] / temperature - log(sum);
}

static void near(double wanted, double got)
{
    if (fabs(wanted - got) > 1e-5)
        fail_msg("%g, wanted %g", got, wanted);
}

static void a_temperature_divides_the_logits(void **state)
{
    static const int all[VOCAB] = {0, 1, 2, 3, 4, 5, 6};
    static const float temperatures[] = {0.5f, 1, 2};

    (void)state;
    for (int k = 0; k < 3; k++) {
        struct sample_params p = {.temperature = temperatures[k]};
        struct logits_row row = {.n_top = 3};
        float scale = score_sampled(&row, logits, VOCAB, &p);

        for (int i = 0; i < VOCAB; i++)
            near(log_probability(i, all, VOCAB, temperatures[k]),
                 logits_logprob(&row, logits[i] / scale));
        assert_int_equal(row.n_top, 3);
        assert_int_equal(row.top[0].token, 1); /* the lower of two equal ones comes first */
        assert_int_equal(row.top[1].token, 3);
        assert_int_equal(row.top[2].token, 6);
    }
}

static void temperature_0_leaves_them_as_they_are(void **state)
{
    struct sample_params p = {.temperature = 0};
    struct logits_row row = {.n_top = 0};

    (void)state;
    assert_true(score_sampled(&row, logits, VOCAB, &p) == 1.0f);
    assert_true(row.max == 3.0f);
}

static void only_allowed_tokens_share_the_probability(void **state)
{
    static const int32_t allowed[] = {6, 2, 6, 5};
    static const int once[] = {6, 2, 5};
    struct sample_params p = {.temperature = 0, .allowed = allowed, .n_allowed = 4};
    struct logits_row row = {.n_top = LOGITS_TOP_MAX};
    double sum = 0;

    (void)state;
    score_sampled(&row, logits, VOCAB, &p);
    assert_int_equal(row.n_top, 3);
    for (int i = 0; i < row.n_top; i++) {
        near(log_probability(row.top[i].token, once, 3, 1), logits_logprob(&row, row.top[i].logit));
        sum += exp(logits_logprob(&row, row.top[i].logit));
    }
    near(1, sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_temperature_divides_the_logits),
        cmocka_unit_test(temperature_0_leaves_them_as_they_are),
        cmocka_unit_test(only_allowed_tokens_share_the_probability),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
