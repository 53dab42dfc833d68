#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"

/* Known answers of Philox 4x32-10, as published with the algorithm (Random123, kat_vectors). */
static void philox_gives_the_published_numbers(void **state)
{
    static const uint32_t all = 0xffffffff;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{all, all, all, all}, {all, all}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];

        rng_philox(out, known[i].counter, known[i].key);
        for (int j = 0; j < 4; j++)
            assert_int_equal(out[j], known[i].out[j]);
    }
}

static void every_part_of_the_key_changes_the_number(void **state)
{
    uint64_t base = rng_u64(1, 2, 3, 4);

    (void)state;
    assert_true(base == rng_u64(1, 2, 3, 4));
    assert_true(base != rng_u64(2, 2, 3, 4));
    assert_true(base != rng_u64(1 + (1ull << 32), 2, 3, 4));
    assert_true(base != rng_u64(1, 3, 3, 4));
    assert_true(base != rng_u64(1, 2, 4, 4));
    assert_true(base != rng_u64(1, 2, 3 + (1ull << 32), 4));
    assert_true(base != rng_u64(1, 2, 3, 5));
}

static void unit_numbers_fill_the_interval_evenly(void **state)
{
    enum { N = 20000, BINS = 10 };
    int bin[BINS] = {0};
    double sum = 0;

    (void)state;
    for (int i = 0; i < N; i++) {
        double u = rng_unit(7, 0, (uint64_t)i, 0);

        assert_true(u >= 0 && u < 1);
        bin[(int)(u * BINS)]++;
        sum += u;
    }
    assert_true(sum / N > 0.49 && sum / N < 0.51);
    for (int i = 0; i < BINS; i++) /* a fixed sequence; five standard deviations are 212 */
        assert_in_range(bin[i], N / BINS - 212, N / BINS + 212);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(every_part_of_the_key_changes_the_number),
        cmocka_unit_test(unit_numbers_fill_the_interval_evenly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
