/* The model looks back only, so the vectors of beginnings say what those of whole prompts must be.
 */
#include "engine_test.h"

enum { VECTORS = 8, WIDTH_MAX = 512, LONG = 300 };

struct vectors {
    struct heard *heard;
    float v[VECTORS][WIDTH_MAX];
    int width, n;
};

static void keep_vector(void *arg, const struct gen_event *ev)
{
    struct vectors *vs = arg;

    if (ev->kind == GEN_VECTOR && ev->n_vector <= WIDTH_MAX) {
        vs->width = ev->n_vector;
        memcpy(vs->v[ev->sequence], ev->vector, (size_t)ev->n_vector * sizeof(float));
        vs->n++;
    }
    hear(vs->heard, ev);
}

static struct vectors *pool(struct engine *en, const struct gen_prompt *prompts, int n,
                            enum gen_pooling how)
{
    struct vectors *vs = calloc(1, sizeof *vs);
    struct gen_spec spec = plain_spec(prompts, n, 0);
    struct err e = {0};

    assert_non_null(vs);
    vs->heard = heard_new();
    spec.top_logprobs = -1;
    spec.pooling = how;
    spec.on_event = keep_vector;
    spec.arg = vs;
    vs->heard->gen = engine_submit(en, &spec, &e);
    if (!vs->heard->gen)
        fail_msg("%s", e.msg);
    heard_end(vs->heard, GEN_DONE);
    assert_int_equal(vs->n, n);
    return vs;
}

static void vectors_free(struct vectors *vs)
{
    heard_free(vs->heard);
    free(vs);
}

static void same(const struct vectors *a, int i, const struct vectors *b, int k)
{
    assert_int_equal(a->width, b->width);
    assert_memory_equal(a->v[i], b->v[k], (size_t)a->width * sizeof(float));
}

static void check_pooling(struct engine *en)
{
    int32_t ids[3];
    fill_prompt(ids, 3, 1);
    struct gen_prompt beginnings[3] = {{ids, 1, 0}, {ids, 2, 0}, {ids, 3, 0}};
    struct vectors *last = pool(en, beginnings, 3, GEN_POOL_LAST);
    struct vectors *first = pool(en, beginnings, 3, GEN_POOL_FIRST);
    struct vectors *mean = pool(en, beginnings, 3, GEN_POOL_MEAN);

    for (int i = 0; i < 3; i++)
        same(first, i, last, 0);
    same(mean, 0, last, 0);
    for (int i = 0; i < mean->width; i++) {
        double sum = (double)last->v[0][i] + (double)last->v[1][i] + (double)last->v[2][i];

        assert_true(mean->v[2][i] == (float)(sum / 3));
    }
    vectors_free(last);
    vectors_free(first);
    vectors_free(mean);
}

static void a_vector_is_the_first_the_last_or_the_mean_of_its_positions(void **state)
{
    static const char *const models[] = {"tiny-llama", "tiny-lfm2"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct engine *en = start_with_model(models[i], 2, 4);

        check_pooling(en);
        engine_stop(en);
    }
}

static void equal_prompts_are_computed_once_and_told_twice(void **state)
{
    int32_t ids[LONG];
    fill_prompt(ids, LONG, 2);
    struct gen_prompt twice[3] = {{ids, LONG, 0}, {ids, 5, 0}, {ids, LONG, 0}};
    struct engine *en = start_with_model("tiny-llama", 2, 4);
    struct engine_stats st;
    struct vectors *vs = pool(en, twice, 3, GEN_POOL_MEAN);

    (void)state;
    engine_get_stats(en, &st);
    assert_int_equal(st.prompt_tokens, LONG + 5);
    same(vs, 0, vs, 2);
    vectors_free(vs);
    engine_stop(en);
}

static void the_bits_do_not_depend_on_what_runs_beside_or_ran_before(void **state)
{
    int32_t ids[LONG];
    fill_prompt(ids, LONG, 3);
    struct gen_prompt one = {ids, LONG, 0};
    struct engine *en = start_with_model("tiny-llama", 2, 4);
    struct vectors *alone = pool(en, &one, 1, GEN_POOL_MEAN);
    struct vectors *last = pool(en, &one, 1, GEN_POOL_LAST);
    struct heard *before = submit(en, plain_spec(&one, 1, 3)); /* leaves its beginning behind */

    (void)state;
    heard_end(before, GEN_DONE);
    struct heard *beside = submit(en, plain_spec(&one, 1, 150));

    heard_wait(beside, heard_has_tokens, 1);
    struct vectors *again = pool(en, &one, 1, GEN_POOL_MEAN);
    struct vectors *known = pool(en, &one, 1, GEN_POOL_LAST);

    heard_end(beside, GEN_DONE);
    same(alone, 0, again, 0);
    same(last, 0, known, 0);
    vectors_free(alone);
    vectors_free(last);
    vectors_free(again);
    vectors_free(known);
    heard_free(before);
    heard_free(beside);
    engine_stop(en);
}

static void a_request_for_vectors_cannot_generate(void **state)
{
    int32_t id = 5;
    struct gen_prompt one = {&id, 1, 0};
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    struct gen_spec spec = plain_spec(&one, 1, 1);
    struct err e = {0};

    (void)state;
    spec.pooling = GEN_POOL_LAST;
    spec.on_event = hear;
    assert_null(engine_submit(en, &spec, &e));
    assert_int_equal(e.code, ERR_ARG);
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vector_is_the_first_the_last_or_the_mean_of_its_positions),
        cmocka_unit_test(equal_prompts_are_computed_once_and_told_twice),
        cmocka_unit_test(the_bits_do_not_depend_on_what_runs_beside_or_ran_before),
        cmocka_unit_test(a_request_for_vectors_cannot_generate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
