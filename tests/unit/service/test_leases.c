/* Leases on their own: one at a time, known by its id, ended by time, release or unload. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/log.h"
#include "service/leases.h"

enum { MODEL = 7, OTHER = 8 };

struct fixture {
    struct leases *l;
    struct refusal r;
    json_t *data;
    char id[64];
};

static int setup(void **state)
{
    static struct fixture f;
    struct err e = {0};

    f = (struct fixture){.l = leases_new(4, &e)};
    *state = &f;
    return f.l ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    refusal_clear(&f->r);
    json_decref(f->data);
    leases_free(f->l);
    return 0;
}

static const char *word(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static int take_by(struct fixture *f, const struct lease_terms *t)
{
    int rc;

    json_decref(f->data);
    f->data = NULL;
    rc = leases_acquire(f->l, MODEL, "tiny", t, &f->data, &f->r);
    if (rc == 0)
        snprintf(f->id, sizeof f->id, "%s", word(f->data, "lease_id"));
    return rc;
}

static int take(struct fixture *f, int64_t ttl_s)
{
    const struct lease_terms t = {.holder = "bench", .reason = "a run", .ttl_s = ttl_s};

    return take_by(f, &t);
}

static int blocked(struct fixture *f, const char *id)
{
    const struct lease_ask ask = {
        .id = id, .operation = "load", .target = OTHER, .code = REFUSAL_MODEL_LEASED};

    return leases_refuse(f->l, &ask, &f->r);
}

static void end_reason_is(struct fixture *f, const char *expected)
{
    json_t *ended = leases_last_ended(f->l, MODEL);

    assert_string_equal(word(ended, "end_reason"), expected);
    json_decref(ended);
}

static void a_lease_blocks_others_and_lets_its_owner_through(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(blocked(f, NULL), 0);
    assert_int_equal(take(f, 60), 0);
    assert_int_equal(strlen(f->id), 43);
    assert_int_equal(blocked(f, NULL), -1);
    assert_string_equal(refusal_wire_code(f->r.code), "MODEL_LEASED");
    assert_string_equal(word(f->r.details, "holder"), "bench");
    assert_string_equal(word(f->r.details, "operation"), "load");
    assert_int_equal(json_integer_value(json_object_get(f->r.details, "leased_model_id")), MODEL);
    assert_int_equal(json_integer_value(json_object_get(f->r.details, "target_model_id")), OTHER);
    assert_int_equal(blocked(f, "a-wrong-id"), -1);
    assert_int_equal(blocked(f, f->id), 0);
}

static void the_id_is_told_once(void **state)
{
    struct fixture *f = *state;
    json_t *live;

    assert_int_equal(take(f, 60), 0);
    live = leases_live(f->l, MODEL);
    assert_null(json_object_get(live, "lease_id"));
    assert_true(json_number_value(json_object_get(live, "seconds_remaining")) > 50);
    json_decref(live);
    live = leases_live(f->l, OTHER);
    assert_true(json_is_null(live));
    json_decref(live);
}

static void there_is_one_lease_at_a_time(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(take(f, 60), 0);
    assert_int_equal(take(f, 60), -1);
    assert_string_equal(word(f->r.details, "operation"), "lease");
}

static void a_released_lease_is_remembered_as_released(void **state)
{
    struct fixture *f = *state;
    json_t *ended = NULL;

    assert_int_equal(take(f, 60), 0);
    assert_int_equal(leases_release(f->l, OTHER, f->id, &ended, &f->r), -1);
    assert_int_equal(f->r.code, REFUSAL_LEASE_NOT_FOUND);
    assert_int_equal(leases_release(f->l, MODEL, f->id, &ended, &f->r), 0);
    assert_string_equal(word(ended, "end_reason"), "released");
    json_decref(ended);
    assert_int_equal(leases_release(f->l, MODEL, f->id, &ended, &f->r), -1);
    assert_int_equal(f->r.code, REFUSAL_LEASE_EXPIRED);
    assert_string_equal(word(f->r.details, "end_reason"), "released");
    assert_int_equal(blocked(f, NULL), 0);
}

static void time_ends_a_lease(void **state)
{
    struct fixture *f = *state;
    json_t *renewed = NULL;

    assert_int_equal(take(f, 1), 0);
    assert_int_equal(leases_renew(f->l, MODEL, f->id, 1, &renewed, &f->r), 0);
    assert_int_equal(json_integer_value(json_object_get(renewed, "ttl_seconds")), 1);
    json_decref(renewed);
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 50000000}, NULL);
    assert_int_equal(blocked(f, NULL), 0);
    end_reason_is(f, "expired");
    assert_int_equal(leases_renew(f->l, MODEL, f->id, 1, &renewed, &f->r), -1);
    assert_int_equal(f->r.code, REFUSAL_LEASE_EXPIRED);
    assert_int_equal(take(f, 60), 0);
}

static void a_model_that_leaves_takes_its_lease_along(void **state)
{
    struct fixture *f = *state;

    leases_end_resident(f->l); /* without a lease: nothing */
    assert_int_equal(take(f, 60), 0);
    leases_end_resident(f->l);
    end_reason_is(f, "model_unloaded");
    assert_int_equal(blocked(f, NULL), 0);
}

static void only_the_last_ended_leases_are_remembered(void **state)
{
    struct fixture *f = *state;
    char first[64];
    json_t *ended = NULL;

    assert_int_equal(take(f, 60), 0);
    memcpy(first, f->id, sizeof first);
    for (int i = 0; i < 4; i++) {
        leases_end_resident(f->l);
        assert_int_equal(leases_release(f->l, MODEL, first, &ended, &f->r), -1);
        assert_int_equal(f->r.code, REFUSAL_LEASE_EXPIRED);
        assert_int_equal(take(f, 60), 0);
    }
    leases_end_resident(f->l);
    assert_int_equal(leases_release(f->l, MODEL, first, &ended, &f->r), -1);
    assert_int_equal(f->r.code, REFUSAL_LEASE_NOT_FOUND);
}

/* Known from the moment it is taken, not when its batch has noted the id. */
static void leases_of_batches_do_not_stand_against_batches(void **state)
{
    static const struct lease_terms of_batch = {"batch", "rows", 60, .for_batch = true};
    const struct lease_ask batch = {
        .operation = "batch", .code = REFUSAL_V1_MODEL_LEASED, .for_batch = true};
    struct fixture *f = *state;

    assert_int_equal(take(f, 60), 0);
    assert_int_equal(leases_refuse(f->l, &batch, &f->r), -1);
    refusal_clear(&f->r);
    leases_end_resident(f->l);
    assert_int_equal(take_by(f, &of_batch), 0);
    assert_int_equal(leases_refuse(f->l, &batch, &f->r), 0);
    assert_int_equal(blocked(f, NULL), -1);
}

#define LEASE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LEASE_TEST(leases_of_batches_do_not_stand_against_batches),
        LEASE_TEST(a_lease_blocks_others_and_lets_its_owner_through),
        LEASE_TEST(the_id_is_told_once),
        LEASE_TEST(there_is_one_lease_at_a_time),
        LEASE_TEST(a_released_lease_is_remembered_as_released),
        LEASE_TEST(time_ends_a_lease),
        LEASE_TEST(a_model_that_leaves_takes_its_lease_along),
        LEASE_TEST(only_the_last_ended_leases_are_remembered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
