/* What one request gets: golden answers, whatever else runs. */
#include "engine_test.h"

#include <math.h>

enum { LONG_PROMPT = 300 };

static json_t *read_golden(const char *model)
{
    char path[256];
    struct err e = {0};
    json_t *j;

    snprintf(path, sizeof path, GOLDEN "%s/golden.json", model);
    j = json_load_file(path, JSON_ALLOW_NUL, NULL);
    (void)e;
    assert_non_null(j);
    return j;
}

static int read_ids(const json_t *list, int32_t *out)
{
    int n = (int)json_array_size(list);

    assert_true(n <= HEARD_TOKENS);
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

static void check_greedy(struct engine *en, const json_t *golden, const json_t *greedy)
{
    int32_t prompt[HEARD_TOKENS], expected[HEARD_TOKENS];
    size_t which = (size_t)json_integer_value(json_object_get(greedy, "prompt"));
    const json_t *p = json_array_get(json_object_get(golden, "prompts"), which);
    struct gen_prompt gp = {.tokens = prompt, .n = read_ids(json_object_get(p, "ids"), prompt)};
    int n = read_ids(json_object_get(greedy, "ids"), expected);
    const json_t *logprobs = json_object_get(greedy, "logprobs");
    struct heard *h = submit(en, plain_spec(&gp, 1, n));

    heard_end(h, GEN_DONE);
    assert_int_equal(h->seq[0].n, n);
    assert_memory_equal(h->seq[0].ids, expected, (size_t)n * sizeof *expected);
    for (int i = 0; i < n; i++) /* the reference sums in another order */
        assert_float_equal(h->seq[0].logprobs[i],
                           json_number_value(json_array_get(logprobs, (size_t)i)), 2e-3);
    assert_int_equal(h->seq[0].reason, GEN_LENGTH);
    heard_free(h);
}

static void check_model(const char *name)
{
    struct engine *en = start_with_model(name, 2, 8);
    json_t *golden = read_golden(name), *greedy;
    size_t i;

    json_array_foreach (json_object_get(golden, "greedy"), i, greedy) {
        check_greedy(en, golden, greedy);
    }
    assert_true(i > 0);
    json_decref(golden);
    engine_stop(en);
}

static void greedy_answers_are_those_of_the_reference(void **state)
{
    static const char *const names[] = {"tiny-llama", "tiny-llama-f16", "tiny-llama-untied-rope3",
                                        "tiny-qwen2", "tiny-qwen3",     "tiny-qwen3-sharded-f32",
                                        "tiny-lfm2"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_model(names[i]);
}

/* A request with sampling, all penalties and scores, of a prompt that takes several chunks. */
static struct gen_spec busy_spec(const struct gen_prompt *p)
{
    struct gen_spec spec = plain_spec(p, 1, 24);

    spec.temperature = 0.9f;
    spec.top_p = 0.95f;
    spec.top_k = 40;
    spec.frequency_penalty = 0.2f;
    spec.repetition_penalty = 1.1f;
    spec.seed = 77;
    spec.top_logprobs = 3;
    spec.prompt_logprobs = true;
    return spec;
}

static struct heard *answer_alone(const char *model, int threads, const struct gen_spec *spec)
{
    struct engine *en = start_with_model(model, threads, 8);
    struct heard *h = submit(en, *spec);

    heard_end(h, GEN_DONE);
    gen_free(h->gen);
    h->gen = NULL;
    engine_stop(en);
    return h;
}

static void check_scores(const struct heard *a, const struct heard *b, const struct gen_prompt *p)
{
    assert_int_equal(a->seq[0].n_prompt, p->n);
    assert_memory_equal(a->seq[0].prompt_ids, p->tokens, (size_t)p->n * sizeof *p->tokens);
    assert_false(a->seq[0].prompt_has[0]);
    assert_true(a->seq[0].prompt_has[1]);
    assert_memory_equal(a->seq[0].prompt_logprobs, b->seq[0].prompt_logprobs,
                        (size_t)p->n * sizeof(float));
}

/* The answer among eight others that come before and after it. */
static void check_among_others(const char *model, const struct heard *alone,
                               const struct gen_spec *spec)
{
    struct engine *en = start_with_model(model, 2, 9);
    struct heard *others[8];
    int32_t ids[8][100];

    for (int i = 0; i < 8; i++) {
        fill_prompt(ids[i], 100, 1000 + (uint32_t)i);
        struct gen_prompt p = {.tokens = ids[i], .n = 20 + 10 * i};

        if (i == 4)
            heard_wait(others[0], heard_has_tokens, 5);
        others[i] = submit(en, plain_spec(&p, 1, 80));
    }
    struct heard *h = submit(en, *spec);

    heard_end(h, GEN_DONE);
    assert_true(same_answer(h, alone, 0));
    check_scores(h, alone, spec->prompts);
    heard_free(h);
    for (int i = 0; i < 8; i++) {
        heard_end(others[i], GEN_DONE);
        heard_free(others[i]);
    }
    engine_stop(en);
}

static void an_answer_has_the_same_bits_alone_and_among_others_at_any_thread_count(void **state)
{
    static const char *const names[] = {"tiny-llama", "tiny-lfm2"};
    int32_t ids[LONG_PROMPT];
    struct gen_prompt p = {.tokens = ids, .n = LONG_PROMPT};
    struct gen_spec spec = busy_spec(&p);

    (void)state;
    fill_prompt(ids, LONG_PROMPT, 5);
    for (int i = 0; i < 2; i++) {
        struct heard *one = answer_alone(names[i], 1, &spec);
        struct heard *three = answer_alone(names[i], 3, &spec);

        assert_int_equal(one->seq[0].n, 24);
        assert_true(same_answer(one, three, 0));
        check_scores(one, three, &p);
        check_among_others(names[i], one, &spec);
        heard_free(one);
        heard_free(three);
    }
}

/* Choices share one prefill; each has the answer it would have alone. */
static void choices_of_one_prompt_are_those_of_single_requests(void **state)
{
    static const char *const names[] = {"tiny-llama", "tiny-lfm2"};
    enum { CHOICES = 5 };
    int32_t ids[130];
    struct gen_prompt many[CHOICES];

    (void)state;
    fill_prompt(ids, 130, 9);
    for (int i = 0; i < CHOICES; i++)
        many[i] = (struct gen_prompt){.tokens = ids, .n = 130, .sample_index = (uint32_t)i};
    for (int m = 0; m < 2; m++) {
        struct gen_spec spec = busy_spec(many);

        spec.n_prompts = CHOICES;
        struct heard *all = answer_alone(names[m], 2, &spec);

        for (int i = 0; i < CHOICES; i++) {
            struct gen_spec single = busy_spec(&many[i]);
            struct heard *h = answer_alone(names[m], 2, &single);

            all->seq[0] = i ? all->seq[i] : all->seq[0];
            assert_true(same_answer(all, h, 0));
            check_scores(all, h, &many[i]);
            heard_free(h);
        }
        assert_false(same_answer(all, all, 0) &&
                     memcmp(all->seq[1].ids, all->seq[2].ids, sizeof all->seq[1].ids) == 0);
        heard_free(all);
    }
}

static void choices_prefill_their_prompt_once(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    struct gen_prompt many[4];
    struct engine_stats st;
    int32_t ids[100];

    (void)state;
    fill_prompt(ids, 100, 3);
    for (int i = 0; i < 4; i++)
        many[i] = (struct gen_prompt){.tokens = ids, .n = 100, .sample_index = (uint32_t)i};
    struct heard *h = submit(en, plain_spec(many, 4, 10));

    heard_end(h, GEN_DONE);
    engine_get_stats(en, &st);
    assert_int_equal(st.prompt_tokens, 100);
    assert_int_equal(st.generated_tokens, 40);
    for (int i = 1; i < 4; i++) /* greedy: all the same */
        assert_memory_equal(h->seq[i].ids, h->seq[0].ids, 10 * sizeof(int32_t));
    heard_free(h);
    engine_stop(en);
}

static void more_sequences_than_places_all_end(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 16);
    struct gen_prompt many[HEARD_SEQUENCES];
    int32_t ids[HEARD_SEQUENCES][30];

    (void)state;
    for (int i = 0; i < HEARD_SEQUENCES; i++) {
        fill_prompt(ids[i], 30, (uint32_t)(i % 20)); /* some are equal */
        many[i] = (struct gen_prompt){.tokens = ids[i], .n = 30};
    }
    struct heard *h = submit(en, plain_spec(many, HEARD_SEQUENCES, 12));

    heard_end(h, GEN_DONE);
    for (int i = 0; i < HEARD_SEQUENCES; i++) {
        assert_true(h->seq[i].done);
        assert_int_equal(h->seq[i].n, 12);
        if (i >= 20)
            assert_memory_equal(h->seq[i].ids, h->seq[i - 20].ids, 12 * sizeof(int32_t));
    }
    heard_free(h);
    engine_stop(en);
}

static void stop_ids_end_a_sequence_with_the_token_told(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    int32_t ids[7] = {273, 293, 116, 325, 431, 275, 301}; /* goes on 263 341 294 10 */
    struct gen_prompt p = {.tokens = ids, .n = 7};
    struct gen_spec spec = plain_spec(&p, 1, 16);

    (void)state;
    spec.stop_ids[0] = 294;
    spec.n_stop_ids = 1;
    struct heard *h = submit(en, spec);

    heard_end(h, GEN_DONE);
    assert_int_equal(h->seq[0].n, 3);
    assert_int_equal(h->seq[0].ids[2], 294);
    assert_int_equal(h->seq[0].reason, GEN_STOP_ID);
    heard_free(h);
    engine_stop(en);
}

static void only_allowed_tokens_are_given(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    int32_t ids[4] = {273, 293, 116, 325}, allowed[2] = {40, 50};
    struct gen_prompt p = {.tokens = ids, .n = 4};
    struct gen_spec spec = plain_spec(&p, 1, 20);

    (void)state;
    spec.allowed = allowed;
    spec.n_allowed = 2;
    spec.temperature = 1;
    struct heard *h = submit(en, spec);

    heard_end(h, GEN_DONE);
    for (int i = 0; i < 20; i++)
        assert_true(h->seq[0].ids[i] == 40 || h->seq[0].ids[i] == 50);
    heard_free(h);
    engine_stop(en);
}

static void a_context_that_is_full_ends_with_length(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    int32_t ids[510];
    struct gen_prompt p = {.tokens = ids, .n = 510};

    (void)state;
    fill_prompt(ids, 510, 1);
    struct heard *h = submit(en, plain_spec(&p, 1, 100));

    heard_end(h, GEN_DONE);
    assert_int_equal(h->seq[0].n, 2);
    assert_int_equal(h->seq[0].reason, GEN_LENGTH);
    heard_free(h);
    engine_stop(en);
}

static void scoring_generates_nothing(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    int32_t ids[40];
    struct gen_prompt p = {.tokens = ids, .n = 40};
    struct gen_spec spec = plain_spec(&p, 1, 0);

    (void)state;
    fill_prompt(ids, 40, 2);
    spec.prompt_logprobs = true;
    struct heard *h = submit(en, spec);

    heard_end(h, GEN_DONE);
    assert_int_equal(h->n_tokens, 0);
    assert_int_equal(h->seq[0].n_prompt, 40);
    assert_int_equal(h->seq[0].reason, GEN_LENGTH);
    heard_free(h);
    engine_stop(en);
}

static void spoil_norm(struct engine *en, void *arg)
{
    struct image *im = engine_resident(en);
    const struct st_tensor *t = weights_find(im->weights, "model.norm.weight");
    uint16_t *w = weights_data(im->weights, t);

    for (size_t i = 0; i < t->bytes / 2; i++)
        w[i] = *(uint16_t *)arg;
}

/* NaN and infinity in the weights are an error of the request, whatever it asks for. */
static void weights_that_are_not_finite_end_the_request_and_nothing_else(void **state)
{
    static const uint16_t bad[2] = {0x7fc0, 0x7f80}; /* NaN, infinity in BF16 */
    int32_t ids[7] = {273, 293, 116, 325, 431, 275, 301};
    struct gen_prompt p = {.tokens = ids, .n = 7};
    struct engine *en = start_with_model("tiny-llama", 2, 2);
    uint16_t one = 0x3f80;

    (void)state;
    for (int i = 0; i < 4; i++) {
        uint16_t value = bad[i % 2];
        struct gen_spec spec = plain_spec(&p, 1, 4);

        spec.temperature = i < 2 ? 0 : 1;
        engine_call(en, spoil_norm, &value);
        struct heard *h = submit(en, spec);

        heard_end(h, GEN_NON_FINITE);
        assert_int_equal(h->n_tokens, 0);
        heard_free(h);
    }
    engine_call(en, spoil_norm, &one);
    struct heard *h = submit(en, plain_spec(&p, 1, 4));

    heard_end(h, GEN_DONE);
    heard_free(h);
    engine_stop(en);
}

static void a_prompt_is_scored_under_a_temperature_of_its_own(void **state)
{
    enum { LENGTH = 30 };
    struct engine *en = start_with_model("tiny-llama", 2, 4);
    int32_t ids[LENGTH];
    struct gen_prompt p = {.tokens = ids, .n = LENGTH};
    struct gen_spec spec = plain_spec(&p, 1, 0);
    const float temperatures[] = {0, 1, 1e6f};
    struct heard *h[3];

    (void)state;
    fill_prompt(ids, LENGTH, 5);
    spec.prompt_logprobs = true;
    for (int i = 0; i < 3; i++) {
        spec.prompt_temperature = temperatures[i];
        h[i] = submit(en, spec);
        heard_end(h[i], GEN_DONE);
    }
    assert_memory_equal(h[0]->seq[0].prompt_logprobs, h[1]->seq[0].prompt_logprobs,
                        LENGTH * sizeof(float));
    for (int i = 1; i < LENGTH; i++) /* so hot that every token of 512 is as likely as any */
        assert_float_equal(h[2]->seq[0].prompt_logprobs[i], -log(512), 1e-4);
    for (int i = 0; i < 3; i++)
        heard_free(h[i]);
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_answers_are_those_of_the_reference),
        cmocka_unit_test(an_answer_has_the_same_bits_alone_and_among_others_at_any_thread_count),
        cmocka_unit_test(choices_of_one_prompt_are_those_of_single_requests),
        cmocka_unit_test(choices_prefill_their_prompt_once),
        cmocka_unit_test(more_sequences_than_places_all_end),
        cmocka_unit_test(stop_ids_end_a_sequence_with_the_token_told),
        cmocka_unit_test(only_allowed_tokens_are_given),
        cmocka_unit_test(a_context_that_is_full_ends_with_length),
        cmocka_unit_test(scoring_generates_nothing),
        cmocka_unit_test(weights_that_are_not_finite_end_the_request_and_nothing_else),
        cmocka_unit_test(a_prompt_is_scored_under_a_temperature_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
