/* Answers that stay inside a language: whatever the temperature, alone and among others. */
#include "engine_test.h"

#include "base/buf.h"
#include "generate/grammar.h"
#include "generate/token_trie.h"
#include "model/config.h"
#include "text/tokenizer.h"

enum { CHOICES = 6, TOKENS = 200 };

static const int32_t prompt[] = {60, 70, 80, 90};

static struct grammar_bound *bind_schema(struct image *im, const char *text)
{
    struct err e = {0};
    json_t *schema = json_parse(text, strlen(text), &e);
    struct grammar *g = grammar_schema(schema, &e);
    struct token_trie *trie = token_trie_new(im->files->tokenizer, im->files->config->vocab, &e);
    struct grammar_bound *b;

    assert_non_null(g);
    assert_non_null(trie);
    b = grammar_bind(g, trie, &e);
    assert_non_null(b);
    grammar_unref(g);
    token_trie_unref(trie);
    json_decref(schema);
    return b;
}

static struct heard *ask(struct engine *en, struct grammar_bound *b, float temperature,
                         int max_tokens)
{
    struct gen_prompt prompts[CHOICES];
    struct gen_spec spec;

    for (int i = 0; i < CHOICES; i++)
        prompts[i] = (struct gen_prompt){.tokens = prompt, .n = 4, .sample_index = (uint32_t)i};
    spec = plain_spec(prompts, CHOICES, max_tokens);
    spec.temperature = temperature;
    spec.seed = 7;
    spec.grammar = b;
    return submit(en, spec);
}

static void read_text(const struct image *im, const struct heard_sequence *s, struct buf *out)
{
    buf_reset(out);
    tokenizer_decode(im->files->tokenizer, s->ids, (size_t)s->n, 0, out);
}

static void every_choice_is_a_whole_value_of_the_schema(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 8);
    struct image *im = engine_peek_image(en);
    struct grammar_bound *b = bind_schema(
        im,
        "{\"type\": \"object\", \"required\": [\"a\", \"b\"], \"properties\": {\"a\": {\"enum\": "
        "[\"x\", \"yy\"]}, \"b\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 99}}}");
    struct buf text = {0};

    (void)state;
    for (int hot = 0; hot < 2; hot++) {
        struct heard *h = ask(en, b, hot ? 1.5f : 0, TOKENS);

        heard_end(h, GEN_DONE);
        for (int i = 0; i < CHOICES; i++) {
            struct err e = {0};
            json_t *v;

            read_text(im, &h->seq[i], &text);
            v = json_parse(buf_str(&text), text.len, &e);
            if (!v)
                fail_msg("%s: %s", buf_str(&text), e.msg);
            assert_true(json_is_string(json_object_get(v, "a")));
            assert_in_range(json_integer_value(json_object_get(v, "b")), 0, 99);
            assert_int_equal(h->seq[i].reason, GEN_STOP_ID);
            json_decref(v);
        }
        heard_free(h);
    }
    buf_release(&text);
    grammar_bound_unref(b);
    image_unref(im);
    engine_stop(en);
}

static void an_answer_is_the_same_alone_and_among_others(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 8);
    struct image *im = engine_peek_image(en);
    struct grammar_bound *b = bind_schema(im, "{\"type\": \"object\"}");
    struct heard *alone = ask(en, b, 1, 60), *others[3];

    (void)state;
    heard_end(alone, GEN_DONE);
    for (int i = 0; i < 3; i++)
        others[i] = ask(en, i == 1 ? NULL : b, 1, 60);
    for (int i = 0; i < 3; i++) {
        heard_end(others[i], GEN_DONE);
        for (int k = 0; k < CHOICES && i != 1; k++) {
            assert_int_equal(others[i]->seq[k].n, alone->seq[k].n);
            assert_memory_equal(others[i]->seq[k].ids, alone->seq[k].ids,
                                (size_t)alone->seq[k].n * sizeof(int32_t));
        }
        heard_free(others[i]);
    }
    heard_free(alone);
    grammar_bound_unref(b);
    image_unref(im);
    engine_stop(en);
}

/* They are those of the whole vocabulary: the mask changes what is drawn, not what is told. */
static void log_probabilities_are_the_models_own(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 8);
    struct image *im = engine_peek_image(en);
    struct grammar_bound *b = bind_schema(im, "{\"const\": \"zq\"}");
    struct gen_prompt forced = {.tokens = prompt, .n = 4}, whole;
    struct gen_spec spec = plain_spec(&forced, 1, TOKENS);
    struct heard *h, *scored;
    int32_t all[4 + HEARD_TOKENS];
    int n;

    (void)state;
    spec.grammar = b;
    h = submit(en, spec);
    heard_end(h, GEN_DONE);
    n = h->seq[0].n;
    memcpy(all, prompt, sizeof prompt);
    memcpy(all + 4, h->seq[0].ids, (size_t)n * sizeof *all);
    whole = (struct gen_prompt){.tokens = all, .n = 4 + n};
    spec = plain_spec(&whole, 1, 0);
    spec.prompt_logprobs = true;
    scored = submit(en, spec);
    heard_end(scored, GEN_DONE);
    for (int i = 0; i < n; i++)
        assert_memory_equal(&h->seq[0].logprobs[i], &scored->seq[0].prompt_logprobs[4 + i],
                            sizeof(float));
    heard_free(h);
    heard_free(scored);
    grammar_bound_unref(b);
    image_unref(im);
    engine_stop(en);
}

static void a_limit_cuts_the_answer_where_it_stands(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 8);
    struct image *im = engine_peek_image(en);
    struct grammar_bound *b =
        bind_schema(im, "{\"const\": \"a text that takes more than three tokens\"}");
    struct heard *h = ask(en, b, 1, 3);

    (void)state;
    heard_end(h, GEN_DONE);
    assert_int_equal(h->seq[0].n, 3);
    assert_int_equal(h->seq[0].reason, GEN_LENGTH);
    heard_free(h);
    grammar_bound_unref(b);
    image_unref(im);
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_is_a_whole_value_of_the_schema),
        cmocka_unit_test(an_answer_is_the_same_alone_and_among_others),
        cmocka_unit_test(log_probabilities_are_the_models_own),
        cmocka_unit_test(a_limit_cuts_the_answer_where_it_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
