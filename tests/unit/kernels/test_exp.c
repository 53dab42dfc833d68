#include "kern_test.h"

static uint32_t bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

/* Distance from the true value in units of the last place of the result. */
static double error_in_ulp(float x)
{
    double want = exp((double)x);
    float got = kern_exp(x);
    double ulp = ldexp(1, (got >= 0x1p-126f ? ilogbf(got) : -126) - 23);

    return fabs((double)got - want) / ulp;
}

static void normal_results_are_within_one_ulp(void **state)
{
    (void)state;
    for (float x = -87.3f; x < 88.7f; x += 0.00037f)
        assert_true(error_in_ulp(x) < 1.0);
    for (uint32_t u = bits(1e-30f); u < bits(1.0f); u += 9973) {
        assert_true(error_in_ulp(float_of(u)) < 1.0);
        assert_true(error_in_ulp(-float_of(u)) < 1.0);
    }
}

static void denormal_results_are_within_one_step(void **state)
{
    (void)state;
    for (float x = -104.0f; x < -87.3f; x += 0.0003f)
        assert_true(error_in_ulp(x) < 1.0);
}

static void the_ends_are_exact(void **state)
{
    (void)state;
    assert_true(kern_exp(0.0f) == 1.0f && kern_exp(-0.0f) == 1.0f);
    assert_true(kern_exp(INFINITY) == INFINITY && kern_exp(1e30f) == INFINITY);
    assert_true(kern_exp(88.73f) == INFINITY && kern_exp(88.72f) < INFINITY);
    assert_true(kern_exp(-INFINITY) == 0.0f && kern_exp(-1e30f) == 0.0f);
    assert_true(kern_exp(0x1p-149f) == 1.0f);
    assert_true(isnan(kern_exp(NAN)) && isnan(kern_exp(-NAN)));
}

static void it_never_falls_when_x_rises(void **state)
{
    float last = 0;

    (void)state;
    for (float x = -105.0f; x < 90.0f; x += 0.001f) {
        float y = kern_exp(x);

        assert_true(y >= last);
        last = y;
    }
}

/* exp alone: the sum over a block of one, with max 0, is exp(x). */
static void every_variant_has_the_same_exp(void **state)
{
    (void)state;
    FOR_EACH_VARIANT(t)
    for (uint64_t u = 0; u <= UINT32_MAX; u += 9941) {
        float x = float_of((uint32_t)u);
        float got = t->block_sum_exp(&x, 1, 0.0f);

        if (!same_bits(got, kern_exp(x)))
            fail_msg("%s: exp(%a) is %a, not %a", t->name, (double)x, (double)got,
                     (double)kern_exp(x));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normal_results_are_within_one_ulp),
        cmocka_unit_test(denormal_results_are_within_one_step),
        cmocka_unit_test(the_ends_are_exact),
        cmocka_unit_test(it_never_falls_when_x_rises),
        cmocka_unit_test(every_variant_has_the_same_exp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
