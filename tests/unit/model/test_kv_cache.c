#include "fixture.h"

#include <sys/mman.h>

enum { HEAD_DIM = 8, BLOCK_BYTES = 2 * 2 * 2 * HEAD_DIM * KV_BLOCK * 4 };

/* Two attention layers, two KV heads; optionally two convolution layers. */
static struct model_config shape(bool conv)
{
    struct model_config c = {.n_layers = conv ? 4 : 2,
                             .hidden = 16,
                             .n_heads = 4,
                             .n_kv_heads = 2,
                             .head_dim = HEAD_DIM,
                             .max_positions = 1 << 20};

    if (conv) {
        c.is_conv[0] = c.is_conv[2] = 1;
        c.n_conv_layers = 2;
        c.conv_taps = 3;
    }
    return c;
}

static struct kv_cache *cache(bool conv, int blocks)
{
    struct model_config c = shape(conv);
    struct err e = {0};
    struct kv_cache *kv = kv_cache_new(&c, KV_ALL_LAYERS, (size_t)blocks * BLOCK_BYTES + 100, &e);

    must(kv ? 0 : -1, &e);
    assert_int_equal(kv_cache_block_bytes(kv), BLOCK_BYTES);
    assert_int_equal(kv_cache_blocks(kv), blocks);
    return kv;
}

static struct kv_seq *sequence(struct kv_cache *kv)
{
    struct err e = {0};
    struct kv_seq *s = kv_seq_new(kv, &e);

    must(s ? 0 : -1, &e);
    return s;
}

static void grow(struct kv_seq *s, int n)
{
    struct err e = {0};

    must(kv_seq_extend(s, n, &e), &e);
    kv_seq_advance(s, n);
}

static void blocks_are_taken_when_used_and_given_back(void **state)
{
    struct kv_cache *kv = cache(false, 4);
    struct kv_seq *s = sequence(kv);

    (void)state;
    assert_int_equal(kv_cache_blocks_used(kv), 0);
    grow(s, 1);
    assert_int_equal(kv_cache_blocks_used(kv), 1);
    grow(s, 63);
    assert_int_equal(kv_cache_blocks_used(kv), 1);
    grow(s, 1);
    assert_int_equal(kv_cache_blocks_used(kv), 2);
    assert_int_equal(kv_seq_length(s), 65);
    assert_int_equal(kv_cache_free_positions(kv), 128);
    kv_seq_free(s);
    assert_int_equal(kv_cache_blocks_used(kv), 0);
    kv_cache_free(kv);
}

static void pages_do_not_overlap(void **state)
{
    struct kv_cache *kv = cache(false, 2);
    struct kv_seq *s = sequence(kv);
    enum { PAGE = HEAD_DIM * KV_BLOCK };
    float mark = 1;

    (void)state;
    grow(s, 128);
    for (int pass = 0; pass < 2; pass++, mark = 1)
        for (int b = 0; b < 2; b++)
            for (int l = 0; l < 2; l++)
                for (int h = 0; h < 2; h++, mark++) {
                    float *k = kv_seq_k_page(s, b, l, h), *v = kv_seq_v_page(s, b, l, h);

                    for (int i = 0; i < PAGE && pass == 0; i++) {
                        k[i] = mark;
                        v[i] = -mark;
                    }
                    assert_true(k[0] == mark && k[PAGE - 1] == mark);
                    assert_true(v[0] == -mark && v[PAGE - 1] == -mark);
                }
    kv_seq_free(s);
    kv_cache_free(kv);
}

static void a_promise_is_kept_against_other_sequences(void **state)
{
    struct kv_cache *kv = cache(false, 4);
    struct kv_seq *a = sequence(kv), *b = sequence(kv);
    struct err e = {0};

    (void)state;
    must(kv_seq_reserve(a, 3 * KV_BLOCK, &e), &e);
    assert_int_equal(kv_cache_free_positions(kv), KV_BLOCK);
    assert_int_equal(kv_seq_reserve(b, KV_BLOCK + 1, &e), -1);
    assert_int_equal(e.code, ERR_SPACE);
    grow(b, KV_BLOCK);
    assert_int_equal(kv_seq_extend(b, 1, &e), -1); /* the rest is promised */
    grow(a, 3 * KV_BLOCK);
    assert_int_equal(kv_cache_free_positions(kv), 0);
    kv_seq_free(a);
    grow(b, 1);
    assert_int_equal(kv_cache_free_positions(kv), 2 * KV_BLOCK);
    kv_seq_free(b);
    assert_int_equal(kv_cache_free_positions(kv), 4 * KV_BLOCK);
    kv_cache_free(kv);
}

static void an_unused_promise_goes_back(void **state)
{
    struct kv_cache *kv = cache(false, 4);
    struct kv_seq *a = sequence(kv);
    struct err e = {0};

    (void)state;
    must(kv_seq_reserve(a, 4 * KV_BLOCK, &e), &e);
    must(kv_seq_reserve(a, 2 * KV_BLOCK, &e), &e); /* never less than before */
    assert_int_equal(kv_cache_free_positions(kv), 0);
    grow(a, 10);
    kv_seq_free(a);
    assert_int_equal(kv_cache_free_positions(kv), 4 * KV_BLOCK);
    kv_cache_free(kv);
}

static void a_step_that_fails_gives_its_blocks_back(void **state)
{
    struct kv_cache *kv = cache(false, 2);
    struct kv_seq *a = sequence(kv);
    struct err e = {0};

    (void)state;
    must(kv_seq_reserve(a, 2 * KV_BLOCK, &e), &e);
    must(kv_seq_extend(a, 2 * KV_BLOCK, &e), &e);
    kv_seq_trim(a);
    assert_int_equal(kv_cache_blocks_used(kv), 0);
    assert_int_equal(kv_cache_free_positions(kv), 0); /* still promised */
    kv_seq_free(a);
    kv_cache_free(kv);
}

static void a_fork_shares_full_blocks_and_copies_the_partial_one(void **state)
{
    struct kv_cache *kv = cache(false, 6);
    struct kv_seq *a = sequence(kv), *b;
    struct err e = {0};

    (void)state;
    grow(a, 2 * KV_BLOCK + 5);
    kv_seq_k_page(a, 2, 1, 1)[3] = 7;
    b = kv_seq_fork(a, 2 * KV_BLOCK + 5, &e);
    must(b ? 0 : -1, &e);
    assert_int_equal(kv_cache_blocks_used(kv), 4);
    assert_ptr_equal(kv_seq_k_page(a, 1, 0, 0), kv_seq_k_page(b, 1, 0, 0));
    assert_ptr_not_equal(kv_seq_k_page(a, 2, 0, 0), kv_seq_k_page(b, 2, 0, 0));
    assert_true(kv_seq_k_page(b, 2, 1, 1)[3] == 7);
    kv_seq_free(a);
    assert_int_equal(kv_cache_blocks_used(kv), 3);
    must(kv_seq_reserve(b, 4 * KV_BLOCK, &e), &e); /* shared blocks count as held */
    assert_int_equal(kv_cache_free_positions(kv), 2 * KV_BLOCK);
    kv_seq_free(b);
    assert_int_equal(kv_cache_free_positions(kv), 6 * KV_BLOCK);
    kv_cache_free(kv);
}

static void a_fork_needs_a_free_block_for_its_partial_one(void **state)
{
    struct kv_cache *kv = cache(false, 2);
    struct kv_seq *a = sequence(kv), *b;
    struct err e = {0};

    (void)state;
    grow(a, KV_BLOCK + 1);
    assert_null(kv_seq_fork(a, KV_BLOCK + 1, &e));
    assert_int_equal(e.code, ERR_SPACE);
    b = kv_seq_fork(a, KV_BLOCK, &e);
    assert_non_null(b);
    assert_null(kv_seq_fork(a, KV_BLOCK + 2, &e));
    assert_int_equal(e.code, ERR_ARG);
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(kv);
}

static void convolution_states_start_at_zero_and_are_forked(void **state)
{
    struct kv_cache *kv = cache(true, 2);
    struct kv_seq *a = sequence(kv), *b;
    struct err e = {0};

    (void)state;
    for (int i = 0; i < 2 * 16; i++)
        assert_true(kv_seq_conv_state(a, 1)[i] == 0);
    assert_int_equal(kv_seq_conv_state(a, 1) - kv_seq_conv_state(a, 0), 2 * 16);
    grow(a, 3);
    kv_seq_conv_state(a, 1)[31] = 5;
    b = kv_seq_fork(a, 3, &e);
    must(b ? 0 : -1, &e);
    assert_true(kv_seq_conv_state(b, 1)[31] == 5);
    assert_null(kv_seq_fork(a, 2, &e)); /* no state of that moment */
    assert_int_equal(e.code, ERR_ARG);
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(kv);
}

static void a_budget_below_one_block_is_refused(void **state)
{
    struct model_config c = shape(false);
    struct err e = {0};

    (void)state;
    assert_null(kv_cache_new(&c, KV_ALL_LAYERS, BLOCK_BYTES - 1, &e));
    assert_int_equal(e.code, ERR_SPACE);
}

/* Addresses for 64 GiB, memory for what is used. */
static void memory_is_touched_only_when_used(void **state)
{
    struct model_config c = shape(false);
    struct err e = {0};
    struct kv_cache *kv = kv_cache_new(&c, KV_ALL_LAYERS, (size_t)1 << 36, &e);
    struct kv_seq *s;

    (void)state;
    must(kv ? 0 : -1, &e);
    s = sequence(kv);
    grow(s, 10);
    kv_seq_v_page(s, 0, 1, 1)[0] = 1;
    assert_true(kv_cache_max_positions(kv) == 1 << 20);
    kv_seq_free(s);
    kv_cache_free(kv);
}

static bool is_in_memory(const struct kv_seq *s, int block)
{
    const char *from = (const char *)kv_seq_k_page(s, block, 0, 0);
    unsigned char pages[BLOCK_BYTES / 4096];

    assert_int_equal(mincore((void *)from, BLOCK_BYTES, pages), 0);
    for (size_t i = 0; i < sizeof pages; i++)
        if (!(pages[i] & 1))
            return false;
    return true;
}

static void touch_all_ahead(struct kv_cache *kv, struct pool *pool, int ahead)
{
    for (int pieces = 0; kv_cache_touch_ahead(kv, pool, ahead); pieces++)
        assert_true(pieces < 100);
}

static struct pool *workers(int n)
{
    struct err e = {0};
    struct pool *pool = pool_new(n, &e);

    must(pool ? 0 : -1, &e);
    return pool;
}

static void blocks_that_are_taken_next_are_touched_before(void **state)
{
    struct kv_cache *kv = cache(false, 8);
    struct kv_seq *s = sequence(kv);
    struct pool *pool = workers(1);

    (void)state;
    grow(s, KV_BLOCK);
    kv_seq_k_page(s, 0, 0, 0)[0] = 3;
    assert_true(kv_cache_touch_ahead(kv, pool, 2));
    touch_all_ahead(kv, pool, 2);
    grow(s, 3 * KV_BLOCK);
    assert_true(is_in_memory(s, 1) && is_in_memory(s, 2));
    assert_false(is_in_memory(s, 3));
    assert_true(kv_seq_k_page(s, 0, 0, 0)[0] == 3);
    kv_seq_free(s);
    assert_false(kv_cache_touch_ahead(kv, pool, 4)); /* four that were used are free again */
    touch_all_ahead(kv, pool, 1000);
    s = sequence(kv);
    grow(s, 8 * KV_BLOCK);
    assert_true(is_in_memory(s, 7));
    kv_seq_free(s);
    kv_cache_free(kv);
    pool_free(pool);
}

/* 8 MiB: pieces of several workers, over the borders of huge pages. */
static void workers_touch_pieces_side_by_side(void **state)
{
    struct kv_cache *kv = cache(false, 512);
    struct kv_seq *s = sequence(kv);
    struct pool *pool = workers(3);
    int calls = 0;

    (void)state;
    grow(s, KV_BLOCK);
    kv_seq_v_page(s, 0, 1, 1)[7] = 3;
    while (kv_cache_touch_ahead(kv, pool, 500))
        calls++;
    assert_in_range(calls, 2, 3);
    grow(s, 500 * KV_BLOCK);
    for (int b = 0; b <= 500; b++)
        assert_true(b == 0 || is_in_memory(s, b));
    assert_true(kv_seq_v_page(s, 0, 1, 1)[7] == 3);
    kv_seq_free(s);
    kv_cache_free(kv);
    pool_free(pool);
}

static void layers_that_share_their_pages_take_the_memory_of_one(void **state)
{
    struct model_config c = shape(false);
    struct err e = {0};
    struct kv_cache *kv = kv_cache_new(&c, KV_ONE_LAYER, BLOCK_BYTES, &e);
    size_t bytes = kv_block_bytes(&c, KV_ONE_LAYER);
    struct kv_seq *s;

    (void)state;
    must(kv ? 0 : -1, &e);
    assert_int_equal(bytes * (size_t)c.n_layers, BLOCK_BYTES);
    assert_int_equal(kv_cache_block_bytes(kv), bytes);
    assert_int_equal(kv_cache_blocks(kv), c.n_layers);
    s = sequence(kv);
    grow(s, KV_BLOCK + 1);
    assert_ptr_equal(kv_seq_k_page(s, 0, 1, 1), kv_seq_k_page(s, 0, 0, 1));
    assert_ptr_equal(kv_seq_v_page(s, 1, 1, 0), kv_seq_v_page(s, 1, 0, 0));
    assert_ptr_not_equal(kv_seq_k_page(s, 0, 0, 1), kv_seq_k_page(s, 0, 0, 0));
    assert_ptr_not_equal(kv_seq_k_page(s, 0, 0, 0), kv_seq_k_page(s, 1, 0, 0));
    kv_seq_free(s);
    kv_cache_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_taken_when_used_and_given_back),
        cmocka_unit_test(pages_do_not_overlap),
        cmocka_unit_test(a_promise_is_kept_against_other_sequences),
        cmocka_unit_test(an_unused_promise_goes_back),
        cmocka_unit_test(a_step_that_fails_gives_its_blocks_back),
        cmocka_unit_test(a_fork_shares_full_blocks_and_copies_the_partial_one),
        cmocka_unit_test(a_fork_needs_a_free_block_for_its_partial_one),
        cmocka_unit_test(convolution_states_start_at_zero_and_are_forked),
        cmocka_unit_test(a_budget_below_one_block_is_refused),
        cmocka_unit_test(layers_that_share_their_pages_take_the_memory_of_one),
        cmocka_unit_test(memory_is_touched_only_when_used),
        cmocka_unit_test(blocks_that_are_taken_next_are_touched_before),
        cmocka_unit_test(workers_touch_pieces_side_by_side),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
