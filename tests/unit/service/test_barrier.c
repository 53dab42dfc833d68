/* Attach, commit, timers: the states of the weights and every way between them. */
#include "service_test.h"

#include <pthread.h>
#include <sys/wait.h>

#include "base/nomem.h"

static void a_commit_goes_through_its_steps_and_is_counted(void **state)
{
    struct fixture *f = *state;

    load_model(f, TINY);
    attach(f);
    REFUSED(f, hold(f, weights_resume), NOT_QUIESCED);
    REFUSED(f, hold(f, weights_commit_begin), NOT_QUIESCED);
    REFUSED(f, hold(f, weights_commit_end), COMMIT_NOT_OPEN);
    GRANTED(f, hold(f, weights_quiesce));
    assert_string_equal(text(f, "weights_state"), "clean");
    REFUSED(f, hold(f, weights_quiesce), ALREADY_QUIESCED);
    GRANTED(f, hold(f, weights_commit_begin));
    assert_string_equal(condition_now(f), "writing");
    REFUSED(f, hold(f, weights_commit_begin), WEIGHTS_NOT_CLEAN);
    REFUSED(f, hold(f, weights_resume), WEIGHTS_NOT_CLEAN);
    REFUSED(f, hold(f, weights_detach), WEIGHTS_NOT_CLEAN);
    assert_string_equal(detail(f, "weights_state"), "writing");
    GRANTED(f, hold(f, weights_commit_end));
    assert_int_equal(number(f, "commits"), 1);
    assert_int_equal(number(f, "steps_since_load"), 1);
    GRANTED(f, hold(f, weights_resume));
    GRANTED(f, hold(f, weights_detach));
    assert_string_equal(text(f, "weights_state"), "clean");
}

static void only_the_holder_gets_in(void **state)
{
    static weights_route_fn *const routes[] = {weights_heartbeat,  weights_quiesce,
                                               weights_resume,     weights_commit_begin,
                                               weights_commit_end, weights_detach};
    struct fixture *f = *state;

    for (size_t i = 0; i < 6; i++)
        REFUSED(f, call(f, routes[i], TRAINER, "att_x", json_object()), NOT_ATTACHED);
    REFUSED(f, call(f, weights_attach, TRAINER, NULL, json_object()), MODEL_NOT_LOADED);
    load_model(f, TINY);
    attach(f);
    REFUSED(f, call(f, weights_attach, OPERATOR, NULL, json_object()), ALREADY_ATTACHED);
    for (size_t i = 0; i < 6; i++) {
        REFUSED(f, call(f, routes[i], TRAINER, NULL, json_object()), NOT_ATTACHMENT_HOLDER);
        REFUSED(f, call(f, routes[i], TRAINER, "att_x", json_object()), NOT_ATTACHMENT_HOLDER);
        REFUSED(f, call(f, routes[i], NULL, f->attachment, json_object()), UNAUTHORIZED);
        REFUSED(f, call(f, routes[i], TRAINER, f->attachment, NULL), VALIDATION_ERROR);
        REFUSED(f, call(f, routes[i], TRAINER, f->attachment, json_pack("{s:i}", "x", 1)),
                VALIDATION_ERROR);
    }
    GRANTED(f, call(f, weights_heartbeat, OPERATOR, f->attachment, json_object()));
}

static void a_live_attachment_is_not_cleared_by_force(void **state)
{
    struct fixture *f = *state;

    load_model(f, TINY);
    attach(f);
    REFUSED(f, call(f, weights_detach, TRAINER, NULL, json_pack("{s:b}", "force", 1)), FORBIDDEN);
    REFUSED(f, call(f, weights_detach, OPERATOR, NULL, json_pack("{s:b}", "force", 1)),
            ATTACHMENT_NOT_STALE);
}

static void what_is_served_after_detach_is_out_of_the_client_s_reach(void **state)
{
    struct fixture *f = *state;
    struct image *shared, *after;
    char before[SHA256_HEX], now[SHA256_HEX];

    load_model(f, TINY);
    attach(f);
    commit(f, 0x10);
    weights_digest(f, before);
    shared = engine_peek_image(f->engine);
    assert_int_not_equal(shared->memory, IMAGE_PRIVATE);
    GRANTED(f, hold(f, weights_detach));
    after = engine_peek_image(f->engine);
    assert_int_equal(after->memory, IMAGE_PRIVATE);
    memset(shared->weights->base + shared->weights->data_start, 0xff, 4096); /* a late writer */
    weights_digest(f, now);
    assert_string_equal(now, before);
    image_unref(shared);
    image_unref(after);
}

static bool not_held(const struct weights_state *w)
{
    return !w->hold.on && w->hold_timeouts == 1;
}

static bool torn(const struct weights_state *w)
{
    return w->condition == WEIGHTS_TORN;
}

static bool stale(const struct weights_state *w)
{
    return w->attachment.stale;
}

static void short_hold(struct settings *s)
{
    s->quiesce_max_hold_s = 0.15;
}

static void a_hold_that_lasts_too_long_ends_by_itself(void **state)
{
    struct fixture *f = fixture_new(short_hold);

    (void)state;
    load_model(f, TINY);
    attach(f);
    GRANTED(f, hold(f, weights_quiesce));
    assert_true(wait_until(f, not_held));
    REFUSED(f, hold(f, weights_commit_begin), NOT_QUIESCED);
    fixture_free(f);
}

static void an_open_commit_suspends_the_hold_timer(void **state)
{
    struct fixture *f = fixture_new(short_hold);

    (void)state;
    load_model(f, TINY);
    attach(f);
    GRANTED(f, hold(f, weights_quiesce));
    GRANTED(f, hold(f, weights_commit_begin));
    wait_ms(400);
    GRANTED(f, hold(f, weights_commit_end));
    GRANTED(f, hold(f, weights_resume));
    fixture_free(f);
}

static void short_watchdog(struct settings *s)
{
    s->commit_watchdog_s = 0.15;
}

static void a_commit_that_does_not_end_tears_and_a_late_end_mends(void **state)
{
    struct fixture *f = fixture_new(short_watchdog);

    (void)state;
    load_model(f, TINY);
    attach(f);
    GRANTED(f, hold(f, weights_quiesce));
    GRANTED(f, hold(f, weights_commit_begin));
    assert_true(wait_until(f, torn));
    assert_int_equal(identity_refuse_torn(f->s, &f->r), -1);
    REFUSED(f, hold(f, weights_quiesce), WEIGHTS_NOT_CLEAN);
    REFUSED(f, save(f, "r", 1, NULL), WEIGHTS_NOT_CLEAN);
    assert_string_equal(detail(f, "weights_state"), "torn");
    GRANTED(f, hold(f, weights_commit_end));
    assert_true(json_is_true(json_object_get(f->data, "overran")));
    assert_string_equal(condition_now(f), "clean");
    GRANTED(f, hold(f, weights_resume)); /* serving stayed quiesced */
    fixture_free(f);
}

static void torn_survives_detach_and_attach(void **state)
{
    struct fixture *f = fixture_new(short_watchdog);

    (void)state;
    load_model(f, TINY);
    attach(f);
    GRANTED(f, hold(f, weights_quiesce));
    GRANTED(f, hold(f, weights_commit_begin));
    assert_true(wait_until(f, torn));
    GRANTED(f, hold(f, weights_detach));
    assert_string_equal(text(f, "weights_state"), "torn");
    attach(f);
    assert_string_equal(condition_now(f), "torn");
    REFUSED(f, hold(f, weights_commit_end), COMMIT_NOT_OPEN);
    fixture_free(f);
}

static void short_heartbeat(struct settings *s)
{
    s->heartbeat_timeout_s = 0.15;
}

static void a_silent_client_goes_stale_and_comes_back(void **state)
{
    struct fixture *f = fixture_new(short_heartbeat);
    struct weights_state w;

    (void)state;
    load_model(f, TINY);
    attach(f);
    GRANTED(f, hold(f, weights_quiesce));
    assert_true(wait_until(f, stale));
    state_read(f->s, &w, NULL);
    assert_false(w.hold.on);
    /* A call with the right id is a sign of life even when it is refused. */
    REFUSED(f, hold(f, weights_commit_end), COMMIT_NOT_OPEN);
    state_read(f->s, &w, NULL);
    assert_false(w.attachment.stale);
    assert_true(wait_until(f, stale));
    GRANTED(f, call(f, weights_detach, OPERATOR, NULL, json_pack("{s:b}", "force", 1)));
    fixture_free(f);
}

static void a_client_killed_inside_a_commit_leaves_torn_weights(void **state)
{
    struct fixture *f = fixture_new(short_watchdog);
    struct weights_state w;
    pid_t child;

    (void)state;
    load_model(f, TINY);
    child = fork();
    if (child == 0)
        for (;;)
            pause();
    GRANTED(f, call(f, weights_attach, TRAINER, NULL, json_pack("{s:i}", "pid", (int)child)));
    snprintf(f->attachment, sizeof f->attachment, "%s", text(f, "attachment_id"));
    GRANTED(f, hold(f, weights_quiesce));
    GRANTED(f, hold(f, weights_commit_begin));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_true(wait_until(f, stale));
    assert_true(wait_until(f, torn));
    state_read(f->s, &w, NULL);
    assert_true(w.attachment.present);
    fixture_free(f);
}

static void force_in_the_middle_of_a_commit_tears(void **state)
{
    struct fixture *f = fixture_new(short_heartbeat);

    (void)state;
    load_model(f, TINY);
    attach(f);
    GRANTED(f, hold(f, weights_quiesce));
    GRANTED(f, hold(f, weights_commit_begin));
    assert_true(wait_until(f, stale));
    GRANTED(f, call(f, weights_detach, OPERATOR, NULL, json_pack("{s:b}", "force", 1)));
    assert_string_equal(text(f, "weights_state"), "torn");
    fixture_free(f);
}

static void single(struct settings *s)
{
    s->barrier = BARRIER_SINGLE;
    s->continuous_batching = false;
}

static void the_literal_barrier_needs_one_slot(void **state)
{
    struct fixture *f = fixture_new(single);

    (void)state;
    load_model(f, TINY);
    attach(f);
    REFUSED(f, hold(f, weights_quiesce), BARRIER_UNAVAILABLE);
    assert_string_equal(detail(f, "reason"), "request_slots");
    f->set.max_concurrent = 1;
    GRANTED(f, hold(f, weights_quiesce));
    GRANTED(f, hold(f, weights_resume));
    f->set.continuous_batching = true;
    REFUSED(f, hold(f, weights_quiesce), BARRIER_UNAVAILABLE);
    assert_string_equal(detail(f, "reason"), "continuous_batching");
    fixture_free(f);
}

static void no_token_configured_disables_the_routes(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct tokens *none = tokens_parse("", &e);

    f->s->tokens = none;
    REFUSED(f, call(f, weights_attach, TRAINER, NULL, json_object()), WEIGHTS_DISABLED);
    f->s->tokens = f->tokens;
    tokens_free(none);
}

/* A call whose client has hung up. */
static int call_and_leave(struct fixture *f, weights_route_fn *route, const char *attachment)
{
    atomic_bool gone = true;
    struct weights_req req = {
        .authorization = TRAINER, .attachment = attachment, .body = json_object(), .gone = &gone};
    int rc;

    refusal_clear(&f->r);
    json_decref(f->data);
    f->data = NULL;
    rc = route(f->s, &req, &f->data, &f->r);
    json_decref((json_t *)req.body);
    return rc;
}

static void who_leaves_before_the_answer_neither_attaches_nor_holds(void **state)
{
    struct fixture *f = *state;
    struct weights_state w;

    load_model(f, TINY);
    REFUSED(f, call_and_leave(f, weights_attach, NULL), CLIENT_CLOSED_REQUEST);
    attach(f); /* nobody stands in the way */
    REFUSED(f, call_and_leave(f, weights_quiesce, f->attachment), CLIENT_CLOSED_REQUEST);
    state_read(f->s, &w, NULL);
    assert_false(w.hold.on || w.draining);
    GRANTED(f, hold(f, weights_quiesce));
}

static int64_t last_seen(struct fixture *f)
{
    struct weights_state w;

    state_read(f->s, &w, NULL);
    return w.attachment.last_seen_ns;
}

static void the_end_of_a_call_whose_client_is_gone_is_no_sign_of_life(void **state)
{
    struct fixture *f = *state;
    int64_t seen;

    load_model(f, TINY);
    attach(f);
    seen = last_seen(f);
    GRANTED(f, call_and_leave(f, weights_heartbeat, f->attachment));
    assert_int_equal(last_seen(f), seen);
    GRANTED(f, hold(f, weights_heartbeat));
    assert_true(last_seen(f) > seen);
}

static void own_barrier(struct engine *en, void *arg)
{
    struct fixture *f = arg;

    (void)en;
    f->s->weights->owner = OWNER_ADAPTER;
}

static void a_hold_that_something_else_has_taken_over_is_a_pause_in_progress(void **state)
{
    struct fixture *f = *state;

    load_model(f, TINY);
    attach(f);
    GRANTED(f, hold(f, weights_quiesce));
    engine_call(f->engine, own_barrier, f);
    REFUSED(f, hold(f, weights_quiesce), PAUSE_IN_PROGRESS);
    assert_string_equal(detail(f, "held_by"), "adapter");
}

static void a_pid_that_no_process_has_is_refused(void **state)
{
    struct fixture *f = *state;
    json_int_t wrapped = ((json_int_t)1 << 32) + getpid(); /* as 32 bits: this process */

    load_model(f, TINY);
    REFUSED(f, call(f, weights_attach, TRAINER, NULL, json_pack("{s:I}", "pid", wrapped)),
            VALIDATION_ERROR);
    GRANTED(f,
            call(f, weights_attach, TRAINER, NULL, json_pack("{s:I}", "pid", (json_int_t)INT_MAX)));
}

struct racer {
    struct fixture *f;
    int granted, refused;
};

static void *race(void *arg)
{
    struct racer *x = arg;

    for (int i = 0; i < 20; i++) {
        struct weights_req req = {.authorization = TRAINER, .body = json_object()};
        struct refusal r = {0};
        json_t *data = NULL;

        if (weights_attach(x->f->s, &req, &data, &r) == 0)
            x->granted++;
        else
            x->refused += r.code == REFUSAL_ALREADY_ATTACHED;
        json_decref(data);
        json_decref((json_t *)req.body);
        refusal_clear(&r);
    }
    nomem_let_go();
    return NULL;
}

static void of_many_that_attach_at_once_one_wins(void **state)
{
    struct fixture *f = *state;
    struct racer racers[4] = {{f, 0, 0}, {f, 0, 0}, {f, 0, 0}, {f, 0, 0}};
    pthread_t threads[4];
    int granted = 0, refused = 0;

    load_model(f, TINY);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, race, &racers[i]);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        granted += racers[i].granted;
        refused += racers[i].refused;
    }
    assert_int_equal(granted, 1);
    assert_int_equal(refused, 79);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(a_commit_goes_through_its_steps_and_is_counted),
        SERVICE_TEST(only_the_holder_gets_in),
        SERVICE_TEST(a_live_attachment_is_not_cleared_by_force),
        SERVICE_TEST(what_is_served_after_detach_is_out_of_the_client_s_reach),
        cmocka_unit_test(a_hold_that_lasts_too_long_ends_by_itself),
        cmocka_unit_test(an_open_commit_suspends_the_hold_timer),
        cmocka_unit_test(a_commit_that_does_not_end_tears_and_a_late_end_mends),
        cmocka_unit_test(torn_survives_detach_and_attach),
        cmocka_unit_test(a_silent_client_goes_stale_and_comes_back),
        cmocka_unit_test(a_client_killed_inside_a_commit_leaves_torn_weights),
        cmocka_unit_test(force_in_the_middle_of_a_commit_tears),
        cmocka_unit_test(the_literal_barrier_needs_one_slot),
        SERVICE_TEST(no_token_configured_disables_the_routes),
        SERVICE_TEST(who_leaves_before_the_answer_neither_attaches_nor_holds),
        SERVICE_TEST(the_end_of_a_call_whose_client_is_gone_is_no_sign_of_life),
        SERVICE_TEST(a_hold_that_something_else_has_taken_over_is_a_pause_in_progress),
        SERVICE_TEST(a_pid_that_no_process_has_is_refused),
        SERVICE_TEST(of_many_that_attach_at_once_one_wins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
