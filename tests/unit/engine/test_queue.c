/* Who gets a slot, who waits, and how waiting ends. */
#include "engine_test.h"

enum { PROMPT = 8 };

static const int32_t prompt_ids[PROMPT] = {273, 293, 116, 325, 431, 275, 301, 40};
static const struct gen_prompt prompt = {.tokens = prompt_ids, .n = PROMPT};

static struct heard *ask(struct engine *en, int max_tokens)
{
    return submit(en, plain_spec(&prompt, 1, max_tokens));
}

static void expect(struct heard *h, enum gen_event_kind last)
{
    heard_end(h, last);
    heard_free(h);
}

static void a_cancelled_request_ends_within_a_token_and_frees_its_slot(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    struct heard *running = ask(en, 400), *next = ask(en, 3);

    (void)state;
    heard_wait(running, heard_has_tokens, 3);
    gen_cancel(running->gen);
    expect(running, GEN_CANCELLED);
    expect(next, GEN_DONE);
    engine_stop(en);
}

static void a_waiting_request_can_be_cancelled(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);

    (void)state;
    set_gate(en, GATE_HOLD);
    struct heard *h = ask(en, 3);

    gen_cancel(h->gen);
    heard_end(h, GEN_CANCELLED);
    assert_false(h->admitted);
    heard_free(h);
    engine_stop(en);
}

static void cut_after_five(void *arg, struct heard *h)
{
    (void)arg;
    if (h->n_tokens == 5)
        gen_cut_sequence(h->gen, 0);
}

static void a_cut_from_the_token_handler_is_the_last_token(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);

    (void)state;
    set_gate(en, GATE_HOLD); /* h->gen is set before the first event */
    struct heard *h = submit_heard(en, plain_spec(&prompt, 1, 100), cut_after_five, NULL);

    set_gate(en, GATE_OPEN);
    heard_end(h, GEN_DONE);
    assert_int_equal(h->seq[0].n, 5);
    assert_int_equal(h->seq[0].reason, GEN_CUT);
    heard_free(h);
    engine_stop(en);
}

static void the_queue_refuses_more_than_it_holds(void **state)
{
    struct engine *en = start_engine(1, 2, 3, 0);
    struct heard *held[3];
    struct err e = {0};

    (void)state;
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "m", 1);
    set_gate(en, GATE_HOLD);
    for (int i = 0; i < 3; i++)
        held[i] = ask(en, 2);
    struct gen_spec spec = plain_spec(&prompt, 1, 2);
    struct heard *none = heard_new();

    spec.on_event = hear;
    spec.arg = none;
    assert_null(engine_submit(en, &spec, &e));
    assert_int_equal(e.code, ERR_SPACE);
    set_gate(en, GATE_OPEN);
    for (int i = 0; i < 3; i++)
        expect(held[i], GEN_DONE);
    assert_false(none->over);
    heard_free(none);
    engine_stop(en);
}

static void slots_that_are_free_do_not_count_as_waiting(void **state)
{
    struct engine *en = start_engine(1, 2, 0, 0);

    (void)state;
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "m", 1);
    expect(ask(en, 2), GEN_DONE);
    engine_stop(en);
}

static void a_closed_gate_holds_newcomers_until_it_opens(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 4);
    struct heard *running = ask(en, 200);

    (void)state;
    heard_wait(running, heard_has_tokens, 1);
    set_gate(en, GATE_HOLD);
    struct heard *held = ask(en, 2);

    assert_false(engine_wait_drained(en, 0) && !running->over);
    expect(running, GEN_DONE); /* who runs is not stopped */
    assert_true(engine_wait_drained(en, 10000));
    assert_int_equal(engine_waiting(en), 1);
    assert_false(held->admitted);
    set_gate(en, GATE_OPEN);
    expect(held, GEN_DONE);
    engine_stop(en);
}

static void a_request_is_held_only_so_long(void **state)
{
    struct engine_config c = {.n_threads = 1,
                              .kernels = kernels_pick(false),
                              .max_running = 1,
                              .max_waiting = 4,
                              .hold_timeout_ms = 30};
    struct err e = {0};
    struct engine *en = engine_start(&c, &e);

    (void)state;
    assert_non_null(en);
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "m", 1);
    set_gate(en, GATE_HOLD);
    int64_t start = clock_mono_ns();

    expect(ask(en, 2), GEN_HOLD_TIMEOUT);
    assert_true(clock_ms_since(start) >= 30);
    engine_stop(en);
}

static void torn_weights_refuse_who_waits_and_who_comes(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);

    (void)state;
    set_gate(en, GATE_HOLD);
    struct heard *held = ask(en, 2);

    set_gate(en, GATE_REFUSE);
    expect(held, GEN_TORN);
    expect(ask(en, 2), GEN_TORN);
    set_gate(en, GATE_OPEN);
    expect(ask(en, 2), GEN_DONE);
    engine_stop(en);
}

static void a_load_since_the_name_was_resolved_sends_the_request_back(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);

    (void)state;
    set_gate(en, GATE_HOLD);
    struct heard *held = ask(en, 2);

    make_resident(en, load_tiny(en, MODELS "tiny-qwen2"), "other", 2);
    set_gate(en, GATE_OPEN);
    expect(held, GEN_RESOLVE_AGAIN);
    engine_stop(en);
}

static void without_a_model_nothing_is_generated(void **state)
{
    struct engine *en = start_engine(1, 1, 4, 0);

    (void)state;
    expect(ask(en, 2), GEN_NO_MODEL);
    engine_stop(en);
}

static void what_can_never_fit_is_refused_and_what_fits_later_waits(void **state)
{
    /* one block of tiny-llama: 64 positions x 3 layers x 2 heads x 16 x (K + V) x 4 bytes */
    struct engine *en = start_engine(1, 8, 8, (size_t)3 * 64 * 3 * 2 * 16 * 2 * 4);
    struct heard *h[4];

    (void)state;
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "m", 1);
    expect(ask(en, 250), GEN_NO_MEMORY);
    for (int i = 0; i < 4; i++)
        h[i] = ask(en, 100); /* two blocks each: one at a time */
    for (int i = 0; i < 4; i++)
        expect(h[i], GEN_DONE);
    engine_stop(en);
}

static void tokens_outside_the_vocabulary_are_refused_at_once(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    static const int32_t wrong[2][2] = {{1, 512}, {-1, 3}};
    struct heard *none = heard_new();

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct gen_prompt p = {.tokens = wrong[i], .n = 2};
        struct gen_spec spec = plain_spec(&p, 1, 2);
        struct err e = {0};

        spec.on_event = hear;
        spec.arg = none;
        assert_null(engine_submit(en, &spec, &e));
        assert_int_equal(e.code, ERR_ARG);
    }
    heard_free(none);
    engine_stop(en);
}

static void stopping_ends_who_runs_and_who_waits(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    struct heard *running = ask(en, 500), *waiting = ask(en, 2);

    (void)state;
    heard_wait(running, heard_has_tokens, 1);
    engine_stop(en);
    expect(running, GEN_STOPPED);
    expect(waiting, GEN_STOPPED);
}

/* ---- requests in the background ---- */

static struct heard *ask_in_background(struct engine *en, int max_tokens)
{
    struct gen_spec spec = plain_spec(&prompt, 1, max_tokens);

    spec.background = true;
    return submit(en, spec);
}

struct seen {
    struct heard **h;
    int n, admitted;
};

static void count_admitted(struct engine *en, void *arg)
{
    struct seen *seen = arg;

    (void)en;
    for (int i = 0; i < seen->n; i++)
        seen->admitted += seen->h[i]->admitted && !seen->h[i]->over;
}

static void requests_in_the_background_take_half_of_the_slots(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 4);
    struct heard *h[4];
    struct seen seen = {.h = h, .n = 4};

    (void)state;
    set_gate(en, GATE_HOLD);
    for (int i = 0; i < 4; i++)
        h[i] = ask_in_background(en, 400);
    set_gate(en, GATE_OPEN);
    heard_wait(h[1], heard_has_tokens, 2);
    engine_call(en, count_admitted, &seen);
    assert_int_equal(seen.admitted, 2);
    for (int i = 0; i < 4; i++)
        expect(h[i], GEN_DONE);
    engine_stop(en);
}

static void nobody_in_the_background_ran(void *arg, struct heard *h)
{
    struct heard **background = arg;

    (void)h; /* on the engine thread, like the admissions */
    assert_false(background[0]->admitted || background[1]->admitted);
}

static void others_pass_those_in_the_background(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    struct heard *background[2], *other;

    (void)state;
    set_gate(en, GATE_HOLD);
    for (int i = 0; i < 2; i++)
        background[i] = ask_in_background(en, 3);
    other = submit_heard(en, plain_spec(&prompt, 1, 5), nobody_in_the_background_ran, background);
    set_gate(en, GATE_OPEN);
    expect(other, GEN_DONE);
    expect(background[0], GEN_DONE);
    expect(background[1], GEN_DONE);
    engine_stop(en);
}

static void those_in_the_background_are_neither_counted_nor_refused_nor_timed(void **state)
{
    struct engine_config c = {
        .n_threads = 1, .kernels = kernels_pick(false), .max_running = 2, .hold_timeout_ms = 30};
    struct timespec longer = {.tv_nsec = 60000000};
    struct err e = {0};
    struct engine *en = engine_start(&c, &e);
    struct heard *h[5], *cancelled;

    (void)state;
    assert_non_null(en);
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "m", 1);
    set_gate(en, GATE_HOLD);
    for (int i = 0; i < 5; i++)
        h[i] = ask_in_background(en, 2);
    cancelled = ask_in_background(en, 2);
    assert_int_equal(engine_waiting(en), 0);
    gen_cancel(cancelled->gen);
    expect(cancelled, GEN_CANCELLED);
    nanosleep(&longer, NULL);
    set_gate(en, GATE_OPEN);
    for (int i = 0; i < 5; i++)
        expect(h[i], GEN_DONE);
    set_gate(en, GATE_REFUSE);
    expect(ask_in_background(en, 2), GEN_TORN);
    engine_stop(en);
}

struct ticks {
    int n;
    int64_t first, second;
};

static int64_t tick_twice(struct engine *en, void *arg)
{
    struct ticks *t = arg;
    int64_t now = clock_mono_ns();

    (void)en;
    if (t->first == 0)
        t->first = now;
    else if (t->second == 0 && now - t->first >= 20000000)
        t->second = now;
    t->n++;
    return t->second ? 0 : t->first + 20000000;
}

static void read_ticks(struct engine *en, void *arg)
{
    (void)en;
    (void)arg;
}

static void a_tick_comes_back_when_its_time_has_come_and_then_the_thread_sleeps(void **state)
{
    struct engine *en = start_engine(1, 1, 1, 0);
    struct ticks t = {0};
    struct timespec wait = {.tv_nsec = 100000000};

    (void)state;
    engine_set_tick(en, tick_twice, &t);
    nanosleep(&wait, NULL);
    engine_call(en, read_ticks, NULL); /* the tick's writes are seen after a message */
    assert_true(t.second > t.first);
    assert_true(t.n < 20); /* not a busy loop */
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cancelled_request_ends_within_a_token_and_frees_its_slot),
        cmocka_unit_test(a_waiting_request_can_be_cancelled),
        cmocka_unit_test(a_cut_from_the_token_handler_is_the_last_token),
        cmocka_unit_test(the_queue_refuses_more_than_it_holds),
        cmocka_unit_test(slots_that_are_free_do_not_count_as_waiting),
        cmocka_unit_test(a_closed_gate_holds_newcomers_until_it_opens),
        cmocka_unit_test(a_request_is_held_only_so_long),
        cmocka_unit_test(torn_weights_refuse_who_waits_and_who_comes),
        cmocka_unit_test(a_load_since_the_name_was_resolved_sends_the_request_back),
        cmocka_unit_test(without_a_model_nothing_is_generated),
        cmocka_unit_test(what_can_never_fit_is_refused_and_what_fits_later_waits),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused_at_once),
        cmocka_unit_test(stopping_ends_who_runs_and_who_waits),
        cmocka_unit_test(requests_in_the_background_take_half_of_the_slots),
        cmocka_unit_test(others_pass_those_in_the_background),
        cmocka_unit_test(those_in_the_background_are_neither_counted_nor_refused_nor_timed),
        cmocka_unit_test(a_tick_comes_back_when_its_time_has_come_and_then_the_thread_sleeps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
