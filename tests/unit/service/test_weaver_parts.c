/* Parts of the training API without a server: order of calls, names of checkpoints, tensors, the
 * comparison of sampler and trainer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "service/metrics.h"
#include "service/refusal.h"
#include "service/weaver/ckpt.h"
#include "service/weaver/gap.h"
#include "service/weaver/sequence.h"
#include "service/weaver/tensors.h"
#include "train/trainer.h"

/* ---- order ---- */

static void a_call_fits_when_it_is_the_first_or_the_next(void **state)
{
    struct sequence_gate g = {0};

    (void)state;
    assert_true(sequence_fits(&g, 1));
    assert_false(sequence_fits(&g, 2));
    sequence_admit(&g, 1);
    assert_true(sequence_fits(&g, 2));
    assert_false(sequence_fits(&g, 3));
    sequence_admit(&g, 2);
    assert_false(sequence_fits(&g, 2));
    assert_true(sequence_fits(&g, 3));
}

static void every_client_has_its_own_count(void **state)
{
    struct sequence_gate g = {0};

    (void)state;
    for (int64_t n = 1; n <= 5; n++)
        sequence_admit(&g, n);
    sequence_admit(&g, 1);
    assert_true(sequence_fits(&g, 6));
    assert_true(sequence_fits(&g, 2));
    sequence_admit(&g, 40); /* let in after its wait */
    assert_true(sequence_fits(&g, 41));
}

static void the_oldest_of_too_many_clients_is_forgotten(void **state)
{
    struct sequence_gate g = {0};

    (void)state;
    for (int64_t n = 0; n < SEQUENCE_STREAMS; n++)
        sequence_admit(&g, 100 * (n + 1));
    assert_true(sequence_fits(&g, 101));
    sequence_admit(&g, 5000);
    assert_false(sequence_fits(&g, 101));
    assert_true(sequence_fits(&g, 201));
    assert_true(sequence_fits(&g, 5001));
}

/* ---- names ---- */

static void slugs_keep_plain_characters(void **state)
{
    static const struct {
        const char *name, *slug;
        bool exported;
    } cases[] = {
        {"step-100", "step-100", false},   {"step-100", "sampler-step-100", true},
        {"a b/\xc3\xa4:?*", "a-b", false}, {"..x--", "x", false},
        {"-.-", "ckpt-000007", false},     {NULL, "ckpt-000007", false},
        {"", "sampler-ckpt-000007", true}, {"a  b", "a-b", false},
        {"A_1.5", "A_1.5", false},
    };
    char out[CKPT_SLUG_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ckpt_slug(cases[i].name, cases[i].exported, 7, out);
        assert_string_equal(out, cases[i].slug);
    }
}

static void paths_are_taken_apart_and_nothing_else(void **state)
{
    static const char *const bad[] = {"",
                                      "weaver://",
                                      "weaver://m",
                                      "weaver://m/checkpoints/",
                                      "weaver://m/checkpoints/a/b",
                                      "weaver:///checkpoints/a",
                                      "weaver://m/other/a",
                                      "http://m/checkpoints/a"};
    char model[65], slug[CKPT_SLUG_MAX];

    (void)state;
    assert_true(ckpt_path_parse("weaver://m-1/checkpoints/step-1", model, slug));
    assert_string_equal(model, "m-1");
    assert_string_equal(slug, "step-1");
    assert_true(ckpt_path_parse("weaver://m/checkpoints/a/", model, slug));
    assert_string_equal(slug, "a");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(ckpt_path_parse(bad[i], model, slug));
}

static void names_have_characters_and_no_controls(void **state)
{
    char longest[CKPT_NAME_MAX + 1];
    struct refusal r = {0};

    (void)state;
    assert_int_equal(ckpt_check_name("a b/\xc3\xa4", &r), 0);
    memset(longest, 'x', 129);
    longest[128] = '\0';
    assert_int_equal(ckpt_check_name(longest, &r), 0);
    longest[128] = 'x';
    longest[129] = '\0';
    assert_int_equal(ckpt_check_name(longest, &r), -1);
    assert_int_equal(ckpt_check_name("", &r), -1);
    assert_int_equal(ckpt_check_name("a\nb", &r), -1);
    assert_int_equal(ckpt_check_name("\x7f", &r), -1);
    assert_int_equal(ckpt_check_name("a\xc2\x85", &r), -1);
    assert_int_equal(ckpt_check_name("a\xc2\xa0", &r), 0);
    ckpt_check_name("\xc2\x9f", &r);
    assert_int_equal(r.code, REFUSAL_W_INVALID_NAME);
    refusal_clear(&r);
}

/* ---- tensors ---- */

static json_t *parse(const char *text)
{
    struct err e = {0};
    json_t *v = json_parse(text, strlen(text), &e);

    assert_non_null(v);
    return v;
}

static int read_ints(const char *text, struct w_pack *p, int64_t *n, enum refusal_code *code)
{
    struct arena a = {0};
    struct refusal r = {0};
    json_t *v = parse(text);
    int64_t *out;
    int rc = w_tensor_ints(v, p, &a, "t", &out, n, &r);

    *code = r.code;
    refusal_clear(&r);
    json_decref(v);
    arena_release(&a);
    return rc;
}

static void tensors_that_lead_out_of_the_pack_are_refused(void **state)
{
    static const unsigned char bytes[16] = {7};
    static const struct {
        const char *text;
        enum refusal_code code;
    } cases[] = {
        {"{\"$tensor\":{\"format\":\"raw-tensor\",\"codec\":\"raw\",\"dtype\":\"int64\",\"shape\":["
         "2],"
         "\"offset\":0,\"size_bytes\":16}}",
         REFUSAL_NONE},
        {"{\"$tensor\":{\"format\":\"raw-tensor\",\"codec\":\"raw\",\"dtype\":\"int64\",\"shape\":["
         "2],"
         "\"offset\":8,\"size_bytes\":16}}",
         REFUSAL_W_TENSOR_PACK_CORRUPT},
        {"{\"$tensor\":{\"format\":\"raw-tensor\",\"codec\":\"raw\",\"dtype\":\"int64\",\"shape\":["
         "2],"
         "\"offset\":9007199254740992,\"size_bytes\":16}}",
         REFUSAL_W_TENSOR_PACK_CORRUPT},
        {"{\"$tensor\":{\"format\":\"raw-tensor\",\"codec\":\"raw\",\"dtype\":\"int64\","
         "\"shape\":[1152921504606846976],\"offset\":0,\"size_bytes\":16}}",
         REFUSAL_W_SHAPE_MISMATCH},
        {"{\"$tensor\":{\"format\":\"raw-tensor\",\"codec\":\"raw\",\"dtype\":\"int64\",\"shape\":["
         "2],"
         "\"offset\":0,\"size_bytes\":15}}",
         REFUSAL_W_SHAPE_MISMATCH},
        {"{\"data\":[1,2.5],\"dtype\":\"int64\"}", REFUSAL_W_INVALID_DATUM},
        {"[1,[2]]", REFUSAL_W_INVALID_DATUM},
        {"\"x\"", REFUSAL_W_INVALID_DATUM},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum refusal_code code;
        int64_t n = 0;
        struct w_pack pack = {.bytes = bytes, .n = sizeof bytes};
        int rc = read_ints(cases[i].text, &pack, &n, &code);

        assert_int_equal(rc, cases[i].code == REFUSAL_NONE ? 0 : -1);
        assert_int_equal(code, cases[i].code);
    }
}

static void tensors_together_are_no_longer_than_their_pack(void **state)
{
    static const unsigned char bytes[16] = {7};
    static const char half[] = "{\"$tensor\":{\"format\":\"raw-tensor\",\"codec\":\"raw\","
                               "\"dtype\":\"int64\",\"shape\":[1],\"offset\":0,\"size_bytes\":8}}";
    struct w_pack pack = {.bytes = bytes, .n = sizeof bytes};
    enum refusal_code code;
    int64_t n;

    (void)state;
    assert_int_equal(read_ints(half, &pack, &n, &code), 0);
    assert_int_equal(read_ints(half, &pack, &n, &code), 0);
    assert_int_equal(read_ints(half, &pack, &n, &code), -1);
    assert_int_equal(code, REFUSAL_W_TENSOR_PACK_CORRUPT);
}

static int open_pack(const char *facts, const void *raw, size_t n, enum refusal_code *code)
{
    struct refusal r = {0};
    struct w_pack p;
    json_t *v = parse(facts);
    int rc = w_pack_open(&p, v, raw, n, 1 << 20, &r);

    *code = r.code;
    w_pack_release(&p);
    refusal_clear(&r);
    json_decref(v);
    return rc;
}

static void packs_are_exactly_as_long_as_they_say(void **state)
{
    static const unsigned char frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 0xb5, 0x00,
                                          0x00, 0x48, 0x07, 0x00, 0x2c, 0x01, 0x00, 0x02,
                                          0x00, 0x80, 0x3f, 0x05, 0x00, 0x60, 0x00, 0x30,
                                          0x70, 0x85, 0x02, 0xb8, 0x63, 0x00, 0x58};
    enum refusal_code code;

    (void)state;
    assert_int_equal(
        open_pack("{\"codec\":\"zstd\",\"decoded_size_bytes\":40}", frame, sizeof frame, &code), 0);
    for (size_t cut = 0; cut < sizeof frame; cut++)
        assert_int_equal(
            open_pack("{\"codec\":\"zstd\",\"decoded_size_bytes\":40}", frame, cut, &code), -1);
    assert_int_equal(
        open_pack("{\"codec\":\"zstd\",\"decoded_size_bytes\":39}", frame, sizeof frame, &code),
        -1);
    assert_int_equal(code, REFUSAL_W_TENSOR_PACK_CORRUPT);
    assert_int_equal(open_pack("{\"codec\":\"zstd\",\"decoded_size_bytes\":8589934592}", frame,
                               sizeof frame, &code),
                     -1);
    assert_int_equal(code, REFUSAL_W_REQUEST_TOO_LARGE);
    assert_int_equal(
        open_pack("{\"codec\":\"raw\",\"decoded_size_bytes\":30}", frame, sizeof frame, &code), -1);
}

/* ---- sampler and trainer ---- */

static struct metrics_counts counts(struct metrics *m)
{
    struct metrics_counts c;

    metrics_copy(m, &c);
    return c;
}

static void a_difference_between_sampled_and_trained_is_told(void **state)
{
    static const int32_t prompt[] = {5, 6}, tokens[] = {7, 8, 9}, shifted[] = {5, 6, 7, 8};
    static const int32_t targets[] = {-100, 7, 8, 9}, other[] = {-100, 7, 8, 1};
    static const float sampled[] = {-1, -2, -3}, trained[] = {0, -1, -2.5f, -3};
    struct train_datum d = {shifted, {.n = 4, .targets = targets}};
    struct metrics *m = metrics_new(NULL);
    struct w_gap *g = gap_new();

    (void)state;
    assert_true(m && g);
    gap_sampled(g, "c1", prompt, 2, tokens, sampled, 3);
    gap_trained(g, "", &d, 1, trained, m);
    gap_trained(g, "c2", &d, 1, trained, m);
    d.loss.targets = other;
    gap_trained(g, "c1", &d, 1, trained, m);
    assert_int_equal(counts(m).compared_tokens, 0);
    d.loss.targets = targets;
    gap_trained(g, "c1", &d, 1, trained, m);
    assert_int_equal(counts(m).compared_tokens, 3);
    assert_true(counts(m).logprob_gap == 0.5);
    gap_free(g);
    metrics_free(m);
}

static void the_oldest_sequences_make_room(void **state)
{
    enum { N = GAP_BYTES / 4 / 2 };
    static int32_t tokens[N];
    static float logprobs[N + 1];
    int32_t first = 1;
    struct train_datum d = {&first, {.n = 1, .targets = tokens}};
    struct metrics *m = metrics_new(NULL);
    struct w_gap *g = gap_new();

    (void)state;
    assert_true(m && g);
    gap_sampled(g, "c", &first, 1, tokens, logprobs, 1);
    gap_trained(g, "c", &d, 1, logprobs, m);
    assert_int_equal(counts(m).compared_tokens, 1);
    gap_sampled(g, "c", &first, 1, tokens, logprobs, N);
    gap_sampled(g, "c", &first, 1, tokens, logprobs, N); /* together more than there is room for */
    gap_trained(g, "c", &d, 1, logprobs, m);
    assert_int_equal(counts(m).compared_tokens, 1);
    for (int i = 0; i <= GAP_SEQUENCES; i++)
        gap_sampled(g, "c", &first, 1, tokens, logprobs, 1);
    gap_trained(g, "c", &d, 1, logprobs, m);
    assert_int_equal(counts(m).compared_tokens, 2);
    gap_free(g);
    metrics_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_fits_when_it_is_the_first_or_the_next),
        cmocka_unit_test(every_client_has_its_own_count),
        cmocka_unit_test(the_oldest_of_too_many_clients_is_forgotten),
        cmocka_unit_test(slugs_keep_plain_characters),
        cmocka_unit_test(paths_are_taken_apart_and_nothing_else),
        cmocka_unit_test(names_have_characters_and_no_controls),
        cmocka_unit_test(tensors_that_lead_out_of_the_pack_are_refused),
        cmocka_unit_test(tensors_together_are_no_longer_than_their_pack),
        cmocka_unit_test(packs_are_exactly_as_long_as_they_say),
        cmocka_unit_test(a_difference_between_sampled_and_trained_is_told),
        cmocka_unit_test(the_oldest_sequences_make_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
