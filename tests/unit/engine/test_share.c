/* A core lent to a background job comes back within the steps that compute much. */
#include "base/pool.h"
#include "engine_test.h"

enum { ROWS_MAX = 4, PROMPT = 12, TOKENS = 60, TRIES = 200 };

/* A background job: it has the core and does nothing but look whether it must rest. */
struct job {
    struct pool *pool;
    pthread_t thread;
    bool got; /* valid once it has started */
    _Atomic bool started, stop;
    _Atomic int rests;
};

static void *job_main(void *arg)
{
    struct job *j = arg;

    j->got = pool_borrow(j->pool);
    atomic_store(&j->started, true);
    if (!j->got)
        return NULL;
    while (!atomic_load(&j->stop))
        if (pool_rest(j->pool))
            atomic_fetch_add(&j->rests, 1);
    pool_give_back(j->pool);
    return NULL;
}

static struct engine *start_sharing(int share)
{
    struct engine_config c = {.n_threads = 2,
                              .kernels = kernels_pick(false),
                              .max_running = ROWS_MAX,
                              .max_waiting = 4,
                              .kv_bytes = (size_t)64 << 20,
                              .hold_timeout_ms = 60000,
                              .background_share = share};
    struct err e = {0};
    struct engine *en = engine_start(&c, &e);

    assert_non_null(en);
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "tiny-llama", 1);
    return en;
}

/* So many sequences, decoded together. */
static struct heard *ask(struct engine *en, int rows)
{
    int32_t ids[ROWS_MAX][PROMPT];
    struct gen_prompt prompts[ROWS_MAX];

    for (int i = 0; i < rows; i++) {
        fill_prompt(ids[i], PROMPT, (uint32_t)i);
        prompts[i] = (struct gen_prompt){.tokens = ids[i], .n = 1};
    }
    struct heard *h = submit(en, plain_spec(prompts, rows, TOKENS));

    heard_end(h, GEN_DONE);
    return h;
}

/* How often a job rests while requests of so many rows run, at most `tries` one after another;
 * every answer is `expected`. */
static int rests_of(int share, int rows, int tries, const struct heard *expected)
{
    struct engine *en = start_sharing(share);
    struct job j = {.pool = engine_pool(en)};

    assert_int_equal(pthread_create(&j.thread, NULL, job_main, &j), 0);
    while (!atomic_load(&j.started))
        sched_yield();
    for (int i = 0; j.got && i < tries && atomic_load(&j.rests) == 0; i++) {
        struct heard *h = ask(en, rows);

        for (int s = 0; s < rows; s++)
            assert_true(same_answer(h, expected, s));
        heard_free(h);
    }
    atomic_store(&j.stop, true);
    pthread_join(j.thread, NULL);
    engine_stop(en);
    assert_true(j.got);
    return atomic_load(&j.rests);
}

static void a_lent_core_comes_back_within_steps_of_many_rows(void **state)
{
    struct engine *en = start_sharing(100);
    struct heard *expected = ask(en, ROWS_MAX);

    (void)state;
    engine_stop(en);
    assert_int_equal(rests_of(100, ROWS_MAX, 3, expected), 0);
    assert_int_equal(rests_of(1, 2, 3, expected), 0); /* bound by reading the weights */
    assert_true(rests_of(1, ROWS_MAX, TRIES, expected) > 0);
    heard_free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lent_core_comes_back_within_steps_of_many_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
