/* Refusals as data: codes and statuses, and tables whose rows stand in the documented order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "service/adapters.h"
#include "service/load_op.h"
#include "service/op.h"
#include "service/refusal.h"
#include "service/save_op.h"

static void numbers_of(const struct refusal_rule *rules, char *out, size_t n)
{
    size_t at = 0;

    out[0] = '\0';
    for (; rules->check; rules++)
        at += (size_t)snprintf(out + at, n - at, "%s%s", at ? " " : "", rules->n);
}

#define ORDER(rules, expected)                  \
    do {                                        \
        char found[256];                        \
        numbers_of(rules, found, sizeof found); \
        assert_string_equal(found, expected);   \
    } while (0)

static void a_save_is_refused_in_the_documented_order(void **state)
{
    (void)state;
    ORDER(save_rules, "1 1a 2 3 4 5 6 7 8 9 10 11 12 13 14");
    ORDER(save_barrier_rules, "3 4 8 15 16 17 17'");
}

static void a_load_is_refused_in_the_documented_order(void **state)
{
    (void)state;
    ORDER(load_rules, "1 2 3 4 5 6 7 8 9 10 11 12 13 14");
    ORDER(load_file_rules, "15 16 17");
    ORDER(load_mode_rules, "18 19 20 21 22 22");
    ORDER(load_barrier_rules, "9 10 11 12 13 14 18");
}

static void an_adapter_is_refused_in_the_documented_order(void **state)
{
    (void)state;
    ORDER(adapter_apply_rules,
          "token body MODEL_NOT_LOADED ADAPTER_NOT_FOUND ADAPTER_INVALID ALREADY_ATTACHED "
          "MODEL_LEASED BARRIER_UNAVAILABLE PAUSE_IN_PROGRESS WEIGHTS_NOT_CLEAN MODEL_BUSY");
    ORDER(adapter_remove_rules, "token body MODEL_NOT_LOADED ALREADY_ATTACHED BARRIER_UNAVAILABLE "
                                "PAUSE_IN_PROGRESS WEIGHTS_NOT_CLEAN MODEL_BUSY");
    ORDER(adapter_barrier_rules, "MODEL_NOT_LOADED ALREADY_ATTACHED MODEL_LEASED PAUSE_IN_PROGRESS "
                                 "WEIGHTS_NOT_CLEAN MODEL_BUSY");
}

/* The second walk comes when the shared copy has its memory: it is not asked for once more. */
static void an_attach_is_refused_in_the_documented_order(void **state)
{
    (void)state;
    ORDER(attach_state_rules, "ALREADY_ATTACHED MODEL_NOT_LOADED NOT_ATTACHABLE "
                              "INSUFFICIENT_MEMORY MODEL_BUSY PAUSE_IN_PROGRESS");
    ORDER(attach_install_rules, "CLIENT_CLOSED_REQUEST ALREADY_ATTACHED MODEL_NOT_LOADED "
                                "NOT_ATTACHABLE MODEL_BUSY PAUSE_IN_PROGRESS");
}

static void every_code_has_one_status_and_a_face(void **state)
{
    (void)state;
    for (int c = REFUSAL_NONE + 1; c < REFUSAL_CODES; c++) {
        enum refusal_code code = (enum refusal_code)c;
        const char *wire = refusal_wire_code(code), *type = refusal_type(code);
        bool upper = strpbrk(wire, "abcdefghijklmnopqrstuvwxyz") == NULL;

        assert_true(refusal_status(code) >= 400 && refusal_status(code) <= 507);
        assert_int_equal(upper, !refusal_is_openai(code) && !refusal_is_weaver(code));
        assert_true(strcmp(type, "server_error") == 0 ||
                    strcmp(type, "invalid_request_error") == 0);
        assert_int_equal(strcmp(type, "server_error") == 0, refusal_status(code) >= 500);
    }
    assert_int_equal(refusal_status(REFUSAL_CHECKPOINT_HASH_MISMATCH), 422);
    assert_int_equal(refusal_status(REFUSAL_V1_WEIGHTS_TORN), 503);
    assert_string_equal(refusal_wire_code(REFUSAL_V1_WEIGHTS_UNSAVED), "weights_unsaved");
}

static void a_new_refusal_takes_the_place_of_the_old_one(void **state)
{
    struct refusal r = {0};

    (void)state;
    assert_int_equal(refuse_with(&r, REFUSAL_MODEL_BUSY, json_pack("{s:i}", "n", 1), "first"), -1);
    assert_int_equal(refuse_param(&r, REFUSAL_V1_MODEL_NOT_FOUND, "model", "then %s", r.message),
                     -1);
    assert_string_equal(r.message, "then first");
    assert_string_equal(r.param, "model");
    assert_null(r.details);
    refusal_clear(&r);
    assert_int_equal(r.code, REFUSAL_NONE);
}

static int passes(void *ctx, struct refusal *r)
{
    (void)r;
    ++*(int *)ctx;
    return 0;
}

static int refuses(void *ctx, struct refusal *r)
{
    ++*(int *)ctx;
    return refuse(r, REFUSAL_NOT_ATTACHED, "no");
}

static void a_walk_ends_at_the_first_refusal(void **state)
{
    const struct refusal_rule rules[] = {
        {"1", passes}, {"2", refuses}, {"3", passes}, {"4", refuses}, {0}};
    const struct refusal_rule none[] = {{"1", passes}, {"2", passes}, {0}};
    struct refusal r = {0};
    int looked = 0;

    (void)state;
    assert_int_equal(refusal_walk(rules, &looked, &r), -1);
    assert_int_equal(looked, 2);
    assert_int_equal(r.code, REFUSAL_NOT_ATTACHED);
    refusal_clear(&r);
    assert_int_equal(refusal_walk(none, &looked, &r), 0);
    assert_int_equal(looked, 4);
}

static void an_error_from_below_keeps_its_sentence(void **state)
{
    struct err e = {0};
    struct refusal r = {0};

    (void)state;
    err_set(&e, ERR_IO, "the disk said no");
    assert_int_equal(refuse_internal(&r, &e), -1);
    assert_int_equal(r.code, REFUSAL_INTERNAL_ERROR);
    assert_string_equal(r.message, "the disk said no");
    assert_string_equal(json_string_value(json_object_get(r.details, "type")), "input_output");
    refusal_clear(&r);
}

static void a_sentence_is_utf8_whatever_it_names(void **state)
{
    struct refusal r = {0};

    (void)state;
    refuse_param(&r, REFUSAL_V1_MODEL_NOT_FOUND, "p\xff", "no '%.4s', no '\xff'",
                 "a\xe2\x82\xac\xe2");
    assert_string_equal(r.message, "no 'a\xe2\x82\xac', no '?'");
    assert_string_equal(r.param, "p?");
    refuse(&r, REFUSAL_V1_MODEL_NOT_FOUND, "no '%.3s'", "a\xe2\x82\xac");
    assert_string_equal(r.message, "no 'a?"
                                   "?'");
    refusal_clear(&r);
}

static void what_an_error_quotes_is_utf8_in_details_too(void **state)
{
    struct err e = {0};
    struct refusal r = {0};
    json_t *details;

    (void)state;
    err_set(&e, ERR_FORMAT, "no '%.2s', no '\xff'", "a\xe2\x82\xac");
    assert_string_equal(e.msg, "no 'a?', no '?'");
    err_wrap(&e, "\xfe");
    assert_string_equal(e.msg, "?: no 'a?', no '?'");
    details = json_pack("{s:s}", "problem", e.msg);
    assert_non_null(details);
    refuse_with(&r, REFUSAL_MODEL_LOAD_FAILED, details, "%s", e.msg);
    assert_string_equal(json_string_value(json_object_get(r.details, "problem")), e.msg);
    refusal_clear(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_is_refused_in_the_documented_order),
        cmocka_unit_test(a_load_is_refused_in_the_documented_order),
        cmocka_unit_test(an_adapter_is_refused_in_the_documented_order),
        cmocka_unit_test(an_attach_is_refused_in_the_documented_order),
        cmocka_unit_test(every_code_has_one_status_and_a_face),
        cmocka_unit_test(a_new_refusal_takes_the_place_of_the_old_one),
        cmocka_unit_test(a_walk_ends_at_the_first_refusal),
        cmocka_unit_test(an_error_from_below_keeps_its_sentence),
        cmocka_unit_test(a_sentence_is_utf8_whatever_it_names),
        cmocka_unit_test(what_an_error_quotes_is_utf8_in_details_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
