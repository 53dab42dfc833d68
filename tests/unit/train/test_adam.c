/* The optimizer's arithmetic against numbers in double precision, and its bits against itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "tensor/dtype.h"
#include "train/adam.h"
#include "train/trainer.h"

enum { N = 1000 };

static json_t *cases(void)
{
    struct err e = {0};
    json_t *j = json_parse_file(AT_FDCWD, "tests/vectors/cases/adam_cases.json", 1 << 16, &e);

    if (!j)
        fail_msg("%s", e.msg);
    return j;
}

static double num(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    assert_true(json_is_number(v));
    return json_number_value(v);
}

static double item(const json_t *o, const char *key, size_t i)
{
    return json_number_value(json_array_get(json_object_get(o, key), i));
}

static struct adam settings(const json_t *o)
{
    return (struct adam){.lr = num(o, "learning_rate"),
                         .beta1 = num(o, "beta1"),
                         .beta2 = num(o, "beta2"),
                         .eps = num(o, "eps"),
                         .weight_decay = num(o, "weight_decay")};
}

/* One parameter, one step. */
struct scalar {
    float p, m, v;
    int64_t step;
};

static void take_step(struct scalar *s, const struct adam *a, double gradient)
{
    float g = (float)gradient;
    struct adam_factors f = adam_factors_of(a, ++s->step, fabs(gradient));

    adam_update(&f, &s->p, &s->m, &s->v, &g, 1);
    assert_true(g == 0);
}

static void close_to(double got, double want, double relative)
{
    if (!(fabs(got - want) <= relative * fabs(want)))
        fail_msg("%.9g, expected %.9g", got, want);
}

static void eight_steps_are_the_recorded_ones(void **state)
{
    json_t *j = cases();
    const json_t *c = json_object_get(j, "eight_steps");
    struct adam a = settings(json_object_get(c, "adam"));
    struct scalar s = {.p = (float)num(c, "start")};

    (void)state;
    for (size_t i = 0; i < 8; i++) {
        take_step(&s, &a, item(c, "gradients", i));
        close_to((double)s.p, item(c, "after_each_step", i), 1e-5);
    }
    json_decref(j);
}

static void a_restored_state_goes_on_as_if_never_stopped(void **state)
{
    json_t *j = cases();
    const json_t *eight = json_object_get(j, "eight_steps"),
                 *c = json_object_get(j, "resume_after_four"),
                 *saved = json_object_get(c, "state_to_save");
    struct adam a = settings(json_object_get(eight, "adam"));
    struct scalar s = {(float)num(saved, "parameter"), (float)num(saved, "m"),
                       (float)num(saved, "v"), (int64_t)num(saved, "step")};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        take_step(&s, &a, item(eight, "gradients", i + 4));
        close_to((double)s.p, item(c, "right", i), 1e-5);
        assert_true(fabs((double)s.p - item(c, "wrong_if_moments_were_dropped", i)) > 1e-3);
    }
    json_decref(j);
}

/* Every step takes 4194.3 units in the last place of a float off the parameter: rounding alone is
 * worth 7e-5 after a thousand. */
static void the_step_count_has_no_end(void **state)
{
    json_t *j = cases();
    const json_t *c = json_object_get(j, "thousand_steps");
    struct adam a = settings(c);
    struct scalar s = {.p = (float)num(c, "start")};

    (void)state;
    for (int i = 0; i < 1000; i++)
        take_step(&s, &a, num(c, "gradient_each_step"));
    close_to((double)s.p, num(c, "right"), 1e-4);
    json_decref(j);
}

static void clipping_is_one_factor_from_the_norm_of_all(void **state)
{
    json_t *j = cases();
    const json_t *c = json_object_get(j, "clip_by_global_norm");
    float g[2] = {(float)item(c, "gradients", 0), (float)item(c, "gradients", 1)};
    struct adam a = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .clip = num(c, "grad_clip_norm")};
    double norm = sqrt(adam_sum_squares(g, 2));

    (void)state;
    close_to(norm, num(c, "norm"), 1e-12);
    for (size_t i = 0; i < 2; i++)
        close_to((double)(g[i] * adam_factors_of(&a, 1, norm).clip), item(c, "right", i), 1e-6);
    assert_true(adam_factors_of(&a, 1, 0.5).clip == 1); /* short enough already */
    a.clip = 0;
    assert_true(adam_factors_of(&a, 1, norm).clip == 1);
    a.clip = -1;
    assert_true(adam_factors_of(&a, 1, norm).clip == 1);
    json_decref(j);
}

/* ---- bits ---- */

struct arrays {
    float p[N], m[N], v[N], g[N];
};

static void fill(struct arrays *a)
{
    for (int i = 0; i < N; i++) {
        a->p[i] = sinf((float)i);
        a->m[i] = 0.01f * cosf((float)i);
        a->v[i] = 1e-4f * (1 + sinf(3 * (float)i));
        a->g[i] = 0.1f * sinf(7 * (float)i);
    }
}

static const struct adam usual = {1e-3, 0.9, 0.95, 1e-8, 0.01, 1};

static void pieces_of_any_size_give_the_same_bits(void **state)
{
    static const size_t sizes[] = {1, 3, 16, 17, 250, N};
    struct adam_factors f = adam_factors_of(&usual, 7, 3);
    static struct arrays whole, cut;

    (void)state;
    fill(&whole);
    adam_update(&f, whole.p, whole.m, whole.v, whole.g, N);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        fill(&cut);
        for (size_t at = 0; at < N; at += sizes[s]) {
            size_t n = N - at < sizes[s] ? N - at : sizes[s];

            adam_update(&f, cut.p + at, cut.m + at, cut.v + at, cut.g + at, n);
        }
        assert_memory_equal(&cut, &whole, sizeof whole);
    }
}

/* The formulas of adam.h, one operation at a time. */
static void every_operation_is_rounded_in_its_order(void **state)
{
    struct adam_factors f = adam_factors_of(&usual, 3, 5);
    static struct arrays a, b;

    (void)state;
    fill(&a);
    fill(&b);
    adam_update(&f, a.p, a.m, a.v, a.g, N);
    for (int i = 0; i < N; i++) {
        volatile float g = b.g[i] * f.clip, m1 = f.beta1 * b.m[i], m2 = f.rest1 * g, m = m1 + m2;
        volatile float v1 = f.beta2 * b.v[i], v2 = f.rest2 * g, v3 = v2 * g, v = v1 + v3;
        volatile float root = sqrtf(v), r = root / f.root, d = r + f.eps, q = m / d;
        volatile float step = f.rate * q, p1 = b.p[i] * f.decay, p = p1 - step;

        assert_true(a.m[i] == m && a.v[i] == v && a.p[i] == p && a.g[i] == 0);
    }
}

static void the_largest_value_is_known_before_it_is_written(void **state)
{
    struct adam_factors f = adam_factors_of(&usual, 1, 1);
    static struct arrays a, b;
    float largest = 0;

    (void)state;
    fill(&a);
    a.p[700] = -80000;
    b = a;
    float said = adam_largest(&f, b.p, b.m, b.v, b.g, N);

    assert_memory_equal(&a, &b, sizeof a);
    adam_update(&f, a.p, a.m, a.v, a.g, N);
    for (int i = 0; i < N; i++)
        largest = fmaxf(largest, fabsf(a.p[i]));
    assert_true(said == largest && said > ADAM_F16_OVERFLOW);
    b.p[3] = NAN;
    assert_true(isnan(adam_largest(&f, b.p, b.m, b.v, b.g, N)));
}

static void a_sum_of_squares_shows_what_is_not_finite(void **state)
{
    static struct arrays a;
    double want = 0;

    (void)state;
    fill(&a);
    for (int i = 0; i < N; i++)
        want += (double)a.g[i] * (double)a.g[i];
    close_to(adam_sum_squares(a.g, N), want, 1e-12);
    a.g[1] = 3e38f;
    assert_true(isfinite(adam_sum_squares(a.g, N)));
    a.g[999] = INFINITY;
    assert_true(!isfinite(adam_sum_squares(a.g, N)));
    a.g[999] = NAN;
    assert_true(!isfinite(adam_sum_squares(a.g, N)));
}

/* Every upper half with lower halves around the tie: as the definition of each type rounds. */
static void storing_rounds_to_nearest_even(void **state)
{
    static const uint32_t low[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff};

    (void)state;
    for (uint32_t high = 0; high < 0x10000; high++)
        for (size_t i = 0; i < sizeof low / sizeof *low; i++) {
            uint32_t u = high << 16 | low[i];
            uint16_t bf16, f16;
            float x;

            memcpy(&x, &u, sizeof x);
            adam_store(&bf16, KERN_BF16, &x, 1);
            adam_store(&f16, KERN_F16, &x, 1);
            assert_int_equal(bf16, dtype_f32_to_bf16(x));
            assert_int_equal(f16, dtype_f32_to_f16(x));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_steps_are_the_recorded_ones),
        cmocka_unit_test(a_restored_state_goes_on_as_if_never_stopped),
        cmocka_unit_test(the_step_count_has_no_end),
        cmocka_unit_test(clipping_is_one_factor_from_the_norm_of_all),
        cmocka_unit_test(pieces_of_any_size_give_the_same_bits),
        cmocka_unit_test(every_operation_is_rounded_in_its_order),
        cmocka_unit_test(the_largest_value_is_known_before_it_is_written),
        cmocka_unit_test(a_sum_of_squares_shows_what_is_not_finite),
        cmocka_unit_test(storing_rounds_to_nearest_even),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
