/* Requests that are paused: what they keep, what they give away, and how they go on. */
#include <stdatomic.h>

#include "engine_test.h"

enum { PROMPT = 70, LONG = 380, STOP_AT = 5 };

/* The engine stands at a token until the test has done what it wants. */
struct stand {
    atomic_bool reached, go;
};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static void stand_still(void *arg, struct heard *h)
{
    struct stand *s = arg;

    if (h->n_tokens != STOP_AT)
        return;
    atomic_store(&s->reached, true);
    while (!atomic_load(&s->go))
        nap();
}

/* One prompt, `copies` samples of it. */
static struct gen_spec spec_of(struct image *im, struct gen_prompt *prompts, const int32_t *ids,
                               int copies, int max_tokens)
{
    struct gen_spec spec = plain_spec(prompts, copies, max_tokens);

    for (int i = 0; i < copies; i++)
        prompts[i] = (struct gen_prompt){ids, PROMPT, (uint32_t)i};
    spec.image = im;
    spec.temperature = 1;
    spec.seed = 7;
    return spec;
}

static struct heard *submit_standing(struct engine *en, struct gen_spec spec, struct stand *s)
{
    struct heard *h = submit_heard(en, spec, stand_still, s);

    while (!atomic_load(&s->reached))
        nap();
    return h;
}

/* Runs until its fifth token, then it is paused. */
static struct heard *submit_paused(struct engine *en, struct gen_spec spec)
{
    struct stand s = {0};
    struct heard *h = submit_standing(en, spec, &s);
    struct engine_stats st;

    gen_pause(h->gen, true);
    atomic_store(&s.go, true);
    do {
        nap();
        engine_get_stats(en, &st);
    } while (st.running > 0);
    h->on_token = NULL;
    return h;
}

static struct heard *answer(struct engine *en, struct gen_spec spec)
{
    struct heard *h = submit(en, spec);

    heard_end(h, GEN_DONE);
    return h;
}

static void a_paused_request_gives_its_slot_away_and_goes_on_where_it_stood(void **state)
{
    struct engine *en = start_engine(2, 1, 8, (size_t)64 << 20);
    struct image *im = load_tiny(en, MODELS "tiny-llama");
    int32_t ids[PROMPT], other[PROMPT];
    struct gen_prompt prompts[3], one[1];
    struct engine_stats before, after;

    (void)state;
    fill_prompt(ids, PROMPT, 1);
    fill_prompt(other, PROMPT, 2);
    struct heard *want = answer(en, spec_of(im, prompts, ids, 3, LONG));

    engine_get_stats(en, &before);
    struct heard *h = submit_paused(en, spec_of(im, prompts, ids, 3, LONG));
    int told = h->n_tokens;
    struct heard *second = answer(en, spec_of(im, one, other, 1, 20));

    assert_false(h->over);
    assert_int_equal(h->n_tokens, told);
    gen_pause(h->gen, false);
    heard_end(h, GEN_DONE);
    for (int i = 0; i < 3; i++)
        assert_true(same_answer(h, want, i));
    engine_get_stats(en, &after);
    assert_int_equal(after.prompt_tokens - before.prompt_tokens, 2 * PROMPT);
    assert_int_equal(after.generated_tokens - before.generated_tokens, h->n_tokens + 20);
    heard_free(want);
    heard_free(h);
    heard_free(second);
    image_unref(im);
    engine_stop(en);
}

static void a_paused_request_makes_way_when_others_need_its_memory(void **state)
{
    struct engine *en = start_engine(1, 2, 8, 10 * 64 * 3 * 2 * 2 * 16 * 4); /* ten blocks */
    struct image *im = load_tiny(en, MODELS "tiny-llama");
    int32_t ids[PROMPT];
    struct gen_prompt prompts[1];

    (void)state;
    fill_prompt(ids, PROMPT, 3);
    struct heard *h = submit_paused(en, spec_of(im, prompts, ids, 1, LONG));
    struct heard *small = answer(en, spec_of(im, prompts, ids, 1, 20));

    assert_false(h->over);
    struct heard *large = answer(en, spec_of(im, prompts, ids, 1, LONG));

    heard_end(h, GEN_EVICTED);
    heard_free(h);
    heard_free(small);
    heard_free(large);
    image_unref(im);
    engine_stop(en);
}

static void a_paused_request_can_be_cancelled_and_ends_with_the_engine(void **state)
{
    struct engine *en = start_engine(1, 1, 8, (size_t)64 << 20);
    struct image *im = load_tiny(en, MODELS "tiny-llama");
    int32_t ids[PROMPT];
    struct gen_prompt prompts[2];

    (void)state;
    fill_prompt(ids, PROMPT, 4);
    struct heard *h = submit_paused(en, spec_of(im, prompts, ids, 2, LONG));
    struct heard *last = submit_paused(en, spec_of(im, prompts, ids, 2, LONG));

    gen_cancel(h->gen);
    heard_end(h, GEN_CANCELLED);
    assert_false(last->over);
    engine_stop(en);
    assert_int_equal(last->last, GEN_STOPPED);
    heard_free(h);
    heard_free(last);
    image_unref(im);
}

static void a_pause_that_ends_with_its_request_is_no_time_in_a_slot(void **state)
{
    struct engine *en = start_engine(1, 1, 8, (size_t)64 << 20);
    struct image *im = load_tiny(en, MODELS "tiny-llama");
    int32_t ids[PROMPT];
    struct gen_prompt prompts[1];
    struct engine_stats st;
    double longest = 0; /* of the times that were not in the middle of a pause */

    (void)state;
    fill_prompt(ids, PROMPT, 6);
    for (int i = 0; i < 3; i++) {
        int64_t start = clock_mono_ns();
        struct heard *h = submit_paused(en, spec_of(im, prompts, ids, 1, LONG));
        double ms = clock_ms_since(start);

        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        start = clock_mono_ns();
        gen_cancel(h->gen);
        heard_end(h, GEN_CANCELLED);
        ms += clock_ms_since(start);
        longest = ms > longest ? ms : longest;
        heard_free(h);
    }
    engine_get_stats(en, &st);
    assert_true(st.median_slot_ms >= 0 && st.median_slot_ms <= longest);
    image_unref(im);
    engine_stop(en);
}

static void a_request_that_is_paused_while_it_waits_lets_others_pass(void **state)
{
    struct engine *en = start_engine(1, 1, 8, (size_t)64 << 20);
    struct image *im = load_tiny(en, MODELS "tiny-llama");
    int32_t ids[PROMPT];
    struct gen_prompt prompts[1];
    struct stand s = {0};

    (void)state;
    fill_prompt(ids, PROMPT, 5);
    struct heard *first = submit_standing(en, spec_of(im, prompts, ids, 1, 20), &s);
    struct heard *waits = submit(en, spec_of(im, prompts, ids, 1, 20));

    gen_pause(waits->gen, true);
    struct heard *later = submit(en, spec_of(im, prompts, ids, 1, 20));

    atomic_store(&s.go, true);
    heard_end(first, GEN_DONE);
    heard_end(later, GEN_DONE);
    assert_false(waits->admitted);
    gen_pause(waits->gen, false);
    heard_end(waits, GEN_DONE);
    assert_true(same_answer(waits, later, 0));
    heard_free(first);
    heard_free(waits);
    heard_free(later);
    image_unref(im);
    engine_stop(en);
}

static void requests_of_the_resident_are_not_paused(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    int32_t ids[PROMPT];
    struct gen_prompt prompts[1];
    struct stand s = {0};

    (void)state;
    fill_prompt(ids, PROMPT, 6);
    struct heard *h = submit_standing(en, spec_of(NULL, prompts, ids, 1, 20), &s);

    gen_pause(h->gen, true);
    atomic_store(&s.go, true);
    heard_end(h, GEN_DONE);
    heard_free(h);
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_paused_request_gives_its_slot_away_and_goes_on_where_it_stood),
        cmocka_unit_test(a_paused_request_makes_way_when_others_need_its_memory),
        cmocka_unit_test(a_paused_request_can_be_cancelled_and_ends_with_the_engine),
        cmocka_unit_test(a_pause_that_ends_with_its_request_is_no_time_in_a_slot),
        cmocka_unit_test(a_request_that_is_paused_while_it_waits_lets_others_pass),
        cmocka_unit_test(requests_of_the_resident_are_not_paused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
