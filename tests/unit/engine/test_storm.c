/* Many clients, swaps, gates and snapshots at once: every request ends, and ends right. */
#include <sched.h>

#include "engine/engine_impl.h"
#include "engine/snapshot.h"
#include "engine_test.h"

enum { CLIENTS = 4, REQUESTS = 25, SWAPS = 12, KINDS = 4 };

struct client {
    struct engine *engine;
    unsigned seed;
    struct heard *expected[KINDS]; /* borrowed: the answers of an engine without a storm */
    int done, cancelled, sent_back;
};

static struct gen_spec kind_spec(struct gen_prompt *p, int32_t *ids, int kind)
{
    fill_prompt(ids, 150, (uint32_t)kind);
    *p = (struct gen_prompt){.tokens = ids, .n = 40 + 30 * kind};
    struct gen_spec spec = plain_spec(p, 1, 10 + 5 * kind);

    spec.temperature = kind % 2 ? 0.7f : 0;
    spec.seed = 5;
    return spec;
}

static unsigned next_random(struct client *c)
{
    c->seed = c->seed * 1103515245u + 12345u;
    return c->seed >> 16;
}

static void ask_once(struct client *c)
{
    int32_t ids[150];
    struct gen_prompt p;
    int kind = (int)(next_random(c) % KINDS);
    struct gen_spec spec = kind_spec(&p, ids, kind);
    struct served *s = engine_peek_served(c->engine);

    spec.load_counter = s->load_counter;
    served_unref(s);
    struct heard *h = submit(c->engine, spec);

    if (next_random(c) % 4 == 0)
        gen_cancel(h->gen);
    heard_wait(h, heard_is_over, 0);
    switch (h->last) {
    case GEN_DONE: /* all images have the same bytes */
        assert_true(same_answer(h, c->expected[kind], 0));
        c->done++;
        break;
    case GEN_CANCELLED:
        c->cancelled++;
        break;
    default:
        assert_int_equal(h->last, GEN_RESOLVE_AGAIN);
        c->sent_back++;
    }
    heard_free(h);
}

static void *run_client(void *arg)
{
    struct client *c = arg;

    for (int i = 0; i < REQUESTS; i++)
        ask_once(c);
    return NULL;
}

static void begin(struct engine *en, void *arg)
{
    struct err e = {0};

    *(struct snapshot **)arg = snapshot_begin(en, engine_resident(en), &e);
}

/* A pause, a save and a load with the same weights. */
static void disturb(struct engine *en, uint64_t load_counter)
{
    struct snapshot *s = NULL;
    unsigned char header[4096];
    struct err e = {0};

    engine_call(en, begin, &s);
    assert_non_null(s);
    set_gate(en, GATE_HOLD);
    assert_true(engine_wait_drained(en, PATIENCE_S * 1000));
    assert_int_equal(snapshot_read(s, header, 0, sizeof header, &e), 0);
    set_gate(en, GATE_OPEN);
    make_resident(en, load_tiny(en, MODELS "tiny-llama"), "m", load_counter);
    snapshot_end(s);
    assert_true(engine_wait_images(en, 1, PATIENCE_S * 1000));
}

static void answer_in_peace(struct heard *expected[KINDS])
{
    struct engine *en = start_with_model("tiny-llama", 2, 4);

    for (int k = 0; k < KINDS; k++) {
        int32_t ids[150];
        struct gen_prompt p;

        expected[k] = submit(en, kind_spec(&p, ids, k));
        heard_end(expected[k], GEN_DONE);
        gen_free(expected[k]->gen);
        expected[k]->gen = NULL;
    }
    engine_stop(en);
}

static void every_request_ends_and_ends_right_in_a_storm(void **state)
{
    struct client clients[CLIENTS];
    struct heard *expected[KINDS];
    pthread_t threads[CLIENTS];
    int done = 0;

    (void)state;
    answer_in_peace(expected);
    struct engine *en = start_with_model("tiny-llama", 2, 3);

    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){.engine = en, .seed = (unsigned)i + 1};
        memcpy(clients[i].expected, expected, sizeof expected);
        assert_int_equal(pthread_create(&threads[i], NULL, run_client, &clients[i]), 0);
    }
    for (int i = 0; i < SWAPS; i++)
        disturb(en, 2 + (uint64_t)i);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        done += clients[i].done;
        assert_int_equal(clients[i].done + clients[i].cancelled + clients[i].sent_back, REQUESTS);
    }
    assert_true(done > 0);
    assert_int_equal(engine_waiting(en), 0);
    assert_true(engine_wait_drained(en, 1000));
    assert_true(engine_wait_images(en, 0, 1000));
    assert_int_equal(image_bank_alive(engine_bank(en)), 1);
    engine_stop(en);
    for (int k = 0; k < KINDS; k++)
        heard_free(expected[k]);
}

struct caller {
    struct engine *engine;
    atomic_bool *over;
};

/* For a moment, until the next message waits. */
static void await_the_next(struct engine *en, void *arg)
{
    int64_t until = clock_mono_ns() + 100000000;
    bool waits = false;

    (void)arg;
    while (!waits && clock_mono_ns() < until) {
        sched_yield();
        pthread_mutex_lock(&en->lock);
        waits = en->calls != NULL;
        pthread_mutex_unlock(&en->lock);
    }
}

static void *call_on_and_on(void *arg)
{
    const struct caller *c = arg;

    while (!atomic_load(c->over))
        engine_call(c->engine, await_the_next, NULL);
    return NULL;
}

static void messages_without_a_pause_do_not_keep_requests_from_running(void **state)
{
    enum { CALLERS = 3 };
    struct engine *en = start_with_model("tiny-llama", 2, 4);
    atomic_bool over = false;
    struct caller caller = {en, &over};
    pthread_t threads[CALLERS];
    struct gen_prompt p;
    int32_t ids[150];

    (void)state;
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_on_and_on, &caller), 0);
    struct heard *h = submit(en, kind_spec(&p, ids, 1));

    heard_end(h, GEN_DONE);
    atomic_store(&over, true);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    heard_free(h);
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_ends_and_ends_right_in_a_storm),
        cmocka_unit_test(messages_without_a_pause_do_not_keep_requests_from_running),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
