#include <float.h>

#include "kern_test.h"

static const float special[] = {INFINITY,  -INFINITY, NAN,    0.0f,   -0.0f, 0x1p-149f, -0x1p-140f,
                                0x1p-126f, 3e38f,     -3e38f, 1e-30f, 88.5f, -90.0f,    1000.0f};

enum { N_SPECIAL = sizeof special / sizeof *special };

/* Some elements become values that arithmetic treats in their own way. */
static void sprinkle(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        if (next_random(&seed) % 7 == 0)
            x[i] = special[next_random(&seed) % N_SPECIAL];
}

static void rmsnorm_has_the_bits_of_the_reference(void **state)
{
    enum { ROWS = 3, MAX = 80, LD = 90 };
    float *x = random_floats(ROWS * LD, 1);

    (void)state;
    for (enum kern_dtype dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
        void *w = random_weights(dtype, MAX, 2);

        FOR_EACH_VARIANT(t)
        for (int C = 1; C <= MAX; C++) {
            float *want = random_floats(ROWS * LD, 3);
            float *got = random_floats(ROWS * LD, 3);

            reference_of(t)->rmsnorm(want, LD, x, LD - 1, w, dtype, ROWS, C, 1e-5f);
            t->rmsnorm(got, LD, x, LD - 1, w, dtype, ROWS, C, 1e-5f);
            assert_same(t->name, got, want, ROWS * LD);
            memcpy(got, x, ROWS * LD * sizeof *x);
            t->rmsnorm(got, LD - 1, got, LD - 1, w, dtype, 1, C, 1e-5f); /* in place */
            assert_same(t->name, got, want, (size_t)C);
            free(want);
            free(got);
        }
        free(w);
    }
    free(x);
}

static void rmsnorm_agrees_with_a_sum_in_double(void **state)
{
    enum { C = 576 };
    float *x = random_floats(C, 4);
    float *w = random_floats(C, 5);
    float y[C];
    double squares = 0;

    (void)state;
    for (int c = 0; c < C; c++)
        squares += (double)x[c] * (double)x[c];
    FOR_EACH_VARIANT(t)
    {
        t->rmsnorm(y, C, x, C, w, KERN_F32, 1, C, 1e-6f);
        for (int c = 0; c < C; c++) {
            double want = (double)x[c] / sqrt(squares / C + 1e-6) * (double)w[c];
            assert_true(fabs((double)y[c] - want) <= 1e-6 * fabs(want) + 1e-12);
        }
    }
    free(x);
    free(w);
}

static void rope_has_the_bits_of_the_reference(void **state)
{
    enum { HEADS = 3, MAX = 140 };

    (void)state;
    FOR_EACH_VARIANT(t)
    for (int dim = 2; dim <= MAX; dim += 2) {
        float *cos = random_floats(MAX, 6);
        float *sin = random_floats(MAX, 7);
        float *want = random_floats(HEADS * MAX, 8);
        float *got = random_floats(HEADS * MAX, 8);

        reference_of(t)->rope(want, HEADS, dim, cos, sin);
        t->rope(got, HEADS, dim, cos, sin);
        assert_same(t->name, got, want, HEADS * MAX);
        free(cos);
        free(sin);
        free(want);
        free(got);
    }
}

static void rope_turns_each_pair_by_its_angle(void **state)
{
    (void)state;
    FOR_EACH_VARIANT(t)
    {
        float x[4] = {3, 5, 4, 12};
        const float cos[2] = {0, 0.6f};
        const float sin[2] = {1, 0.8f};

        t->rope(x, 1, 4, cos, sin);
        assert_true(x[0] == -4 && x[2] == 3);
        assert_true(fabsf(x[1] - (5 * 0.6f - 12 * 0.8f)) < 1e-5f);
        assert_true(fabsf(x[3] - (12 * 0.6f + 5 * 0.8f)) < 1e-5f);
    }
}

static void swiglu_and_add_have_the_bits_of_the_reference(void **state)
{
    enum { MAX = 100 };

    (void)state;
    FOR_EACH_VARIANT(t)
    for (size_t n = 0; n <= MAX; n++) {
        float *gate = random_floats(MAX, 9 + n);
        float *up = random_floats(MAX, 10);
        float want[MAX] = {0};
        float got[MAX] = {0};

        sprinkle(gate, MAX, 11 + n);
        reference_of(t)->swiglu(want, gate, up, n);
        t->swiglu(got, gate, up, n);
        assert_same(t->name, got, want, MAX);
        reference_of(t)->add(want, gate, n);
        t->add(got, gate, n);
        assert_same(t->name, got, want, MAX);
        free(gate);
        free(up);
    }
}

static void swiglu_agrees_with_its_formula_in_double(void **state)
{
    (void)state;
    FOR_EACH_VARIANT(t)
    for (float g = -30; g < 30; g += 0.37f) {
        const float up = 1.5f;
        double want = (double)g / (1 + exp(-(double)g)) * 1.5;
        float y;

        t->swiglu(&y, &g, &up, 1);
        assert_true(fabs((double)y - want) <= 4e-7 * fabs(want));
    }
}

static void every_16_bit_float_widens_exactly(void **state)
{
    uint16_t all[256];
    float want[256];
    float got[256];

    (void)state;
    FOR_EACH_VARIANT(t)
    for (enum kern_dtype dtype = KERN_F16; dtype <= KERN_BF16; dtype++)
        for (int high = 0; high < 256; high++) {
            for (int i = 0; i < 256; i++)
                all[i] = (uint16_t)(high << 8 | i);
            reference_of(t)->to_f32(want, all, dtype, 256);
            t->to_f32(got, all, dtype, 256);
            assert_same(t->name, got, want, 256);
        }
}

static double half_value(int h)
{
    int exponent = h >> 10 & 31;
    double fraction = h & 0x3ff;
    double v = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);

    return h & 0x8000 ? -v : v;
}

static void widened_halves_have_the_value_of_their_format(void **state)
{
    (void)state;
    for (int h = 0; h < 65536; h++) {
        uint16_t bits = (uint16_t)h;
        float f;

        kernels_by_name("ref")->to_f32(&f, &bits, KERN_F16, 1);
        if ((h >> 10 & 31) == 31)
            assert_true(h & 0x3ff ? isnan(f) : isinf(f));
        else
            assert_true((double)f == half_value(h) && (signbit(f) != 0) == (h >> 15));
    }
}

static void parts_of_any_length_widen(void **state)
{
    (void)state;
    FOR_EACH_VARIANT(t)
    for (enum kern_dtype dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
        void *w = random_weights(dtype, 70, 12);

        for (size_t n = 0; n <= 70; n++) {
            float want[71] = {0};
            float got[71] = {0};

            reference_of(t)->to_f32(want, w, dtype, n);
            t->to_f32(got, w, dtype, n);
            assert_same(t->name, got, want, 71);
        }
        free(w);
    }
}

static void softmax_parts_have_the_bits_of_the_reference(void **state)
{
    enum { MAX = 1100 };

    (void)state;
    FOR_EACH_VARIANT(t)
    for (int n = 1; n <= MAX; n = n < 70 ? n + 1 : n * 2 - 3)
        for (int odd = 0; odd < 2; odd++) {
            float *x = random_floats(MAX, (uint64_t)n);
            float want = 0;
            float got = 1;
            int at_want = -1;
            int at_got = -2;
            float a;
            float b;

            if (odd)
                sprinkle(x, MAX, (uint64_t)n + 5);
            reference_of(t)->block_max(x, n, &want, &at_want);
            t->block_max(x, n, &got, &at_got);
            assert_same(t->name, &got, &want, 1);
            assert_int_equal(at_got, at_want);
            a = t->block_sum_exp(x, n, got);
            b = reference_of(t)->block_sum_exp(x, n, got);
            assert_same(t->name, &a, &b, 1);
            free(x);
        }
}

static void the_first_of_equal_maxima_wins_and_nan_never_does(void **state)
{
    (void)state;
    FOR_EACH_VARIANT(t)
    {
        float x[40];
        float max;
        int at;

        for (int i = 0; i < 40; i++)
            x[i] = i % 3 ? NAN : -1;
        t->block_max(x, 40, &max, &at);
        assert_true(max == -1 && at == 0);
        x[33] = x[21] = 7;
        t->block_max(x, 40, &max, &at);
        assert_true(max == 7 && at == 21);
        t->block_max(x + 1, 2, &max, &at);
        assert_true(max == -INFINITY && at == 0);
    }
}

static void one_nan_or_infinity_anywhere_is_found_and_minus_infinity_is_none(void **state)
{
    enum { MAX = 70 };
    static const float bad[] = {NAN, -NAN, INFINITY};
    static const float good[] = {-INFINITY, FLT_MAX, -FLT_MAX, FLT_MIN / 2, -0.0f};
    float x[MAX];

    (void)state;
    FOR_EACH_VARIANT(t)
    for (int n = 1; n <= MAX; n++) {
        for (int i = 0; i < MAX; i++)
            x[i] = i < n ? good[i % 5] : NAN;
        assert_true(t->below_infinity(x, n));
        for (int at = 0; at < n; at++) {
            float was = x[at];

            x[at] = bad[(at + n) % 3];
            assert_false(t->below_infinity(x, n));
            x[at] = was;
        }
    }
}

/* One call of many rows, or many calls that hand the state on: the same bits, channel range by
 * range. */
static void short_conv_has_the_bits_of_the_reference_in_any_cut(void **state)
{
    enum { H = 37, ROWS = 11, LDB = 3 * H + 5, LDZ = H + 2 };

    (void)state;
    FOR_EACH_VARIANT(t)
    for (int K = 1; K <= 18; K += K < 5 ? 1 : 13)
        for (enum kern_dtype dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
            float *bcx = random_floats(ROWS * LDB, 13);
            void *taps = random_weights(dtype, (size_t)(H * K), 14);
            void *bias = random_weights(dtype, H, 15);
            float *state_want = random_floats((size_t)(K * H), 16);
            float *state_got = random_floats((size_t)(K * H), 16);
            float *want = random_floats(ROWS * LDZ, 17);
            float *got = random_floats(ROWS * LDZ, 17);

            reference_of(t)->short_conv(want, LDZ, bcx, LDB, ROWS, H, K, taps, dtype, bias,
                                        state_want, 0, H);
            for (int r = 0, n = 1; r < ROWS; r += n, n = n % 4 + 1) {
                n = r + n > ROWS ? ROWS - r : n;
                t->short_conv(got + r * LDZ, LDZ, bcx + r * LDB, LDB, n, H, K, taps, dtype, bias,
                              state_got, 0, 19);
                t->short_conv(got + r * LDZ, LDZ, bcx + r * LDB, LDB, n, H, K, taps, dtype, bias,
                              state_got, 19, H);
            }
            assert_same(t->name, got, want, ROWS * LDZ);
            assert_same(t->name, state_got, state_want, (size_t)(K * H));
            free(bcx);
            free(taps);
            free(bias);
            free(state_want);
            free(state_got);
            free(want);
            free(got);
        }
}

static void short_conv_follows_its_formula(void **state)
{
    (void)state;
    FOR_EACH_VARIANT(t)
    {
        /* one channel: B, C, X of two rows; K = 3; two earlier inputs 10 and 20 */
        const float bcx[6] = {2, 3, 5, 1, 2, 7};
        const float taps[3] = {1, 100, 10000};
        const float bias[1] = {0.5f};
        float before[2] = {10, 20};
        float z[2];

        t->short_conv(z, 1, bcx, 3, 2, 1, 3, taps, KERN_F32, bias, before, 0, 1);
        assert_true(z[0] == 3 * (10 + 2000 + 100000 + 0.5f));
        assert_true(z[1] == 2 * (20 + 1000 + 70000 + 0.5f));
        assert_true(before[0] == 10 && before[1] == 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_has_the_bits_of_the_reference),
        cmocka_unit_test(rmsnorm_agrees_with_a_sum_in_double),
        cmocka_unit_test(rope_has_the_bits_of_the_reference),
        cmocka_unit_test(rope_turns_each_pair_by_its_angle),
        cmocka_unit_test(swiglu_and_add_have_the_bits_of_the_reference),
        cmocka_unit_test(swiglu_agrees_with_its_formula_in_double),
        cmocka_unit_test(every_16_bit_float_widens_exactly),
        cmocka_unit_test(widened_halves_have_the_value_of_their_format),
        cmocka_unit_test(parts_of_any_length_widen),
        cmocka_unit_test(softmax_parts_have_the_bits_of_the_reference),
        cmocka_unit_test(the_first_of_equal_maxima_wins_and_nan_never_does),
        cmocka_unit_test(one_nan_or_infinity_anywhere_is_found_and_minus_infinity_is_none),
        cmocka_unit_test(short_conv_has_the_bits_of_the_reference_in_any_cut),
        cmocka_unit_test(short_conv_follows_its_formula),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
