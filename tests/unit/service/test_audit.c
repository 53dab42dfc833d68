/* Audit lines: every key, always, in one order; no secret. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "service/audit.h"
#include "service/refusal.h"
#include "service/tokens.h"

static const char *const keys[] = {
    "event",        "ts",           "operation",    "outcome",        "http_status",
    "code",         "reason",       "identity",     "role",           "attachment_ref",
    "request_id",   "model",        "checkpoint",   "run_id",         "step",
    "mode",         "parent_check", "identity_set", "weights_sha256", "manifest_sha256",
    "state_before", "state_after",  "duration_ms",  "client_addr",
};
enum { KEYS = sizeof keys / sizeof *keys };

static json_t *line_of(const struct audit_line *line, int status, const struct refusal *r)
{
    struct buf b = {0};
    struct err e = {0};
    json_t *o;

    audit_format(line, status, r, &b);
    o = json_parse(buf_str(&b), b.len, &e);
    assert_true(json_is_object(o));
    buf_release(&b);
    return o;
}

static void all_keys_stand_in_their_order_and_absent_values_are_null(void **state)
{
    struct audit_line line;
    const char *key;
    json_t *value, *o;
    int i = 0;

    (void)state;
    audit_begin(&line, "weights_save");
    o = line_of(&line, 201, NULL);
    json_object_foreach (o, key, value) {
        assert_true(i < KEYS);
        assert_string_equal(key, keys[i++]);
    }
    assert_int_equal(i, KEYS);
    assert_string_equal(json_string_value(json_object_get(o, "outcome")), "accepted");
    assert_true(json_is_null(json_object_get(o, "code")));
    assert_true(json_is_null(json_object_get(o, "identity")));
    assert_true(json_is_null(json_object_get(o, "step")));
    assert_true(json_is_null(json_object_get(o, "identity_set")));
    json_decref(o);
}

static void a_refusal_gives_code_reason_and_outcome(void **state)
{
    const struct token_owner owner = {.identity = "forge", .role = ROLE_TRAINER};
    struct audit_line line;
    struct refusal r = {0};
    json_t *o;

    (void)state;
    audit_begin(&line, "weights_load");
    line.owner = &owner;
    line.step = 500;
    strcpy(line.checkpoint, "a\"b:r:step-500");
    refuse_with(&r, REFUSAL_CHECKPOINT_NOT_LOADABLE, json_pack("{s:s}", "reason", "dtype"), "no");
    o = line_of(&line, 400, &r);
    assert_string_equal(json_string_value(json_object_get(o, "outcome")), "refused");
    assert_string_equal(json_string_value(json_object_get(o, "code")), "CHECKPOINT_NOT_LOADABLE");
    assert_string_equal(json_string_value(json_object_get(o, "reason")), "dtype");
    assert_string_equal(json_string_value(json_object_get(o, "identity")), "forge");
    assert_string_equal(json_string_value(json_object_get(o, "role")), "trainer");
    assert_string_equal(json_string_value(json_object_get(o, "checkpoint")), "a\"b:r:step-500");
    assert_int_equal(json_integer_value(json_object_get(o, "step")), 500);
    json_decref(o);
    refuse(&r, REFUSAL_WEIGHTS_LOAD_FAILED, "torn");
    o = line_of(&line, 500, &r);
    assert_string_equal(json_string_value(json_object_get(o, "outcome")), "failed");
    assert_true(json_is_null(json_object_get(o, "reason")));
    json_decref(o);
    refusal_clear(&r);
}

/* The holder of a lease writes its reason, as the author of a manifest writes its domain. */
static void the_free_text_of_a_lease_is_no_reason_of_a_refusal(void **state)
{
    struct audit_line line;
    struct refusal r = {0};
    json_t *o;

    (void)state;
    audit_begin(&line, "weights_load");
    refuse_with(&r, REFUSAL_MODEL_LEASED, json_pack("{s:s}", "reason", "my secret plan"), "no");
    o = line_of(&line, 409, &r);
    assert_string_equal(json_string_value(json_object_get(o, "code")), "MODEL_LEASED");
    assert_true(json_is_null(json_object_get(o, "reason")));
    json_decref(o);
    refusal_clear(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_free_text_of_a_lease_is_no_reason_of_a_refusal),
        cmocka_unit_test(all_keys_stand_in_their_order_and_absent_values_are_null),
        cmocka_unit_test(a_refusal_gives_code_reason_and_outcome),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
