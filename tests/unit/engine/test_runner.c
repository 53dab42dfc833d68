/* How many rows of prefill one step takes. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "engine/engine_impl.h"
#include "engine/runner.h"
#include "engine_test.h"
#include "model/forward.h"

static void note(struct step_clock *c, int n_decode, int n_prefill, double ms)
{
    for (int i = 0; i < 40; i++) /* means have settled */
        step_clock_note(c, n_decode, n_prefill, ms);
}

static void chunks_follow_the_measured_time_of_a_row(void **state)
{
    struct step_clock c = {0};

    (void)state;
    note(&c, 8, 0, 5);
    note(&c, 8, 40, 5 + 20);
    assert_int_equal(step_clock_chunk(&c, true), 44); /* 22 ms are left, a row adds half of one */
    assert_int_equal(step_clock_chunk(&c, false), FORWARD_ROWS_MAX);
    note(&c, 0, 100, 200);
    assert_int_equal(step_clock_chunk(&c, false), 160);
}

static void a_busy_machine_does_not_starve_prompts(void **state)
{
    struct step_clock c = {0};

    (void)state;
    note(&c, 8, 0, 60); /* decoding alone takes more than a step should */
    note(&c, 8, 16, 60 + 24);
    assert_int_equal(step_clock_chunk(&c, true), 20);
}

static void a_few_slow_steps_do_not_make_chunks_longer(void **state)
{
    struct step_clock c = {0};

    (void)state;
    note(&c, 8, 0, 10);
    note(&c, 8, 20, 10 + 10);
    assert_int_equal(step_clock_chunk(&c, true), 34);
    for (int i = 0; i < 5; i++)
        step_clock_note(&c, 8, 0, 45); /* the next request is being parsed */
    assert_in_range(step_clock_chunk(&c, true), 20, 34);
    for (int i = 0; i < 300; i++)
        step_clock_note(&c, 8, 0, 45); /* steps have become that long */
    assert_in_range(step_clock_chunk(&c, true), 44, 45);
}

static void a_chunk_stays_within_its_bounds(void **state)
{
    struct step_clock fast = {.row_ms = 1e-6}, slow = {.row_ms = 1e6}, unknown = {0};

    (void)state;
    assert_int_equal(step_clock_chunk(&fast, true), 128);
    assert_int_equal(step_clock_chunk(&fast, false), FORWARD_ROWS_MAX);
    assert_int_equal(step_clock_chunk(&slow, true), 8);
    assert_int_equal(step_clock_chunk(&slow, false), 64);
    assert_int_equal(step_clock_chunk(&unknown, true), 32);
    assert_int_equal(step_clock_chunk(&unknown, false), 128);
}

static void a_few_rows_say_nothing_of_a_row(void **state)
{
    struct step_clock c = {0};

    (void)state;
    step_clock_note(&c, 0, 3, 1000); /* bound by reading the weights */
    assert_true(c.row_ms <= 0);
}

static void the_median_of_slots_is_known_after_three(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    static const int32_t ids[4] = {273, 293, 116, 325};
    struct gen_prompt p = {.tokens = ids, .n = 4};
    struct engine_stats st;

    (void)state;
    for (int i = 0; i < 3; i++) {
        engine_get_stats(en, &st);
        assert_true(st.median_slot_ms < 0);
        struct heard *h = submit(en, plain_spec(&p, 1, 3));

        heard_end(h, GEN_DONE);
        heard_free(h);
    }
    engine_get_stats(en, &st);
    assert_true(st.median_slot_ms > 0);
    assert_int_equal(st.generated_tokens, 9);
    assert_int_equal(st.prompt_tokens, 12);
    assert_int_equal(st.running, 0);
    assert_int_equal(st.images_alive, 1);
    engine_stop(en);
}

static void the_median_is_of_the_last_slots_only(void **state)
{
    struct engine_config c = {
        .n_threads = 1, .max_running = 1, .kernels = kernels_by_name("ref"), .slot_times = 3};
    static const double ms[] = {100, 100, 100, 7, 5};
    struct engine_stats st;
    struct err e = {0};
    struct engine *en = engine_start(&c, &e);

    (void)state;
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        engine_note_slot(en, ms[i]);
    engine_get_stats(en, &st);
    assert_true(st.median_slot_ms == 7); /* of 100, 7 and 5 */
    engine_stop(en);
}

static _Atomic int naps; /* of a second, that the next calls of swiglu take */

static void swiglu_with_naps(float *y, const float *gate, const float *up, size_t n)
{
    if (atomic_load(&naps) > 0 && atomic_fetch_sub(&naps, 1) > 0)
        sleep(1);
    kernels_pick(false)->swiglu(y, gate, up, n);
}

struct slow_steps {
    pthread_mutex_t lock;
    struct engine_slow_step worst;
};

static void keep_worst(void *arg, const struct engine_slow_step *s)
{
    struct slow_steps *all = arg;

    pthread_mutex_lock(&all->lock);
    if (s->ms > all->worst.ms)
        all->worst = *s;
    pthread_mutex_unlock(&all->lock);
}

static void a_step_that_takes_far_longer_than_others_is_told(void **state)
{
    static const int32_t ids[4] = {273, 293, 116, 325};
    struct gen_prompt p = {.tokens = ids, .n = 4};
    struct kernels k = *kernels_pick(false);
    struct slow_steps all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct engine_config c = {.n_threads = 1,
                              .max_running = 1,
                              .kernels = &k,
                              .on_slow_step = keep_worst,
                              .slow_step_arg = &all};
    struct err e = {0};

    (void)state;
    k.swiglu = swiglu_with_naps;
    struct engine *en = engine_start(&c, &e);

    assert_non_null(en);
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "tiny-llama", 1);
    struct heard *h = submit(en, plain_spec(&p, 1, 100));

    heard_wait(h, heard_has_tokens, 20);
    atomic_store(&naps, 1);
    heard_end(h, GEN_DONE);
    heard_free(h);
    engine_stop(en);
    assert_int_equal(atomic_load(&naps), 0);
    assert_true(all.worst.ms >= 1000);
    assert_true(all.worst.expected_ms > 0 && all.worst.expected_ms < all.worst.ms / 4);
    assert_int_equal(all.worst.decode_rows, 1);
    assert_int_equal(all.worst.prefill_rows, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_follow_the_measured_time_of_a_row),
        cmocka_unit_test(a_busy_machine_does_not_starve_prompts),
        cmocka_unit_test(a_few_slow_steps_do_not_make_chunks_longer),
        cmocka_unit_test(a_chunk_stays_within_its_bounds),
        cmocka_unit_test(a_few_rows_say_nothing_of_a_row),
        cmocka_unit_test(the_median_of_slots_is_known_after_three),
        cmocka_unit_test(the_median_is_of_the_last_slots_only),
        cmocka_unit_test(a_step_that_takes_far_longer_than_others_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
