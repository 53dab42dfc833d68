#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/histogram.h"

static const double bounds[] = {0.1, 1, 10};

static void a_value_on_a_bound_belongs_below_it(void **state)
{
    struct histogram h = HISTOGRAM(bounds);

    (void)state;
    histogram_add(&h, 0);
    histogram_add(&h, 0.1);
    histogram_add(&h, 0.11);
    histogram_add(&h, 10);
    histogram_add(&h, 10.5);
    histogram_add(&h, INFINITY);
    assert_int_equal(h.counts[0], 2);
    assert_int_equal(h.counts[1], 1);
    assert_int_equal(h.counts[2], 1);
    assert_int_equal(h.counts[3], 2);
    assert_int_equal(histogram_total(&h), 6);
}

static void the_sum_is_that_of_the_values_and_nan_is_none(void **state)
{
    struct histogram h = HISTOGRAM(bounds);

    (void)state;
    histogram_add(&h, 2);
    histogram_add(&h, NAN);
    histogram_add(&h, 0.5);
    assert_true(h.sum == 2.5);
    assert_int_equal(histogram_total(&h), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_on_a_bound_belongs_below_it),
        cmocka_unit_test(the_sum_is_that_of_the_values_and_nan_is_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
