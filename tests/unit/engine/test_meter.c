#include "engine_test.h"

#include "engine/meter.h"

enum { PROMPT = 150 };

static struct engine_meter look(struct engine *en)
{
    struct engine_meter m;

    engine_get_meter(en, &m);
    return m;
}

static void run(struct engine *en, const struct gen_prompt *prompts, int n, int max_tokens)
{
    struct heard *h = submit(en, plain_spec(prompts, n, max_tokens));

    heard_end(h, GEN_DONE);
    heard_free(h);
}

static void a_request_counts_once_and_its_choices_each(void **state)
{
    int32_t ids[PROMPT];
    fill_prompt(ids, PROMPT, 1);
    struct gen_prompt prompts[3] = {{ids, PROMPT, 0}, {ids, 5, 0}, {ids, 5, 1}};
    struct engine *en = start_with_model("tiny-llama", 2, 4);

    (void)state;
    run(en, prompts, 3, 4);
    struct engine_meter m = look(en);

    assert_int_equal(histogram_total(&m.queue_s), 1);
    assert_int_equal(histogram_total(&m.first_token_s), 1);
    assert_int_equal(histogram_total(&m.request_s), 1);
    assert_int_equal(histogram_total(&m.gap_s), 3 * 3);
    assert_true(m.generated_tokens.sum == 12 && m.prompt_tokens.sum == PROMPT + 10);
    assert_int_equal(m.ended_length, 3);
    assert_int_equal(m.ended_stop + m.ended_abort, 0);
    assert_true(m.first_token_s.sum >= m.queue_s.sum && m.request_s.sum >= m.first_token_s.sum);
    engine_stop(en);
}

static void a_known_beginning_is_asked_for_and_found(void **state)
{
    int32_t ids[PROMPT];
    fill_prompt(ids, PROMPT, 2);
    struct gen_prompt one = {ids, PROMPT, 0};
    struct engine *en = start_with_model("tiny-llama", 2, 4);

    (void)state;
    run(en, &one, 1, 1);
    assert_int_equal(look(en).prefix_tokens_known, 0);
    run(en, &one, 1, 1);
    struct engine_meter m = look(en);

    assert_int_equal(m.prefix_tokens_asked, 2 * PROMPT);
    assert_int_equal(m.prefix_tokens_known, PROMPT / 64 * 64);
    engine_stop(en);
}

static void a_client_that_leaves_is_an_abort(void **state)
{
    int32_t id = 7;
    struct gen_prompt one = {&id, 1, 0};
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    struct heard *h = submit(en, plain_spec(&one, 1, 400));

    (void)state;
    heard_wait(h, heard_has_tokens, 1);
    gen_cancel(h->gen);
    heard_wait(h, heard_is_over, 0);
    struct engine_meter m = look(en);

    assert_int_equal(m.ended_abort, h->last == GEN_CANCELLED);
    assert_int_equal(m.ended_abort + m.ended_length + m.ended_stop, 1);
    heard_free(h);
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_counts_once_and_its_choices_each),
        cmocka_unit_test(a_known_beginning_is_asked_for_and_found),
        cmocka_unit_test(a_client_that_leaves_is_an_abort),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
