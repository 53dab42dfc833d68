/* Beginnings that were computed before: the same bits, less work, and never from other weights. */
#include "engine/snapshot.h"
#include "engine_test.h"

enum { PROMPT = 200, TOKENS = 40, NEXT = PROMPT + TOKENS + 20 };

static uint64_t prompt_tokens(struct engine *en)
{
    struct engine_stats st;

    engine_get_stats(en, &st);
    return st.prompt_tokens;
}

static struct heard *ask(struct engine *en, const int32_t *ids, int n, uint64_t load_counter)
{
    struct gen_prompt p = {.tokens = ids, .n = n};
    struct gen_spec spec = plain_spec(&p, 1, TOKENS);

    spec.temperature = 0.8f;
    spec.seed = 3;
    spec.load_counter = load_counter;
    struct heard *h = submit(en, spec);

    heard_end(h, GEN_DONE);
    return h;
}

static struct heard *ask_fresh(const char *model, const int32_t *ids, int n)
{
    struct engine *en = start_with_model(model, 2, 2);
    struct heard *h = ask(en, ids, n, 1);

    gen_free(h->gen);
    h->gen = NULL;
    engine_stop(en);
    return h;
}

/* The first turn, and the next one that begins with it. */
static void check_turns(const char *model, uint64_t computed_at_most)
{
    struct engine *en = start_with_model(model, 2, 2);
    int32_t ids[NEXT];

    fill_prompt(ids, NEXT, 8);
    struct heard *first = ask(en, ids, PROMPT, 1);

    assert_int_equal(prompt_tokens(en), PROMPT);
    memcpy(ids + PROMPT, first->seq[0].ids, TOKENS * sizeof *ids);
    struct heard *next = ask(en, ids, NEXT, 1), *alone = ask_fresh(model, ids, NEXT);

    assert_true(same_answer(next, alone, 0));
    assert_true(prompt_tokens(en) - PROMPT <= computed_at_most);
    heard_free(first);
    heard_free(next);
    heard_free(alone);
    engine_stop(en);
}

static void the_next_turn_starts_where_the_last_one_ended(void **state)
{
    (void)state;
    check_turns("tiny-llama", NEXT - (PROMPT + TOKENS) / 64 * 64);
    check_turns("tiny-lfm2",
                NEXT - (PROMPT + TOKENS - 1)); /* its state is that of the last token fed */
}

static void an_equal_prompt_has_an_equal_answer(void **state)
{
    static const char *const names[] = {"tiny-llama", "tiny-lfm2"};
    int32_t ids[PROMPT];

    (void)state;
    fill_prompt(ids, PROMPT, 21);
    for (int i = 0; i < 2; i++) {
        struct engine *en = start_with_model(names[i], 2, 2);
        struct heard *a = ask(en, ids, PROMPT, 1), *b = ask(en, ids, PROMPT, 1);

        assert_true(same_answer(a, b, 0));
        heard_free(a);
        heard_free(b);
        engine_stop(en);
    }
}

static void a_prompt_that_differs_inside_a_block_shares_the_blocks_before(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 2);
    int32_t ids[PROMPT];

    (void)state;
    fill_prompt(ids, PROMPT, 22);
    heard_free(ask(en, ids, PROMPT, 1));
    ids[130] ^= 1;
    struct heard *changed = ask(en, ids, PROMPT, 1);
    struct heard *alone = ask_fresh("tiny-llama", ids, PROMPT);

    assert_true(same_answer(changed, alone, 0));
    assert_int_equal(prompt_tokens(en), PROMPT + PROMPT - 128);
    heard_free(changed);
    heard_free(alone);
    engine_stop(en);
}

/* Exchanges two matrices of the resident in place. */
static void write_in_place(struct engine *en, void *arg)
{
    struct image *im = engine_resident(en);
    const struct st_tensor *a = weights_find(im->weights, "model.layers.0.mlp.up_proj.weight");
    const struct st_tensor *b = weights_find(im->weights, "model.layers.1.mlp.up_proj.weight");
    unsigned char *x = weights_data(im->weights, a), *y = weights_data(im->weights, b);
    struct err e = {0};

    (void)arg;
    assert_int_equal(snapshot_detach_all(en, im, &e), 0);
    for (size_t i = 0; i < a->bytes; i++) {
        unsigned char t = x[i];

        x[i] = y[i];
        y[i] = t;
    }
}

static void nothing_computed_with_old_weights_is_used_after_a_write_in_place(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 2), *fresh;
    int32_t ids[PROMPT];

    (void)state;
    fill_prompt(ids, PROMPT, 23);
    struct heard *before = ask(en, ids, PROMPT, 1);

    set_gate(en, GATE_HOLD);
    engine_call(en, write_in_place, NULL);
    set_gate(en, GATE_OPEN);
    struct heard *after = ask(en, ids, PROMPT, 1);

    fresh = start_with_model("tiny-llama", 2, 2);
    engine_call(fresh, write_in_place, NULL);
    struct heard *right = ask(fresh, ids, PROMPT, 1);

    assert_false(same_answer(before, after, 0));
    assert_true(same_answer(after, right, 0));
    assert_int_equal(prompt_tokens(en), 2 * PROMPT);
    heard_free(before);
    heard_free(after);
    heard_free(right);
    engine_stop(fresh);
    engine_stop(en);
}

static void a_swap_forgets_what_the_old_image_computed(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 2);
    int32_t ids[PROMPT];

    (void)state;
    fill_prompt(ids, PROMPT, 24);
    heard_free(ask(en, ids, PROMPT, 1));
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "again", 2);
    heard_free(ask(en, ids, PROMPT, 2));
    assert_int_equal(prompt_tokens(en), 2 * PROMPT);
    engine_stop(en);
}

static void scored_prompts_are_computed_in_full(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 2);
    int32_t ids[PROMPT];
    struct gen_prompt p = {.tokens = ids, .n = PROMPT};
    struct gen_spec spec = plain_spec(&p, 1, 0);

    (void)state;
    fill_prompt(ids, PROMPT, 25);
    heard_free(ask(en, ids, PROMPT, 1));
    spec.prompt_logprobs = true;
    struct heard *h = submit(en, spec);

    heard_end(h, GEN_DONE);
    assert_int_equal(h->seq[0].n_prompt, PROMPT);
    assert_int_equal(prompt_tokens(en), 2 * PROMPT);
    heard_free(h);
    engine_stop(en);
}

/* Eight requests of 8 blocks need 64 of the 66 blocks; what one of them left behind takes 7. */
static void what_is_kept_makes_way_for_what_runs(void **state)
{
    enum { TOGETHER = 8, ROUNDS = 4 };
    size_t block =
        (size_t)64 * 3 * 2 * 16 * 2 * 4; /* of tiny-llama: K and V of 3 layers, 2 heads */
    struct engine *en = start_engine(1, TOGETHER, TOGETHER, 66 * block);
    struct engine_stats st;
    int32_t ids[PROMPT];

    (void)state;
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "m", 1);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        struct heard *h[TOGETHER];

        for (uint32_t k = 0; k < TOGETHER; k++) {
            struct gen_prompt p = {.tokens = ids, .n = PROMPT};

            fill_prompt(ids, PROMPT, 100 + TOGETHER * i + k);
            h[k] = submit(en, plain_spec(&p, 1, 312));
        }
        for (int k = 0; k < TOGETHER; k++) {
            heard_end(h[k], GEN_DONE);
            heard_free(h[k]);
        }
        engine_get_stats(en, &st);
        assert_int_equal(st.kv_used, 7 * block);
    }
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_turn_starts_where_the_last_one_ended),
        cmocka_unit_test(an_equal_prompt_has_an_equal_answer),
        cmocka_unit_test(a_prompt_that_differs_inside_a_block_shares_the_blocks_before),
        cmocka_unit_test(nothing_computed_with_old_weights_is_used_after_a_write_in_place),
        cmocka_unit_test(a_swap_forgets_what_the_old_image_computed),
        cmocka_unit_test(scored_prompts_are_computed_in_full),
        cmocka_unit_test(what_is_kept_makes_way_for_what_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
