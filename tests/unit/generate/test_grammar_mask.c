/* Masks over a real vocabulary: they hold exactly the tokens whose bytes may follow, and every
 * answer that follows them can be finished. */
#include "grammar_test.h"

#include <stdio.h>

#include "base/buf.h"
#include "base/rng.h"

enum { STEPS_MAX = 4000, SEED = 11 };

static const char shape[] = "{\"type\": \"object\", \"required\": [\"color\", \"ok\", \"tags\"], "
                            "\"properties\": {\"color\": "
                            "{\"enum\": [\"red\", \"green\", \"dark \\\"blue\\\" \xc3\xa9\"]}, "
                            "\"ok\": {\"type\": \"boolean\"}, "
                            "\"note\": {\"type\": \"string\", \"maxLength\": 5}, \"tags\": "
                            "{\"type\": \"array\", \"maxItems\": "
                            "3, \"items\": {\"anyOf\": [{\"type\": \"integer\", \"minimum\": -3, "
                            "\"maximum\": 12}, {\"type\": "
                            "\"string\", \"pattern\": \"^[a-f]{1,4}$\"}, {\"type\": \"null\"}]}}}}";

static const char tree[] =
    "{\"type\": \"object\", \"properties\": {\"v\": {\"type\": \"number\"}, \"kids\": {\"type\": "
    "\"array\", \"items\": {\"$ref\": \"#\"}}}, \"required\": [\"v\", \"kids\"]}";

/* ---- one answer, token by token ---- */

struct answer {
    struct grammar_bound *bound;
    struct grammar_run *run;
    uint64_t *mask;
    int vocab;
    int32_t tokens[STEPS_MAX];
    int n;
    struct buf text;
};

static void start_answer(struct answer *a, struct grammar *g, struct token_trie *trie)
{
    struct err e = {0};

    *a = (struct answer){.vocab = trie->vocab, .bound = grammar_bind(g, trie, &e)};
    assert_non_null(a->bound);
    a->run = grammar_run_new(a->bound, &e);
    a->mask = calloc(grammar_mask_words(trie->vocab), sizeof *a->mask);
    assert_non_null(a->run);
    assert_non_null(a->mask);
}

static void end_answer(struct answer *a)
{
    grammar_run_free(a->run);
    grammar_bound_unref(a->bound);
    buf_release(&a->text);
    free(a->mask);
}

static void find_mask(struct answer *a)
{
    struct err e = {0};

    assert_int_equal(grammar_run_mask(a->run, NULL, 0, a->mask, &e), 0);
}

static int count_mask(const struct answer *a)
{
    int n = 0;

    for (int id = 0; id < a->vocab; id++)
        n += mask_has(a->mask, id);
    return n;
}

static void take(struct answer *a, int32_t id)
{
    const char *bytes;
    size_t len;
    struct err e = {0};

    assert_true(mask_has(a->mask, id));
    assert_int_equal(grammar_run_accept(a->run, id, &e), 0);
    assert_true(tokenizer_token_bytes(grammar_bound_trie(a->bound)->tokenizer, id, &bytes, &len));
    buf_add(&a->text, bytes, len);
    a->tokens[a->n++] = id;
}

/* A token of the mask, drawn evenly. */
static int32_t draw(const struct answer *a, uint64_t stream)
{
    int n = count_mask(a), k = (int)(rng_unit(SEED, (uint32_t)stream, (uint64_t)a->n, 0) * n);

    for (int id = 0; id < a->vocab; id++)
        if (mask_has(a->mask, id) && k-- == 0)
            return id;
    fail_msg("no token is possible after %s", buf_str(&a->text));
    return -1;
}

/* Whether the tokens so far and then `id` can be taken, in a run that knows no mask. */
static bool can_follow(const struct answer *a, int32_t id)
{
    struct err e = {0};
    struct grammar_run *r = grammar_run_new(a->bound, &e);
    bool ok = true;

    for (int i = 0; i < a->n; i++)
        assert_int_equal(grammar_run_accept(r, a->tokens[i], &e), 0);
    ok = grammar_run_accept(r, id, &e) == 0;
    grammar_run_free(r);
    return ok;
}

/* ---- tests ---- */

static void compare_masks(struct grammar *g, struct token_trie *trie, int steps, uint64_t stream)
{
    struct answer a;

    start_answer(&a, g, trie);
    for (int i = 0; i < steps && !grammar_run_is_over(a.run); i++) {
        find_mask(&a);
        for (int32_t id = 0; id < a.vocab; id++)
            if (mask_has(a.mask, id) != can_follow(&a, id))
                fail_msg("token %d after %s: the mask says %d", (int)id, buf_str(&a.text),
                         (int)mask_has(a.mask, id));
        take(&a, draw(&a, stream));
    }
    end_answer(&a);
}

static void a_mask_holds_exactly_the_tokens_that_can_follow(void **state)
{
    static const char *const models[] = {MODELS "tiny-llama", MODELS "tiny-lfm2"};
    static const char *const schemas[] = {shape, tree, "{}"};

    (void)state;
    for (size_t m = 0; m < 2; m++) {
        struct token_trie *trie = open_trie(models[m]);

        for (size_t i = 0; i < 3; i++) {
            struct grammar *g = schema_grammar(schemas[i]);

            for (uint64_t stream = 0; stream < 3; stream++)
                compare_masks(g, trie, 25, stream);
            grammar_unref(g);
        }
        token_trie_unref(trie);
    }
}

static void any_walk_through_the_masks_ends_as_json_that_fits(void **state)
{
    struct token_trie *trie = open_trie(MODELS "tiny-llama");
    struct grammar *g = schema_grammar(shape);

    (void)state;
    for (uint64_t stream = 0; stream < 200; stream++) {
        struct err e = {0};
        struct answer a;
        json_t *v;
        const char *color;

        start_answer(&a, g, trie);
        while (!grammar_run_is_over(a.run)) {
            assert_true(a.n < STEPS_MAX);
            find_mask(&a);
            take(&a, draw(&a, stream));
        }
        v = json_parse(buf_str(&a.text), a.text.len, &e);
        if (!v)
            fail_msg("%s: %s", buf_str(&a.text), e.msg);
        assert_int_equal(json_get_str(v, "color", &color, &e), 0);
        assert_true(!strcmp(color, "red") || !strcmp(color, "green") ||
                    !strcmp(color, "dark \"blue\" \xc3\xa9"));
        assert_true(json_is_boolean(json_object_get(v, "ok")));
        assert_true(json_array_size(json_object_get(v, "tags")) <= 3);
        json_decref(v);
        end_answer(&a);
    }
    grammar_unref(g);
    token_trie_unref(trie);
}

/* The first possible one of the texts, else the first possible token. */
static int32_t prefer(const struct answer *a, const char *const *texts)
{
    const struct tokenizer *t = grammar_bound_trie(a->bound)->tokenizer;

    for (; *texts; texts++) {
        int32_t id = tokenizer_find(t, *texts, strlen(*texts));

        if (id >= 0 && mask_has(a->mask, id))
            return id;
    }
    for (int32_t id = 0; id < a->vocab; id++)
        if (mask_has(a->mask, id))
            return id;
    fail_msg("no token is possible after %s", buf_str(&a->text));
    return -1;
}

static void check_deep_answer(const char *schema, const char *const *openers,
                              const char *const *closers)
{
    struct token_trie *trie = open_trie(MODELS "tiny-qwen3");
    struct grammar *g = schema_grammar(schema);
    struct err e = {0};
    struct answer a;
    json_t *v;

    start_answer(&a, g, trie);
    for (int i = 0; i < 1500 && !grammar_run_is_over(a.run); i++) {
        find_mask(&a);
        take(&a, prefer(&a, openers));
    }
    while (!grammar_run_is_over(a.run)) {
        assert_true(a.n < STEPS_MAX);
        find_mask(&a);
        take(&a, prefer(&a, closers));
    }
    v = json_parse(buf_str(&a.text), a.text.len, &e); /* at most 64 levels */
    if (!v)
        fail_msg("%s", e.msg);
    json_decref(v);
    end_answer(&a);
    grammar_unref(g);
    token_trie_unref(trie);
}

static void nesting_is_bounded_and_never_gets_stuck(void **state)
{
    static const char *const open_array[] = {"[", ",", "]", NULL};
    static const char *const open_tree[] = {"{", "[", "\"", "v", "kids", ":", "1", ",", NULL};
    static const char *const close[] = {"\"", "}", "]", ":", "1", NULL};

    (void)state;
    check_deep_answer("{\"type\": \"array\"}", open_array, close);
    check_deep_answer(tree, open_tree, close);
}

/* 40 x 40 x 40 x 40 ways to read one number: only so many are followed. */
static void alternatives_of_alternatives_do_not_multiply(void **state)
{
    struct token_trie *trie = open_trie(MODELS "tiny-llama");
    struct buf text = {0};
    struct grammar *g;
    struct answer a;

    (void)state;
    buf_add_str(&text, "{\"$defs\": {\"d0\": {\"type\": \"integer\"}");
    for (int level = 1; level <= 4; level++) {
        buf_printf(&text, ", \"d%d\": {\"anyOf\": [", level);
        for (int i = 0; i < 40; i++)
            buf_printf(&text, "%s{\"$ref\": \"#/$defs/d%d\"}", i ? ", " : "", level - 1);
        buf_add_str(&text, "]}");
    }
    buf_add_str(&text, "}, \"$ref\": \"#/$defs/d4\"}");
    g = schema_grammar(buf_str(&text));
    start_answer(&a, g, trie);
    for (int i = 0; i < 8 && !grammar_run_is_over(a.run); i++) {
        find_mask(&a);
        take(&a, draw(&a, 1));
    }
    end_answer(&a);
    buf_release(&text);
    grammar_unref(g);
    token_trie_unref(trie);
}

static void special_tokens_stand_nowhere_and_the_end_only_at_the_end(void **state)
{
    struct token_trie *trie = open_trie(MODELS "tiny-llama");
    struct grammar *g = schema_grammar("{\"type\": \"string\"}");
    int32_t eos = tokenizer_eos_id(trie->tokenizer);
    struct err e = {0};
    struct answer a;

    (void)state;
    start_answer(&a, g, trie);
    for (const char *c = "\"ab\""; *c; c++) {
        assert_int_equal(grammar_run_mask(a.run, &eos, 1, a.mask, &e), 0);
        assert_false(mask_has(a.mask, eos));
        for (int32_t id = 0; id < a.vocab; id++)
            assert_false(tokenizer_is_special(trie->tokenizer, id) && mask_has(a.mask, id));
        take(&a, tokenizer_find(trie->tokenizer, c, 1));
    }
    assert_int_equal(grammar_run_mask(a.run, &eos, 1, a.mask, &e), 0);
    assert_int_equal(count_mask(&a), 1);
    assert_true(mask_has(a.mask, eos));
    end_answer(&a);
    grammar_unref(g);
    token_trie_unref(trie);
}

/* A caller may call any token an end: where no other way on is left, the answer ends there. */
static void where_only_end_tokens_go_on_they_are_possible(void **state)
{
    struct token_trie *trie = open_trie(MODELS "tiny-llama");
    struct grammar *g = schema_grammar("{\"enum\": [\"a\", \"b\"]}");
    int32_t quote = tokenizer_find(trie->tokenizer, "\"", 1);
    int32_t letters[] = {tokenizer_find(trie->tokenizer, "a", 1),
                         tokenizer_find(trie->tokenizer, "b", 1)};
    struct err e = {0};
    struct answer a;

    (void)state;
    start_answer(&a, g, trie);
    find_mask(&a);
    take(&a, quote);
    assert_int_equal(grammar_run_mask(a.run, letters, 1, a.mask, &e), 0);
    assert_false(mask_has(a.mask, letters[0]));
    assert_true(mask_has(a.mask, letters[1]));
    find_mask(&a);
    for (int32_t id = 0; id < a.vocab; id++) /* longer tokens that begin so are ends as well */
        if (mask_has(a.mask, id) && id != letters[0] && id != letters[1])
            fail_msg("token %d is another way on", (int)id);
    assert_int_equal(grammar_run_mask(a.run, letters, 2, a.mask, &e), 0);
    assert_int_equal(count_mask(&a), 2);
    assert_true(mask_has(a.mask, letters[0]) && mask_has(a.mask, letters[1]));
    end_answer(&a);
    grammar_unref(g);
    token_trie_unref(trie);
}

/* LFM2's marks are tokens of their own; no bytes spell them, that of their sign least of all. */
static void a_special_token_that_is_named_stands_alone(void **state)
{
    static const struct grammar_call_form form = {.open = "\xff<|tool_call_start|>[",
                                                  .close = "]\xff<|tool_call_end|>",
                                                  .before = "",
                                                  .between = "(",
                                                  .after = ")",
                                                  .keywords = true};
    static const struct grammar_tool tool = {"f", NULL};
    struct token_trie *trie = open_trie(MODELS "tiny-lfm2");
    struct err e = {0};
    struct grammar *g = grammar_calls(&form, &tool, 1, false, &e);
    struct answer a;

    (void)state;
    assert_non_null(g);
    for (uint64_t stream = 0; stream < 20; stream++) {
        start_answer(&a, g, trie);
        while (!grammar_run_is_over(a.run)) {
            find_mask(&a);
            take(&a, draw(&a, stream));
        }
        assert_string_equal(buf_str(&a.text), "<|tool_call_start|>[f()]<|tool_call_end|>");
        assert_int_equal(a.tokens[0], tokenizer_find(trie->tokenizer, "<|tool_call_start|>", 19));
        assert_int_equal(a.tokens[a.n - 1],
                         tokenizer_find(trie->tokenizer, "<|tool_call_end|>", 17));
        end_answer(&a);
    }
    grammar_unref(g);
    token_trie_unref(trie);
}

static void two_answers_share_masks_and_nothing_else(void **state)
{
    struct token_trie *trie = open_trie(MODELS "tiny-lfm2");
    struct grammar *g = schema_grammar(tree);
    struct answer a;
    struct err e = {0};

    (void)state;
    start_answer(&a, g, trie);
    for (int i = 0; i < 40; i++) {
        struct grammar_run *other = grammar_run_new(a.bound, &e);
        uint64_t *mask = calloc(grammar_mask_words(a.vocab), sizeof *mask);

        find_mask(&a);
        for (int k = 0; k < a.n; k++) { /* one that has only accepted finds the same */
            assert_int_equal(grammar_run_accept(other, a.tokens[k], &e), 0);
        }
        assert_int_equal(grammar_run_mask(other, NULL, 0, mask, &e), 0);
        assert_memory_equal(mask, a.mask, grammar_mask_words(a.vocab) * sizeof *mask);
        free(mask);
        grammar_run_free(other);
        if (grammar_run_is_over(a.run))
            break;
        take(&a, draw(&a, 5));
    }
    end_answer(&a);
    grammar_unref(g);
    token_trie_unref(trie);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_holds_exactly_the_tokens_that_can_follow),
        cmocka_unit_test(any_walk_through_the_masks_ends_as_json_that_fits),
        cmocka_unit_test(nesting_is_bounded_and_never_gets_stuck),
        cmocka_unit_test(alternatives_of_alternatives_do_not_multiply),
        cmocka_unit_test(special_tokens_stand_nowhere_and_the_end_only_at_the_end),
        cmocka_unit_test(where_only_end_tokens_go_on_they_are_possible),
        cmocka_unit_test(a_special_token_that_is_named_stands_alone),
        cmocka_unit_test(two_answers_share_masks_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
