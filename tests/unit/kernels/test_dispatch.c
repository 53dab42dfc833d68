#include "kern_test.h"

static void the_reference_runs_everywhere(void **state)
{
    (void)state;
    assert_non_null(kernels_by_name("ref"));
    assert_non_null(kernels_by_name("bf16-ref"));
    assert_string_equal(kernels_by_name("ref")->name, "ref");
}

static void unknown_names_have_no_table(void **state)
{
    (void)state;
    assert_null(kernels_by_name("sse9"));
    assert_null(kernels_by_name(""));
}

static void the_pick_is_the_best_table_of_this_cpu(void **state)
{
    const struct kernels *exact = kernels_pick(false);
    const struct kernels *best = kernels_by_name("avx512");

    (void)state;
    assert_string_equal(exact->numerics, "exact-1");
    if (!best)
        best = kernels_by_name("avx2");
    assert_ptr_equal(exact, best ? best : kernels_by_name("ref"));
}

static void fast_falls_back_to_exact_without_the_instruction(void **state)
{
    const struct kernels *fast = kernels_pick(true);
    const struct kernels *bf16 = kernels_by_name("bf16");

    (void)state;
    assert_ptr_equal(fast, bf16 ? bf16 : kernels_pick(false));
}

static void no_table_has_a_hole(void **state)
{
    (void)state;
    FOR_EACH_VARIANT(t)
    {
        assert_true(t->name && t->numerics && t->linear_x_bytes && t->linear_x_prepare);
        assert_true(t->linear && t->rmsnorm && t->rope && t->swiglu && t->add && t->to_f32);
        assert_true(t->kv_store && t->attention && t->attention_scratch && t->short_conv);
        assert_true(t->block_max && t->block_sum_exp && t->below_infinity);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_runs_everywhere),
        cmocka_unit_test(unknown_names_have_no_table),
        cmocka_unit_test(the_pick_is_the_best_table_of_this_cpu),
        cmocka_unit_test(fast_falls_back_to_exact_without_the_instruction),
        cmocka_unit_test(no_table_has_a_hole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
