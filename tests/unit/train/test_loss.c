/* Losses against recorded values, against differences of themselves, and at their edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "train/loss.h"

enum { MAX = 128 };

/* Two datums with all their vectors; `lp` holds the log-probabilities of both. */
struct call {
    struct loss_datum data[2];
    int32_t targets[MAX];
    float weights[MAX], mask[MAX], old[MAX], advantages[MAX], surrogate[MAX];
    float lp[MAX], entropy[MAX], elementwise[MAX], coef[MAX], entropy_coef[MAX];
    int n; /* all positions */
};

static void point(struct call *c, int n0, int n1)
{
    c->n = n0 + n1;
    for (int i = 0, at = 0; i < 2; at += i++ ? 0 : n0)
        c->data[i] = (struct loss_datum){.n = i ? n1 : n0,
                                         .targets = c->targets + at,
                                         .weights = c->weights + at,
                                         .mask = c->mask + at,
                                         .old_logprobs = c->old + at,
                                         .advantages = c->advantages + at,
                                         .surrogate = c->surrogate + at};
}

static struct loss_result run(struct call *c, const struct loss_config *config)
{
    struct loss_result r = {0};

    loss_run(config, c->data, 2,
             &(struct loss_rows){c->lp, c->entropy, c->elementwise, c->coef, c->entropy_coef}, &r);
    return r;
}

/* ---- recorded ---- */

static int read_floats(const json_t *list, float *to)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        to[i] = (float)json_number_value(json_array_get(list, i));
    return (int)json_array_size(list);
}

static json_t *recorded(void)
{
    struct err e = {0};
    json_t *j =
        json_parse_file(AT_FDCWD, "tests/vectors/golden/rl_losses.json", (size_t)1 << 20, &e);

    if (!j)
        fail_msg("%s", e.msg);
    return j;
}

/* weights and surrogate as the record's note defines them. */
static void fill_recorded(struct call *c, const json_t *j)
{
    int at = 0, n[2] = {0, 0};

    *c = (struct call){0};
    for (size_t d = 0; d < 2; d++) {
        const json_t *o = json_array_get(json_object_get(j, "data"), d);

        read_floats(json_array_get(json_object_get(j, "current_logprobs"), d), c->lp + at);
        read_floats(json_object_get(o, "advantages"), c->advantages + at);
        read_floats(json_object_get(o, "mask"), c->mask + at);
        n[d] = read_floats(json_object_get(o, "logprobs"), c->old + at);
        at += n[d];
    }
    for (int i = 0; i < at; i++)
        c->weights[i] = 1;
    point(c, n[0], n[1]);
}

static void check_recorded(const json_t *want, const json_t *j)
{
    const char *name = json_string_value(json_object_get(want, "loss_fn"));
    struct loss_config config = loss_defaults((enum loss_kind)loss_by_name(name));
    float grad[MAX];
    struct call c;
    int at = 0;

    fill_recorded(&c, j);
    config.sum = true;
    for (int i = 0; i < c.n; i++) {
        if (config.kind == LOSS_CROSS_ENTROPY)
            c.weights[i] = fabsf(c.advantages[i]);
        c.surrogate[i] = c.mask[i] * c.advantages[i];
    }
    struct loss_result r = run(&c, &config);

    if (fabs(r.loss - json_number_value(json_object_get(want, "loss"))) > 1e-3)
        fail_msg("%s: loss %.9g", name, r.loss);
    for (size_t d = 0; d < 2; d++)
        at += read_floats(json_array_get(json_object_get(want, "grad_logprobs"), d), grad + at);
    assert_int_equal(at, c.n);
    for (int i = 0; i < at; i++)
        if (fabsf(c.coef[i] - grad[i]) > 1e-5f * (1 + fabsf(grad[i])))
            fail_msg("%s [%d]: %.9g, recorded %.9g", name, i, (double)c.coef[i], (double)grad[i]);
}

static void losses_and_slopes_are_the_recorded_ones(void **state)
{
    json_t *j = recorded(), *want;
    size_t i;

    (void)state;
    json_array_foreach (json_object_get(j, "losses"), i, want)
        check_recorded(want, j);
    assert_int_equal(i, 6);
    json_decref(j);
}

static void clipped_tokens_are_counted(void **state)
{
    json_t *j = recorded();
    struct loss_config config = loss_defaults(LOSS_PPO_CLIP);
    struct call c;

    (void)state;
    fill_recorded(&c, j);
    struct loss_result r = run(&c, &config);

    assert_int_equal(r.tokens, 83);
    assert_true(fabs(r.clip_frac - 26.0 / 83) < 1e-12); /* 26 tokens get no gradient */
    assert_true(r.approx_kl > 0 && r.ratio > 0);
    config.kind = LOSS_CISPO;
    r = run(&c, &config);
    assert_true(r.clip_frac > 26.0 / 83); /* both sides, whatever the sign of the advantage */
    json_decref(j);
}

static void the_gap_is_the_largest_distance_of_a_token_with_weight(void **state)
{
    struct loss_config config = loss_defaults(LOSS_IMPORTANCE_SAMPLING);
    struct call c = {0};

    (void)state;
    point(&c, 2, 3);
    for (int i = 0; i < c.n; i++) {
        c.weights[i] = c.mask[i] = c.advantages[i] = 1;
        c.lp[i] = c.old[i] = -1.5f;
    }
    assert_true(run(&c, &config).gap == 0);
    c.old[0] = -9; /* without weight */
    c.weights[0] = 0;
    c.lp[1] = -1.25f;
    c.lp[4] = -2;
    assert_true(run(&c, &config).gap == 0.5);
    config.kind = LOSS_CROSS_ENTROPY;
    assert_true(run(&c, &config).gap == 0);
}

/* exp of the distance is beyond a double: losses that cut it, or do not read it, know their number.
 */
static void a_ratio_that_overflows_fails_only_what_it_is_a_factor_of(void **state)
{
    static const struct {
        enum loss_kind kind;
        float advantage;
        double loss; /* of each token */
        bool finite;
    } cases[] = {
        {LOSS_TRUNCATED_IMPORTANCE_SAMPLING, 3, 2.0 * 3 * 1.5, true},
        {LOSS_CISPO, -2, (double)1.2f * -2 * 1.5, true},
        {LOSS_PPO_CLIP, 2, (double)1.2f * -2, true},
        {LOSS_GRPO, 2, (double)1.2f * -2, true},
        {LOSS_DRO, 1, 1.5 + (double)0.05f / 2 * 998.5 * 998.5, true},
        {LOSS_IMPORTANCE_SAMPLING, 0, 0, true},
        {LOSS_PPO_CLIP, 0, 0, true},
        {LOSS_IMPORTANCE_SAMPLING, 1, 0, false},
        {LOSS_PPO_CLIP, -1, 0, false},
    };
    struct call c = {0};

    (void)state;
    point(&c, 2, 3);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct loss_config config = loss_defaults(cases[k].kind);
        struct loss_result r;

        for (int i = 0; i < c.n; i++) {
            c.weights[i] = c.mask[i] = 1;
            c.advantages[i] = cases[k].advantage;
            c.lp[i] = -1.5f;
            c.old[i] = -1000;
        }
        r = run(&c, &config);
        assert_int_equal(isfinite(r.loss), cases[k].finite);
        assert_true(r.ratio == (double)FLT_MAX); /* the most that a ratio counts in metrics */
        assert_true(isfinite(r.approx_kl) && r.approx_kl > 0 && r.gap == 998.5);
        if (cases[k].finite)
            assert_true(fabs(r.loss - cases[k].loss) <= 1e-9 * fabs(cases[k].loss));
        for (int i = 0; i < c.n; i++)
            assert_int_equal(isfinite(c.elementwise[i]) && isfinite(c.coef[i]), cases[k].finite);
    }
    c.old[0] = -FLT_MAX;
    struct loss_config config = loss_defaults(LOSS_CISPO);
    struct loss_result r = run(&c, &config);

    assert_true(isfinite(r.loss) && isfinite(r.ratio) && r.approx_kl >= 0);
}

/* ---- made up ---- */

/* Positions with weights of 0, masked, ignored; ratios within and beyond the bounds. */
static void fill(struct call *c)
{
    *c = (struct call){0};
    for (int i = 0; i < 24; i++) {
        c->targets[i] = i == 5 ? -100 : i;
        c->weights[i] = i == 3 ? 0 : 0.5f + 0.25f * (float)(i % 4);
        c->mask[i] = i == 9 ? 0 : 1;
        c->lp[i] = -0.3f - 0.11f * (float)i;
        c->old[i] = c->lp[i] + 0.07f * (float)(i % 9 - 4);
        c->advantages[i] = 0.2f * (float)(i % 7 - 3);
        c->surrogate[i] = 0.1f * (float)(i % 5 - 2);
    }
    point(c, 9, 15);
}

/* What the loss would be if the coefficients that count as constants were constants: the slope is
 * its derivative then. Differences need no such trick for the other losses. */
static bool has_constant_coefficient(enum loss_kind k)
{
    return k == LOSS_CISPO || k == LOSS_TRUNCATED_IMPORTANCE_SAMPLING;
}

static void check_slopes(struct call *c, const struct loss_config *config)
{
    const float h = 1e-3f;
    float coef[MAX];

    run(c, config);
    memcpy(coef, c->coef, sizeof coef);
    for (int i = 0; i < c->n; i++) {
        float was = c->lp[i];

        c->lp[i] = was + h;
        double step = (double)c->lp[i], up = run(c, config).loss;

        c->lp[i] = was - h;
        step -= (double)c->lp[i];
        double slope = (up - run(c, config).loss) / step;

        c->lp[i] = was;
        if (fabs(slope - (double)coef[i]) > 1e-4)
            fail_msg("loss %d [%d]: slope %g, differences %g", (int)config->kind, i,
                     (double)coef[i], slope);
    }
}

static void slopes_are_the_differences_of_the_loss(void **state)
{
    struct call c;

    (void)state;
    for (int k = 0; k < LOSS_KINDS; k++)
        for (int sum = 0; sum < 2; sum++) {
            struct loss_config config = loss_defaults((enum loss_kind)k);

            config.sum = sum;
            fill(&c);
            if (!has_constant_coefficient(config.kind))
                check_slopes(&c, &config);
        }
}

static void constant_coefficients_weigh_the_slope(void **state)
{
    struct loss_config config = loss_defaults(LOSS_CISPO);
    struct call c;

    (void)state;
    config.sum = true;
    for (int pass = 0; pass < 2; pass++) {
        fill(&c);
        run(&c, &config);
        for (int i = 0; i < c.n; i++) {
            double r = exp((double)c.lp[i] - (double)c.old[i]), k = fmin(fmax(r, 0.8), 1.2);
            double w = c.targets[i] < 0 ? 0 : (double)c.weights[i] * (double)c.mask[i];

            k = pass ? fmin(r, 1.1) : k;
            assert_true(fabs((double)c.coef[i] + w * k * (double)c.advantages[i]) < 1e-6);
            assert_true(fabs((double)c.elementwise[i] +
                             w * k * (double)c.advantages[i] * (double)c.lp[i]) < 1e-6);
        }
        config = loss_defaults(LOSS_TRUNCATED_IMPORTANCE_SAMPLING);
        config.sum = true;
        config.cap = 1.1f;
    }
}

static void the_mean_is_over_the_weights_of_the_whole_call(void **state)
{
    struct loss_config config = loss_defaults(LOSS_CROSS_ENTROPY);
    struct call c = {0};

    (void)state;
    for (int i = 0; i < 8; i++) {
        c.weights[i] = c.mask[i] = 1;
        c.lp[i] = i == 0 ? -2 : i == 1 ? -4 : -1;
    }
    point(&c, 2, 6);
    struct loss_result r = run(&c, &config);

    assert_true(r.sum == 12 && r.weight_sum == 8 && r.tokens == 8);
    assert_true(r.loss == 1.5); /* not 2, the mean of the datums' means */
    config.sum = true;
    assert_true(run(&c, &config).loss == 12);
}

static void grpo_averages_each_datum_first(void **state)
{
    struct loss_config config = loss_defaults(LOSS_GRPO);
    struct call c = {0};

    (void)state;
    for (int i = 0; i < 8; i++) {
        c.weights[i] = c.mask[i] = 1;
        c.lp[i] = c.old[i] = -1;
        c.advantages[i] = i < 2 ? 1 : -2;
    }
    point(&c, 2, 6);
    struct loss_result r = run(&c, &config);

    assert_true(r.loss == 0.5 && r.sum == 10); /* (-1 + 2) / 2; -2 + 12 */
    assert_true(c.coef[0] == -0.25f && fabsf(c.coef[7] - 2.0f / 12) < 1e-7f);
    c.weights[0] = c.weights[1] = 0;
    assert_true(run(&c, &config).loss == 2); /* a datum without weight does not count */
    config.sum = true;
    assert_true(run(&c, &config).loss == 12);
}

static void surrogate_is_summed_and_knows_no_weights(void **state)
{
    struct loss_config config = loss_defaults(LOSS_SURROGATE);
    struct call c;
    double want = 0;

    (void)state;
    fill(&c);
    for (int i = 0; i < c.n; i++)
        want += c.targets[i] < 0 ? 0 : (double)c.surrogate[i] * (double)c.lp[i];
    assert_true(fabs(run(&c, &config).loss - want) < 1e-12);
    for (int i = 0; i < c.n; i++)
        assert_true(c.coef[i] == (c.targets[i] < 0 ? 0 : c.surrogate[i]));
}

static void bounds_are_on_the_ratio_itself(void **state)
{
    struct loss_config config = loss_defaults(LOSS_PPO_CLIP);
    struct call c = {.weights = {1, 1}, .mask = {1, 1}, .advantages = {1, 1}};

    (void)state;
    c.lp[0] = logf(1.5f);
    c.lp[1] = logf(1.25f);
    point(&c, 1, 1);
    config.sum = true;
    config.high = 1.3f;
    struct loss_result r = run(&c, &config);

    assert_true(fabs(r.loss + 1.3 + 1.25) < 1e-6);
    assert_true(c.coef[0] == 0 && fabsf(c.coef[1] + 1.25f) < 1e-6f);
    assert_true(r.clip_frac == 0.5);
}

static void a_position_of_weight_zero_says_nothing(void **state)
{
    struct call c;

    (void)state;
    for (int k = 0; k < LOSS_KINDS; k++) {
        struct loss_config config = loss_defaults((enum loss_kind)k);

        fill(&c);
        if (config.kind == LOSS_SURROGATE)
            c.targets[3] = -100;
        struct loss_result before = run(&c, &config);

        c.old[3] = -3e38f; /* a ratio beyond any number */
        c.advantages[3] = 3e38f;
        struct loss_result after = run(&c, &config);

        assert_memory_equal(&before, &after, sizeof before);
        assert_true(c.coef[3] == 0 && c.elementwise[3] == 0);
    }
}

static void no_weight_at_all_gives_no_loss_and_no_slope(void **state)
{
    struct call c;

    (void)state;
    for (int k = 0; k < LOSS_KINDS; k++) {
        struct loss_config config = loss_defaults((enum loss_kind)k);

        fill(&c);
        for (int i = 0; i < c.n; i++)
            c.targets[i] = -100;
        struct loss_result r = run(&c, &config);

        assert_true(r.loss == 0 && r.sum == 0 && r.weight_sum == 0 && r.tokens == 0 && !r.counts);
        for (int i = 0; i < c.n; i++)
            assert_true(c.coef[i] == 0);
    }
}

/* Only a division by their sum can make them count for nothing. */
static void weights_that_cancel_count_unless_they_divide(void **state)
{
    struct call c;

    (void)state;
    for (int k = 0; k < LOSS_FORWARD_LOGPROB; k++)
        for (int sum = 0; sum < 2; sum++) {
            struct loss_config config = loss_defaults((enum loss_kind)k);

            config.sum = sum;
            fill(&c);
            for (int i = 0; i < c.n; i++) {
                c.targets[i] = 1;
                c.mask[i] = 1;
                c.weights[i] = i == 2 ? 1 : i == 10 ? -1 : 0;
            }
            struct loss_result r = run(&c, &config);
            bool divided = !sum && config.kind != LOSS_GRPO && config.kind != LOSS_SURROGATE;

            assert_true(config.kind == LOSS_SURROGATE || r.weight_sum == 0);
            assert_true(r.counts == !divided);
            assert_true(divided == (r.loss == 0 && c.coef[2] == 0 && c.coef[10] == 0));
        }
}

static void an_entropy_is_taken_off_the_loss_of_its_token(void **state)
{
    struct call c;

    (void)state;
    for (int k = 0; k < LOSS_KINDS; k++)
        for (int sum = 0; sum < 2; sum++) {
            struct loss_config config = loss_defaults((enum loss_kind)k);

            config.sum = sum;
            fill(&c);
            struct loss_result plain = run(&c, &config);
            float before = c.elementwise[0];

            config.entropy = 0.25f;
            for (int i = 0; i < c.n; i++)
                c.entropy[i] = 0.5f + 0.125f * (float)i;
            struct loss_result r = run(&c, &config);
            double bonus = 0;

            for (int i = 0; i < c.n; i++)
                bonus += (double)c.entropy_coef[i] * (double)c.entropy[i];
            assert_true(fabs(r.loss - plain.loss - bonus) < 1e-6);
            assert_true(c.entropy_coef[3] == 0 && c.entropy_coef[5] == 0 && c.entropy_coef[9] == 0);
            if (k == LOSS_SURROGATE || k == LOSS_FORWARD_LOGPROB) {
                assert_true(!loss_wants_entropy(&config) && bonus == 0 && r.entropy == 0);
                continue;
            }
            assert_true(fabsf(c.elementwise[0] - (before - 0.5f * 0.25f * 0.5f)) < 1e-6f);
            assert_true(r.entropy > 0.5 && r.entropy < 3.5 && loss_wants_entropy(&config));
            if (sum) {
                assert_true(c.entropy_coef[1] == -0.25f * 0.75f);
                assert_true(fabs(bonus + 0.25 * r.entropy * r.weight_sum) < 1e-5);
            }
        }
}

static void vectors_that_are_left_out_count_as_one(void **state)
{
    struct loss_config config = loss_defaults(LOSS_CROSS_ENTROPY);
    struct call c;

    (void)state;
    fill(&c);
    c.data[0].weights = c.data[0].mask = c.data[1].weights = c.data[1].mask = NULL;
    assert_true(run(&c, &config).weight_sum == c.n - 1);
}

static void every_public_name_is_known(void **state)
{
    const char *const *names = loss_names();
    int n = 0;

    (void)state;
    for (; names[n]; n++)
        assert_true(loss_by_name(names[n]) >= 0);
    assert_int_equal(n, 10);
    assert_int_equal(loss_by_name("ppo"), LOSS_PPO_CLIP);
    assert_int_equal(loss_by_name("Cross_Entropy"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_slopes_are_the_recorded_ones),
        cmocka_unit_test(clipped_tokens_are_counted),
        cmocka_unit_test(the_gap_is_the_largest_distance_of_a_token_with_weight),
        cmocka_unit_test(a_ratio_that_overflows_fails_only_what_it_is_a_factor_of),
        cmocka_unit_test(slopes_are_the_differences_of_the_loss),
        cmocka_unit_test(constant_coefficients_weigh_the_slope),
        cmocka_unit_test(the_mean_is_over_the_weights_of_the_whole_call),
        cmocka_unit_test(grpo_averages_each_datum_first),
        cmocka_unit_test(surrogate_is_summed_and_knows_no_weights),
        cmocka_unit_test(bounds_are_on_the_ratio_itself),
        cmocka_unit_test(a_position_of_weight_zero_says_nothing),
        cmocka_unit_test(no_weight_at_all_gives_no_loss_and_no_slope),
        cmocka_unit_test(weights_that_cancel_count_unless_they_divide),
        cmocka_unit_test(an_entropy_is_taken_off_the_loss_of_its_token),
        cmocka_unit_test(vectors_that_are_left_out_count_as_one),
        cmocka_unit_test(every_public_name_is_known),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
