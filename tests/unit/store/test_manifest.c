/* manifest.json: the canonical bytes, and what a reader accepts. */
#include "store/scratch.h"

#include "base/buf.h"
#include "base/json.h"
#include "store/manifest.h"
#include "store/schema.h"

static const char zero_sha[] = "0000000000000000000000000000000000000000000000000000000000000000";

static struct schema *schema_of(void)
{
    struct err e = {0};

    return schema_load(NULL, &e);
}

static char *written(const char *caller_text, const char *base)
{
    struct err e = {0};
    struct buf out = {0};
    json_t *caller = json_parse(caller_text, strlen(caller_text), &e);
    struct manifest_draft draft = {
        .caller = caller, .base_model = base, .created_ms = 1795950000123};

    assert_non_null(caller);
    assert_int_equal(manifest_write(&draft, zero_sha, &out, &e), 0);
    json_decref(caller);
    return buf_take(&out);
}

static void the_canonical_bytes_are_exact(void **state)
{
    char *text = written(
        "{\"test\": {\"n\": 10, \"score\": 0.1, \"set\": \"dev\"}, \"parent\": null, "
        "\"optimizer\": {\"state\": \"fresh\", \"name\": \"adamw \\u00e4 \\\"8\\\" \\u0001\"}, "
        "\"signal_source\": \"reward\", \"domain\": \"a/b\\\\c\", \"step\": 500.0, "
        "\"run_id\": \"house-sql\", \"kind\": \"miforge.checkpoint-manifest\"}",
        "LiquidAI/LFM2-1.2B");

    (void)state;
    assert_string_equal(text, "{\n"
                              "  \"kind\": \"miforge.checkpoint-manifest\",\n"
                              "  \"schema_version\": \"1\",\n"
                              "  \"name\": \"LiquidAI/LFM2-1.2B:house-sql:step-500\",\n"
                              "  \"base_model\": \"LiquidAI/LFM2-1.2B\",\n"
                              "  \"run_id\": \"house-sql\",\n"
                              "  \"step\": 500,\n"
                              "  \"created_at\": \"2026-11-29T11:00:00.123Z\",\n"
                              "  \"domain\": \"a/b\\\\c\",\n"
                              "  \"signal_source\": \"reward\",\n"
                              "  \"parent\": null,\n"
                              "  \"optimizer\": {\n"
                              "    \"name\": \"adamw \xc3\xa4 \\\"8\\\" \\u0001\",\n"
                              "    \"state\": \"fresh\",\n"
                              "    \"config_hash\": null\n"
                              "  },\n"
                              "  \"selector_hash\": null,\n"
                              "  \"grader_hash\": null,\n"
                              "  \"test\": {\n"
                              "    \"set\": \"dev\",\n"
                              "    \"score\": 0.1,\n"
                              "    \"n\": 10,\n"
                              "    \"floor\": null\n"
                              "  },\n"
                              "  \"retention\": null,\n"
                              "  \"weights_sha256\": \""
                              "0000000000000000000000000000000000000000"
                              "000000000000000000000000\"\n"
                              "}\n");
    free(text);
}

static void whole_numbers_lose_their_fraction_and_others_keep_every_bit(void **state)
{
    char *text = written(
        "{\"run_id\": \"r\", \"step\": 9007199254740991, \"domain\": \"d\", \"signal_source\": "
        "\"corpus\", \"parent\": \"p\", \"optimizer\": {\"name\": \"o\", \"state\": \"fresh\"}, "
        "\"test\": {\"set\": \"s\", \"score\": 1.0, \"n\": 3.0, \"floor\": 0.30000000000000004}}",
        "b");

    (void)state;
    assert_non_null(strstr(text, "\"step\": 9007199254740991,"));
    assert_non_null(strstr(text, "\"name\": \"b:r:step-9007199254740991\""));
    assert_non_null(strstr(text, "\"score\": 1,"));
    assert_non_null(strstr(text, "\"n\": 3,"));
    assert_non_null(strstr(text, "\"floor\": 0.30000000000000004\n"));
    free(text);
}

static void what_is_written_is_read_back_with_the_hash_of_its_bytes(void **state)
{
    struct schema *s = schema_of();
    struct manifest m;
    struct err e = {0};
    char sha[SHA256_HEX];
    char *text = written("{\"run_id\": \"r\", \"step\": 7, \"domain\": \"d\", \"signal_source\": "
                         "\"corpus\", \"parent\": \"b:r:step-6\", \"optimizer\": {\"name\": "
                         "\"o\", \"state\": \"restored\"}}",
                         "b");

    (void)state;
    assert_int_equal(manifest_parse(text, strlen(text), s, NULL, &m, NULL, &e), MANIFEST_OK);
    assert_string_equal(m.name, "b:r:step-7");
    assert_string_equal(m.parent, "b:r:step-6");
    assert_int_equal(m.step, 7);
    assert_string_equal(m.weights_sha256, zero_sha);
    sha256_hex_of(text, strlen(text), sha);
    assert_string_equal(m.sha256, sha);
    manifest_release(&m);
    free(text);
    schema_free(s);
}

static enum manifest_fault fault_of(const char *text, size_t len,
                                    const struct manifest_place *place)
{
    struct schema *s = schema_of();
    struct manifest m;
    struct err e = {0};
    json_t *errors = NULL;
    enum manifest_fault f = manifest_parse(text, len, s, place, &m, &errors, &e);

    assert_true((f == MANIFEST_SCHEMA) == (errors != NULL));
    assert_true((f == MANIFEST_OK) == (m.json != NULL));
    assert_true((f == MANIFEST_OK) == (e.msg[0] == 0));
    json_decref(errors);
    manifest_release(&m);
    schema_free(s);
    return f;
}

static enum manifest_fault fault(const char *text)
{
    return fault_of(text, strlen(text), NULL);
}

static void kind_and_version_may_be_absent_and_any_layout_is_read(void **state)
{
    char text[2048], spaced[2200];

    (void)state;
    manifest_text(text, sizeof text, "b", "r1", 5, NULL);
    assert_int_equal(fault(text), MANIFEST_OK);
    snprintf(spaced, sizeof spaced, " \n\t%s\r\n", text);
    assert_int_equal(fault(spaced), MANIFEST_OK);
    manifest_text(text, sizeof text, "b", "with space", 5, "gone:r:step-1");
    assert_int_equal(fault(text), MANIFEST_OK);
}

static void what_is_not_json_is_unreadable(void **state)
{
    char text[2048], bom[2100];

    (void)state;
    manifest_text(text, sizeof text, "b", "r1", 5, NULL);
    snprintf(bom, sizeof bom, "\xef\xbb\xbf%s", text);
    assert_int_equal(fault(bom), MANIFEST_UNREADABLE);
    assert_int_equal(fault(""), MANIFEST_UNREADABLE);
    assert_int_equal(fault("{\"a\": 1, \"a\": 1}"), MANIFEST_UNREADABLE);
    assert_int_equal(fault("{\"a\": \"\xff\"}"), MANIFEST_UNREADABLE);
    assert_int_equal(fault("{\"a\": NaN}"), MANIFEST_UNREADABLE);
    assert_int_equal(fault_of("\0\0\0\0", 4, NULL), MANIFEST_UNREADABLE);
    assert_int_equal(fault("[1]"), MANIFEST_SCHEMA);
    assert_int_equal(fault("{}"), MANIFEST_SCHEMA);
}

static void a_name_that_its_parts_do_not_give_is_a_mismatch(void **state)
{
    char text[2048];
    char *at;

    (void)state;
    manifest_text(text, sizeof text, "b", "r1", 5, NULL);
    at = strstr(text, ":step-5");
    at[6] = '6';
    assert_int_equal(fault(text), MANIFEST_NAME_MISMATCH);
}

static void a_run_id_that_is_no_segment_is_told_apart(void **state)
{
    char text[2048];

    (void)state;
    manifest_text(text, sizeof text, "b", "..", 5, NULL);
    assert_int_equal(fault(text), MANIFEST_RUN_ID);
    manifest_text(text, sizeof text, "b", "a/b", 5, NULL);
    assert_int_equal(fault(text), MANIFEST_RUN_ID);
    manifest_text(text, sizeof text, "b", "", 5, NULL);
    assert_int_equal(fault(text), MANIFEST_RUN_ID);
}

static void the_place_must_be_its_own(void **state)
{
    struct manifest_place here = {.run_id = "r1", .step = 5};
    struct manifest_place other_step = {.run_id = "r1", .step = 6};
    struct manifest_place other_run = {.run_id = "r2", .step = 5};
    struct manifest_place base = {.run_id = "r1", .step = 5, .base_model = "b:r1", .base_len = 1};
    struct manifest_place other_base = {.base_model = "bb", .base_len = 2};
    char text[2048];

    (void)state;
    manifest_text(text, sizeof text, "b", "r1", 5, NULL);
    assert_int_equal(fault_of(text, strlen(text), &here), MANIFEST_OK);
    assert_int_equal(fault_of(text, strlen(text), &base), MANIFEST_OK);
    assert_int_equal(fault_of(text, strlen(text), &other_step), MANIFEST_DIRECTORY_MISMATCH);
    assert_int_equal(fault_of(text, strlen(text), &other_run), MANIFEST_DIRECTORY_MISMATCH);
    assert_int_equal(fault_of(text, strlen(text), &other_base), MANIFEST_NAME_MISMATCH);
}

static enum manifest_fault read_dir(const struct scratch *s, const char *dir)
{
    struct schema *schema = schema_of();
    struct manifest m;
    struct err e = {0};
    int fd = openat(s->fd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum manifest_fault f = manifest_read(fd, schema, NULL, &m, NULL, &e);

    close(fd);
    manifest_release(&m);
    schema_free(schema);
    return f;
}

static void a_file_that_is_missing_or_odd_is_named_by_its_reason(void **state)
{
    struct scratch *s = *state;
    char *big = malloc(MANIFEST_MAX_BYTES + 2);

    put_dir(s, "d");
    assert_int_equal(read_dir(s, "d"), MANIFEST_MISSING);
    assert_int_equal(mkfifoat(s->fd, "d/manifest.json", 0600), 0);
    assert_int_equal(read_dir(s, "d"), MANIFEST_UNREADABLE);
    unlinkat(s->fd, "d/manifest.json", 0);
    put_dir(s, "d/manifest.json");
    assert_int_equal(read_dir(s, "d"), MANIFEST_UNREADABLE);
    unlinkat(s->fd, "d/manifest.json", AT_REMOVEDIR);
    put_checkpoint(s, "root", "b", "r", 1, NULL);
    assert_int_equal(read_dir(s, "root/r/step-000001"), MANIFEST_OK);
    put_link(s, "d/manifest.json", "../root/r/step-000001/manifest.json");
    assert_int_equal(read_dir(s, "d"), MANIFEST_UNREADABLE);
    unlinkat(s->fd, "d/manifest.json", 0);
    memset(big, ' ', MANIFEST_MAX_BYTES + 1);
    big[MANIFEST_MAX_BYTES + 1] = 0;
    put_file(s, "d/manifest.json", big);
    assert_int_equal(read_dir(s, "d"), MANIFEST_TOO_LARGE);
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_canonical_bytes_are_exact),
        cmocka_unit_test(whole_numbers_lose_their_fraction_and_others_keep_every_bit),
        cmocka_unit_test(what_is_written_is_read_back_with_the_hash_of_its_bytes),
        cmocka_unit_test(kind_and_version_may_be_absent_and_any_layout_is_read),
        cmocka_unit_test(what_is_not_json_is_unreadable),
        cmocka_unit_test(a_name_that_its_parts_do_not_give_is_a_mismatch),
        cmocka_unit_test(a_run_id_that_is_no_segment_is_told_apart),
        cmocka_unit_test(the_place_must_be_its_own),
        SCRATCH_TEST(a_file_that_is_missing_or_odd_is_named_by_its_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
