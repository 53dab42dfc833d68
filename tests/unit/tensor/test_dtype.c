/* Conversions between float32 and the 16-bit types, and sizes of shapes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

static void every_16_bit_pattern_survives_the_way_through_float32(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 0x10000; v++) {
        uint16_t b = (uint16_t)v;
        uint16_t nan_bf16 = (b & 0x7fff) > 0x7f80 ? 0x40 : 0,
                 nan_f16 = (b & 0x7fff) > 0x7c00 ? 0x200 : 0;

        assert_int_equal(dtype_f32_to_bf16(dtype_bf16_to_f32(b)), b | nan_bf16);
        assert_int_equal(dtype_f32_to_f16(dtype_f16_to_f32(b)), b | nan_f16);
    }
}

/* The value half way between two neighbours goes to the even one; one step beside it to the nearer.
 */
static void rounding_to_f16_is_to_nearest_and_ties_go_to_even(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 0x7bff; v++) {
        float low = dtype_f16_to_f32((uint16_t)v), high = dtype_f16_to_f32((uint16_t)(v + 1));
        float mid = (low + high) / 2;

        assert_int_equal(dtype_f32_to_f16(mid), v + (v & 1));
        assert_int_equal(dtype_f32_to_f16(nextafterf(mid, 0)), v);
        assert_int_equal(dtype_f32_to_f16(nextafterf(mid, INFINITY)), v + 1);
        assert_int_equal(dtype_f32_to_f16(-mid), 0x8000 | (v + (v & 1)));
    }
    assert_int_equal(dtype_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(dtype_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(dtype_f32_to_f16(-1e30f), 0xfc00);
}

static void rounding_to_bf16_is_to_nearest_and_ties_go_to_even(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 0x7f7f; v++) {
        uint32_t mid_bits = v << 16 | 0x8000;
        float mid;

        memcpy(&mid, &mid_bits, sizeof mid);
        assert_int_equal(dtype_f32_to_bf16(mid), v + (v & 1));
        assert_int_equal(dtype_f32_to_bf16(nextafterf(mid, 0)), v);
        assert_int_equal(dtype_f32_to_bf16(nextafterf(mid, INFINITY)), v + 1);
    }
    assert_int_equal(dtype_f32_to_bf16(INFINITY), 0x7f80);
}

static void a_shape_that_overflows_is_refused_unless_a_dimension_is_zero(void **state)
{
    const int64_t huge[3] = {INT64_MAX, INT64_MAX, 0}, pair[1] = {3};
    struct err e = {0};
    size_t n = 1;

    (void)state;
    assert_int_equal(tensor_shape_bytes(DTYPE_F32, 2, huge, &n, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_int_equal(tensor_shape_bytes(DTYPE_F32, 1, huge, &n, &e), -1);
    assert_int_equal(tensor_shape_bytes(DTYPE_F32, 3, huge, &n, &e), 0);
    assert_int_equal(n, 0);
    assert_int_equal(tensor_shape_bytes(DTYPE_F4, 1, pair, &n, &e), -1);
    assert_int_equal(tensor_shape_bytes(DTYPE_BF16, 0, NULL, &n, &e), 0);
    assert_int_equal(n, 2);
}

static void a_dtype_is_found_by_its_exact_name_only(void **state)
{
    enum dtype t;

    (void)state;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const char *name = dtype_name((enum dtype)i);

        assert_int_equal(dtype_parse(name, strlen(name), &t), 0);
        assert_int_equal(t, i);
    }
    assert_int_equal(dtype_parse("bf16", 4, &t), -1);
    assert_int_equal(dtype_parse("BF1", 3, &t), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_pattern_survives_the_way_through_float32),
        cmocka_unit_test(rounding_to_f16_is_to_nearest_and_ties_go_to_even),
        cmocka_unit_test(rounding_to_bf16_is_to_nearest_and_ties_go_to_even),
        cmocka_unit_test(a_shape_that_overflows_is_refused_unless_a_dimension_is_zero),
        cmocka_unit_test(a_dtype_is_found_by_its_exact_name_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
