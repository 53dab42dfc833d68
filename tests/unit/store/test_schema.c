/* The schema reader: what it understands, and the errors it lists. */
#include "store/scratch.h"

#include <jansson.h>

#include "base/buf.h"
#include "base/json.h"
#include "store/schema.h"

static const char built_in_file[] = "docs/schemas/checkpoint-manifest-v1.json";

static const char good_caller[] =
    "{\"run_id\": \"r1\", \"step\": 500, \"domain\": \"sql\", \"signal_source\": \"corpus\","
    " \"parent\": null, \"optimizer\": {\"name\": \"adamw\", \"state\": \"fresh\"}}";

static json_t *parse(const char *text)
{
    struct err e = {0};
    json_t *v = json_parse(text, strlen(text), &e);

    if (!v)
        fail_msg("%s: %s", text, e.msg);
    return v;
}

static struct schema *built_in(void)
{
    struct err e = {0};
    struct schema *s = schema_load(NULL, &e);

    assert_non_null(s);
    assert_null(schema_problem(s));
    return s;
}

/* "path keyword[ key]" of every error, joined by "; ". */
static void list_errors(const struct schema *s, const json_t *v, enum schema_form form, char *out,
                        size_t size)
{
    struct err e = {0};
    json_t *errors = schema_check(s, v, form, &e);
    json_t *item;
    size_t i, at = 0;

    assert_non_null(errors);
    out[0] = 0;
    json_array_foreach (errors, i, item) {
        const char *key = json_string_value(json_object_get(item, "key"));

        assert_true(strlen(json_string_value(json_object_get(item, "message"))) > 0);
        at += (size_t)snprintf(out + at, size - at, "%s%s %s%s%s", i ? "; " : "",
                               json_string_value(json_object_get(item, "path")),
                               json_string_value(json_object_get(item, "keyword")), key ? " " : "",
                               key ? key : "");
    }
    json_decref(errors);
}

static void expect(enum schema_form form, const char *text, const char *errors)
{
    struct schema *s = built_in();
    json_t *v = parse(text);
    char got[4096];

    list_errors(s, v, form, got, sizeof got);
    assert_string_equal(got, errors);
    json_decref(v);
    schema_free(s);
}

/* The good caller manifest with `key` set to `value` (JSON text; NULL removes it). */
static void expect_with(const char *key, const char *value, const char *errors)
{
    json_t *v = parse(good_caller);
    struct schema *s = built_in();
    char got[4096];

    if (value)
        json_object_set_new(v, key, parse(value));
    else
        json_object_del(v, key);
    list_errors(s, v, SCHEMA_CALLER, got, sizeof got);
    if (strcmp(got, errors) != 0)
        fail_msg("%s = %s: \"%s\", not \"%s\"", key, value ? value : "(absent)", got, errors);
    json_decref(v);
    schema_free(s);
}

static void a_minimal_caller_manifest_is_valid(void **state)
{
    (void)state;
    expect(SCHEMA_CALLER, good_caller, "");
}

static void constants_may_be_sent_only_as_they_are(void **state)
{
    (void)state;
    expect_with("kind", "\"miforge.checkpoint-manifest\"", "");
    expect_with("schema_version", "\"1\"", "");
    expect_with("kind", "\"other\"", "$.kind const");
    expect_with("schema_version", "1", "$.schema_version type");
    expect_with("kind", "null", "$.kind type");
}

static void every_trainer_field_that_is_required_is_asked_for(void **state)
{
    (void)state;
    expect(SCHEMA_CALLER, "{}",
           "$ required run_id; $ required step; $ required domain; $ required signal_source; "
           "$ required parent; $ required optimizer");
    expect(SCHEMA_FILE, "{}",
           "$ required run_id; $ required step; $ required domain; $ required signal_source; "
           "$ required parent; $ required optimizer; $ required weights_sha256; "
           "$ required base_model; $ required created_at; $ required name");
}

static void each_keyword_refuses_what_breaks_it(void **state)
{
    (void)state;
    expect_with("step", "1.5", "$.step type");
    expect_with("step", "-1", "$.step minimum");
    expect_with("step", "\"1\"", "$.step type");
    expect_with("step", "true", "$.step type");
    expect_with("step", "500.0", "");
    expect_with("step", "9007199254740991", "");
    expect_with("step", "9007199254740992", "$.step maximum");
    expect_with("step", "1e300", "$.step maximum");
    expect_with("step", "-1e300", "$.step minimum");
    expect_with("step", "-1.0", "$.step minimum");
    expect_with("signal_source", "\"rewards\"", "$.signal_source enum");
    expect_with("run_id", "5", "$.run_id type");
    expect_with("domain", "null", "$.domain type");
    expect_with("parent", "5", "$.parent anyOf");
    expect_with("optimizer", "null", "$.optimizer type");
    expect_with("optimizer", "{\"name\": \"a\", \"state\": \"old\"}", "$.optimizer.state enum");
    expect_with("optimizer", "{\"name\": 1}", "$.optimizer.name type; $.optimizer required state");
    expect_with("grader_hash", "[]", "$.grader_hash anyOf");
    expect_with("grader_hash", "null", "");
}

static void a_score_is_told_by_the_branch_that_fits(void **state)
{
    (void)state;
    expect_with("test", "null", "");
    expect_with("test", "{\"set\": \"s\", \"score\": 1, \"n\": 1, \"floor\": 0.5}", "");
    expect_with("test", "{\"set\": \"s\", \"score\": 1.01, \"n\": 0}",
                "$.test.score maximum; $.test.n minimum");
    expect_with("test", "{\"set\": \"s\", \"score\": -0.1, \"n\": 2.5, \"floor\": \"x\"}",
                "$.test.score minimum; $.test.n type; $.test.floor anyOf");
    expect_with("retention", "5", "$.retention anyOf");
    expect_with("retention", "{}",
                "$.retention required set; $.retention required score; $.retention required n");
}

static void unknown_keys_are_named_with_the_path_of_their_object(void **state)
{
    (void)state;
    expect_with("merged_adapter", "null", "$ additionalProperties merged_adapter");
    expect_with("optimizer", "{\"name\": \"a\", \"lr\": 1, \"state\": \"fresh\"}",
                "$.optimizer additionalProperties lr");
}

static void errors_come_in_the_order_of_the_document(void **state)
{
    (void)state;
    expect(SCHEMA_CALLER,
           "{\"zzz\": 1, \"step\": -1, \"parent\": 5, \"optimizer\": {\"state\": 1}, "
           "\"run_id\": 1, \"aaa\": 2}",
           "$ additionalProperties zzz; $.step minimum; $.parent anyOf; $.optimizer.state type; "
           "$.optimizer required name; $.run_id type; $ additionalProperties aaa; "
           "$ required domain; $ required signal_source");
}

static void a_parent_is_bounded_when_a_caller_sends_it(void **state)
{
    char text[1200] = "\"";

    (void)state;
    for (int i = 0; i < 512; i++)
        strcat(text, "\xc3\xa4");
    strcat(text, "\"");
    expect_with("parent", text, "");
    text[strlen(text) - 1] = 0;
    strcat(text, "x\"");
    expect_with("parent", text, "$.parent maxLength");
    expect_with("parent", "\"a\\nb\"", "$.parent pattern");
    expect_with("parent", "\"a\\u0000b\"", "$.parent pattern");
    expect_with("parent", "\"a\\u0085b\"", "$.parent pattern");
    expect_with("parent", "\"a\\u00a0b\"", "");
}

static void a_value_that_is_no_object_is_one_error(void **state)
{
    (void)state;
    expect(SCHEMA_CALLER, "5", "$ type");
    expect(SCHEMA_FILE, "[1]", "$ type");
    expect(SCHEMA_FILE, "null", "$ type");
}

static void a_file_must_hold_well_formed_server_fields(void **state)
{
    char text[2048];
    json_t *v;
    struct schema *s = built_in();
    static const struct {
        const char *key, *value, *errors;
    } rows[] = {
        {"kind", "\"x\"", "$.kind const"},
        {"schema_version", "\"2\"", "$.schema_version const"},
        {"weights_sha256", "\"abc\"", "$.weights_sha256 pattern"},
        {"weights_sha256", "\"E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855\"",
         "$.weights_sha256 pattern"},
        {"weights_sha256",
         "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\\n\"",
         "$.weights_sha256 pattern"},
        {"created_at", "\"yesterday\"", "$.created_at format"},
        {"created_at", "\"2026-02-29T10:00:00Z\"", "$.created_at format"},
        {"created_at", "\"2026-13-01T10:00:00Z\"", "$.created_at format"},
        {"created_at", "\"2026-11-29 10:00:00Z\"", "$.created_at format"},
        {"created_at", "\"2026-11-29T10:00:00\"", "$.created_at format"},
        {"created_at", "\"2026-11-29T24:00:00Z\"", "$.created_at format"},
        {"created_at", "\"2026-11-29T10:00:00.Z\"", "$.created_at format"},
        {"created_at", "\"2028-02-29t10:00:60.123456z\"", ""},
        {"created_at", "\"2026-11-29T10:00:00.5+05:30\"", ""},
        {"base_model", "\"a\\u0000b\"", "$.base_model pattern"},
        {"parent", "\"a\\u0000b\"", "$.parent pattern"},
        {"parent", "\"a\\nb\"", ""},
    };

    (void)state;
    manifest_text(text, sizeof text, "b", "r1", 5, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char got[4096];

        v = parse(text);
        json_object_set_new(v, rows[i].key, parse(rows[i].value));
        list_errors(s, v, SCHEMA_FILE, got, sizeof got);
        if (strcmp(got, rows[i].errors) != 0)
            fail_msg("%s = %s: %s", rows[i].key, rows[i].value, got);
        json_decref(v);
    }
    schema_free(s);
}

static void a_hundred_errors_are_listed_and_then_one_that_says_so(void **state)
{
    struct schema *s = built_in();
    struct err e = {0};
    json_t *v = json_object();
    json_t *errors, *last;
    char key[16];

    (void)state;
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "k%d", i);
        json_object_set_new(v, key, json_null());
    }
    errors = schema_check(s, v, SCHEMA_CALLER, &e);
    assert_int_equal(json_array_size(errors), SCHEMA_MAX_ERRORS + 1);
    last = json_array_get(errors, SCHEMA_MAX_ERRORS);
    assert_string_equal(json_string_value(json_object_get(last, "keyword")), "truncated");
    json_decref(errors);
    json_decref(v);
    schema_free(s);
}

static void fields_of_the_server_are_found_in_order(void **state)
{
    struct schema *s = built_in();
    struct err e = {0};
    json_t *v = parse("{\"weights_sha256\": 1, \"run_id\": \"r\", \"name\": \"n\", \"kind\": \"k\","
                      " \"created_at\": null, \"base_model\": {}}");
    json_t *fields = schema_server_fields(s, v, &e);
    struct buf text = {0};

    (void)state;
    json_write(&text, fields);
    assert_string_equal(buf_str(&text),
                        "[\"weights_sha256\",\"name\",\"created_at\",\"base_model\"]");
    buf_release(&text);
    json_decref(fields);
    json_decref(v);
    schema_free(s);
}

/* ---- external schema files ---- */

static json_t *load_built_in(void)
{
    struct err e = {0};
    json_t *v = json_parse_file(AT_FDCWD, built_in_file, 1 << 20, &e);

    assert_non_null(v);
    return v;
}

static void problem_of(struct scratch *s, const json_t *doc, const char *word)
{
    struct buf text = {0};
    struct err e = {0};
    struct schema *schema;

    json_write(&text, doc);
    put_file(s, "schema.json", buf_str(&text));
    schema = schema_load(scratch_path(s, "schema.json"), &e);
    assert_non_null(schema);
    if (!word) {
        assert_null(schema_problem(schema));
    } else {
        assert_non_null(schema_problem(schema));
        if (!strstr(schema_problem(schema), word))
            fail_msg("%s does not say %s", schema_problem(schema), word);
    }
    schema_free(schema);
    buf_release(&text);
}

static json_t *property(json_t *doc, const char *name)
{
    json_t *of = json_object_get(json_object_get(doc, "$defs"), "CheckpointManifestV1");

    return json_object_get(json_object_get(of, "properties"), name);
}

static void an_external_schema_with_the_same_facts_is_usable(void **state)
{
    struct scratch *s = *state;
    json_t *doc = load_built_in();

    problem_of(s, doc, NULL);
    json_object_set_new(property(doc, "domain"), "description", json_string("other words"));
    json_object_set_new(doc, "title", json_string("other title"));
    problem_of(s, doc, NULL);
    json_decref(doc);
}

static void a_property_without_its_writer_makes_the_schema_unusable(void **state)
{
    struct scratch *s = *state;
    json_t *doc = load_built_in();

    json_object_del(property(doc, "domain"), "x-written-by");
    problem_of(s, doc, "domain");
    json_object_set_new(property(doc, "domain"), "x-written-by", json_string("nobody"));
    problem_of(s, doc, "domain");
    json_decref(doc);
}

static void an_unknown_keyword_makes_the_schema_unusable(void **state)
{
    struct scratch *s = *state;
    json_t *doc = load_built_in();

    json_object_set_new(property(doc, "domain"), "maxLength", json_integer(10));
    problem_of(s, doc, "maxLength");
    json_object_del(property(doc, "domain"), "maxLength");
    json_object_set_new(property(doc, "domain"), "type", json_string("boolean"));
    problem_of(s, doc, "boolean");
    json_decref(doc);
}

static void other_facts_make_the_schema_unusable(void **state)
{
    struct scratch *s = *state;
    json_t *doc = load_built_in();

    json_object_set_new(property(doc, "step"), "minimum", json_integer(1));
    problem_of(s, doc, "other facts");
    json_decref(doc);
    doc = parse("{\"type\": \"object\", \"properties\": {}}");
    problem_of(s, doc, "other facts");
    json_decref(doc);
    doc = parse("{\"$ref\": \"#/$defs/none\"}");
    problem_of(s, doc, "leads nowhere");
    json_decref(doc);
    doc = parse("{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"$ref\": \"#/$defs/a\"}}}");
    problem_of(s, doc, "leads nowhere");
    json_decref(doc);
}

static void a_missing_or_broken_schema_file_is_a_problem_not_a_failure(void **state)
{
    struct scratch *s = *state;
    struct err e = {0};
    struct schema *schema = schema_load(scratch_path(s, "none.json"), &e);
    json_t *v = parse(good_caller);

    assert_non_null(schema);
    assert_non_null(schema_problem(schema));
    assert_null(schema_check(schema, v, SCHEMA_CALLER, &e));
    schema_free(schema);
    put_file(s, "schema.json", "{");
    schema = schema_load(scratch_path(s, "schema.json"), &e);
    assert_non_null(schema_problem(schema));
    schema_free(schema);
    json_decref(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_minimal_caller_manifest_is_valid),
        cmocka_unit_test(constants_may_be_sent_only_as_they_are),
        cmocka_unit_test(every_trainer_field_that_is_required_is_asked_for),
        cmocka_unit_test(each_keyword_refuses_what_breaks_it),
        cmocka_unit_test(a_score_is_told_by_the_branch_that_fits),
        cmocka_unit_test(unknown_keys_are_named_with_the_path_of_their_object),
        cmocka_unit_test(errors_come_in_the_order_of_the_document),
        cmocka_unit_test(a_parent_is_bounded_when_a_caller_sends_it),
        cmocka_unit_test(a_value_that_is_no_object_is_one_error),
        cmocka_unit_test(a_file_must_hold_well_formed_server_fields),
        cmocka_unit_test(a_hundred_errors_are_listed_and_then_one_that_says_so),
        cmocka_unit_test(fields_of_the_server_are_found_in_order),
        SCRATCH_TEST(an_external_schema_with_the_same_facts_is_usable),
        SCRATCH_TEST(a_property_without_its_writer_makes_the_schema_unusable),
        SCRATCH_TEST(an_unknown_keyword_makes_the_schema_unusable),
        SCRATCH_TEST(other_facts_make_the_schema_unusable),
        SCRATCH_TEST(a_missing_or_broken_schema_file_is_a_problem_not_a_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
