/* Memory that is freed all at once. */
#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"

static void pieces_are_aligned_keep_their_address_and_do_not_overlap(void **state)
{
    struct arena a = {0};
    unsigned char *piece[500];

    (void)state;
    for (size_t i = 0; i < 500; i++) {
        piece[i] = arena_alloc(&a, i);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % alignof(max_align_t), 0);
        memset(piece[i], (int)(i & 0xff), i);
    }
    for (size_t i = 0; i < 500; i++)
        for (size_t k = 0; k < i; k++)
            assert_int_equal(piece[i][k], i & 0xff);
    arena_release(&a);
    assert_int_equal(a.used, 0);
}

static void a_piece_larger_than_any_chunk_is_given(void **state)
{
    struct arena a = {0};
    char *big;

    (void)state;
    assert_non_null(arena_alloc(&a, 8));
    big = arena_alloc(&a, 10 << 20);
    assert_non_null(big);
    big[(10 << 20) - 1] = 1;
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX / 2 + 1));
    arena_release(&a);
}

static void a_reset_arena_uses_its_memory_again(void **state)
{
    struct arena a = {0};
    char *first;

    (void)state;
    arena_reset(&a);
    first = arena_strdup(&a, "abc", 3);
    arena_reset(&a);
    assert_int_equal(a.used, 0);
    assert_ptr_equal(arena_strdup(&a, "xy", 2), first);
    assert_string_equal(first, "xy");
    arena_release(&a);
}

static void a_copy_may_hold_nul_and_ends_with_one(void **state)
{
    struct arena a = {0};
    char *copy = arena_strdup(&a, "a\0b", 3);

    (void)state;
    assert_memory_equal(copy, "a\0b\0", 4);
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_keep_their_address_and_do_not_overlap),
        cmocka_unit_test(a_piece_larger_than_any_chunk_is_given),
        cmocka_unit_test(a_reset_arena_uses_its_memory_again),
        cmocka_unit_test(a_copy_may_hold_nul_and_ends_with_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
