/* The tokenizer against ids, texts and stream deltas that the reference tokenizers gave
 * (tests/vectors/tokenizer/ids.json), and against files that are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/decode_stream.h"
#include "text/tokenizer.h"

struct vectors {
    json_t *root, *texts, *entry; /* entry: one tokenizer's expectations */
    struct tokenizer *t;
};

static struct tokenizer *open_dir(const char *path)
{
    struct err e = {0};
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct tokenizer *t;

    if (fd < 0)
        return NULL;
    t = tokenizer_open(fd, &e);
    if (!t)
        print_error("%s: %s\n", path, e.msg);
    close(fd);
    return t;
}

/* The big published tokenizers are not in the repository: CAIRN_TEST_TOKENIZERS/<name> or skipped.
 */
static struct tokenizer *open_named(const char *name, const json_t *entry)
{
    const char *dir = json_string_value(json_object_get(entry, "model"));
    const char *root = getenv("CAIRN_TEST_TOKENIZERS");
    char path[512];

    if (!dir)
        snprintf(path, sizeof path, "%s/%s", root ? root : "build/tokenizers", name);
    return open_dir(dir ? dir : path);
}

static void load_vectors(struct vectors *v, const char *name)
{
    struct err e = {0};

    *v = (struct vectors){0};
    v->root = json_parse_file(AT_FDCWD, "tests/vectors/tokenizer/ids.json", 1 << 20, &e);
    if (!v->root)
        fail_msg("%s", e.msg);
    v->texts = json_object_get(v->root, "texts");
    v->entry = json_object_get(json_object_get(v->root, "tokenizers"), name);
    assert_non_null(v->entry);
    v->t = open_named(name, v->entry);
    if (!v->t && json_is_null(json_object_get(v->entry, "model"))) {
        json_decref(v->root);
        skip();
    }
    assert_non_null(v->t);
}

static void free_vectors(struct vectors *v)
{
    tokenizer_unref(v->t);
    json_decref(v->root);
}

static void assert_ids(const struct token_list *got, const json_t *want, size_t text)
{
    bool same = got->n == json_array_size(want);

    for (size_t i = 0; same && i < got->n; i++)
        same = got->ids[i] == json_integer_value(json_array_get(want, i));
    if (!same)
        fail_msg("text %zu: %zu ids, %zu expected, or they differ", text, got->n,
                 json_array_size(want));
}

static json_t *by_index(const json_t *entry, const char *key, size_t i)
{
    char name[32];

    snprintf(name, sizeof name, "%zu", i);
    return json_object_get(json_object_get(entry, key), name);
}

static void assert_decodes(const struct tokenizer *t, const struct token_list *ids, unsigned flags,
                           const char *want, size_t len, size_t text)
{
    struct buf got = {0};

    tokenizer_decode(t, ids->ids, ids->n, flags, &got);
    if (got.len != len || memcmp(buf_str(&got), want, len) != 0)
        fail_msg("text %zu decodes to \"%s\"", text, buf_str(&got));
    buf_release(&got);
}

static void check_text(const struct vectors *v, size_t i, struct token_list *ids)
{
    struct err e = {0};
    const json_t *text = json_array_get(v->texts, i), *as_text, *decoded, *skipped;
    const char *s = json_string_value(text);
    size_t len = json_string_length(text);

    token_list_reset(ids);
    assert_int_equal(tokenizer_encode(v->t, s, len, TOK_SPECIAL_AS_TEXT, ids, &e), 0);
    as_text = by_index(v->entry, "ids_special_as_text", i);
    assert_ids(ids, as_text ? as_text : json_array_get(json_object_get(v->entry, "ids"), i), i);

    token_list_reset(ids);
    assert_int_equal(tokenizer_encode(v->t, s, len, 0, ids, &e), 0);
    assert_ids(ids, json_array_get(json_object_get(v->entry, "ids"), i), i);

    decoded = by_index(v->entry, "decoded_differs", i);
    decoded = decoded ? decoded : text;
    assert_decodes(v->t, ids, 0, json_string_value(decoded), json_string_length(decoded), i);
    skipped = by_index(v->entry, "decoded_skip_special", i);
    skipped = skipped ? skipped : decoded;
    assert_decodes(v->t, ids, TOK_SKIP_SPECIAL, json_string_value(skipped),
                   json_string_length(skipped), i);
}

static void check_stream(const struct vectors *v, const json_t *s, const struct token_list *ids)
{
    const json_t *deltas = json_object_get(s, "deltas"), *held = json_object_get(s, "held_bytes");
    const json_t *flush = json_object_get(s, "flush");
    struct decode_stream ds;
    struct buf out = {0};

    assert_int_equal(json_array_size(deltas), ids->n);
    decode_stream_init(&ds, v->t, 0);
    for (size_t k = 0; k < ids->n; k++) {
        buf_reset(&out);
        decode_stream_push(&ds, ids->ids[k], &out);
        assert_string_equal(buf_str(&out), json_string_value(json_array_get(deltas, k)));
        assert_int_equal(ds.n_held, json_integer_value(json_array_get(held, k)));
    }
    buf_reset(&out);
    decode_stream_flush(&ds, &out);
    assert_string_equal(buf_str(&out), json_string_value(flush));
    assert_int_equal(ds.n_held, 0);
    buf_release(&out);
}

static void check_streams(const struct vectors *v, struct token_list *ids)
{
    const json_t *s;
    size_t i;

    json_array_foreach (json_object_get(v->entry, "streaming"), i, s) {
        const json_t *index = json_object_get(s, "text_index"), *list, *id;
        struct err e = {0};
        size_t k;

        list = index ? json_array_get(json_object_get(v->entry, "ids"),
                                      (size_t)json_integer_value(index))
                     : json_object_get(s, "ids");
        token_list_reset(ids);
        json_array_foreach (list, k, id)
            assert_int_equal(token_list_push(ids, (int32_t)json_integer_value(id), &e), 0);
        check_stream(v, s, ids);
    }
}

static void check_prefix(const struct vectors *v, struct token_list *ids)
{
    struct err e = {0};
    const json_t *prefix = json_object_get(v->entry, "prefix");

    token_list_reset(ids);
    assert_int_equal(tokenizer_encode(v->t, "", 0, TOK_ADD_SPECIAL, ids, &e), 0);
    assert_ids(ids, prefix, 0);
    assert_int_equal(tokenizer_adds_prefix(v->t), json_array_size(prefix) > 0);
}

static void check_tokenizer(const char *name)
{
    struct vectors v;
    struct token_list ids = {0};

    load_vectors(&v, name);
    for (size_t i = 0; i < json_array_size(v.texts); i++)
        check_text(&v, i, &ids);
    check_streams(&v, &ids);
    check_prefix(&v, &ids);
    token_list_release(&ids);
    free_vectors(&v);
}

static void smollm_ids_texts_and_streams_equal_the_reference(void **state)
{
    (void)state;
    check_tokenizer("tiny-smollm");
}

static void llama3_ids_texts_and_streams_equal_the_reference(void **state)
{
    (void)state;
    check_tokenizer("tiny-llama3");
}

static void qwen2_ids_texts_and_streams_equal_the_reference(void **state)
{
    (void)state;
    check_tokenizer("tiny-qwen2");
}

static void qwen3_ids_texts_and_streams_equal_the_reference(void **state)
{
    (void)state;
    check_tokenizer("tiny-qwen3");
}

static void lfm2_ids_texts_and_streams_equal_the_reference(void **state)
{
    (void)state;
    check_tokenizer("tiny-lfm2");
}

static void the_real_smollm2_equals_the_reference(void **state)
{
    (void)state;
    check_tokenizer("smollm2");
}

static void the_real_qwen3_equals_the_reference(void **state)
{
    (void)state;
    check_tokenizer("qwen3");
}

/* ---- one long text of all texts, so that caches, heaps and pieces of every length meet ---- */

static void a_text_and_its_lines_give_the_same_ids(void **state)
{
    struct vectors v;
    struct token_list whole = {0}, parts = {0};
    struct err e = {0};
    struct buf text = {0};

    (void)state;
    load_vectors(&v, "tiny-smollm");
    for (size_t i = 0; i < json_array_size(v.texts); i++) {
        const json_t *s = json_array_get(v.texts, i);

        /* <|im_end|> stands between, so no word reaches over */
        buf_add(&text, json_string_value(s), json_string_length(s));
        buf_add_str(&text, "<|im_end|>");
        assert_int_equal(
            tokenizer_encode(v.t, json_string_value(s), json_string_length(s), 0, &parts, &e), 0);
        assert_int_equal(token_list_push(&parts, tokenizer_eos_id(v.t), &e), 0);
    }
    assert_int_equal(tokenizer_encode(v.t, buf_str(&text), text.len, 0, &whole, &e), 0);
    assert_int_equal(whole.n, parts.n);
    assert_memory_equal(whole.ids, parts.ids, whole.n * sizeof *whole.ids);
    buf_release(&text);
    token_list_release(&whole);
    token_list_release(&parts);
    free_vectors(&v);
}

/* Bytes of merged pieces, by plain definition, for comparison with both ways of bpe.c. */
static void a_word_over_the_short_limit_merges_like_its_definition(void **state)
{
    /* aa=0, then "aa aa" -> aaaa: 101 letters give 25 pieces of four and one a */
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2},"
        "\"merges\":[\"a a\",\"aa aa\"]},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}}";
    struct err e = {0};
    struct tokenizer *t = tokenizer_parse(json, sizeof json - 1, NULL, 0, &e);
    struct token_list ids = {0};
    char text[101];

    (void)state;
    assert_non_null(t);
    memset(text, 'a', sizeof text);
    for (size_t n = 1; n <= sizeof text; n++) {
        token_list_reset(&ids);
        assert_int_equal(tokenizer_encode(t, text, n, 0, &ids, &e), 0);
        assert_int_equal(ids.n, n / 4 + (n % 4 >= 2) + n % 2);
        for (size_t i = 0; i < n / 4; i++)
            assert_int_equal(ids.ids[i], 2);
    }
    token_list_release(&ids);
    tokenizer_unref(t);
}

/* ---- refusals ---- */

static void assert_refused(const char *json, const char *part)
{
    struct err e = {0};
    struct tokenizer *t = tokenizer_parse(json, strlen(json), NULL, 0, &e);

    assert_null(t);
    assert_int_equal(e.code, ERR_FORMAT);
    if (!strstr(e.msg, part))
        fail_msg("\"%s\" does not name %s", e.msg, part);
}

#define BYTE_LEVEL "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define DECODER    "\"decoder\":{\"type\":\"ByteLevel\"}"
#define AB_MODEL \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static void parts_that_are_not_understood_are_refused_by_name(void **state)
{
    (void)state;
    assert_refused("{\"model\":{\"type\":\"Unigram\"}}", "Unigram");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true}}", "byte_fallback");
    assert_refused("{" AB_MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\"}}", "Metaspace");
    assert_refused("{" AB_MODEL ",\"pre_tokenizer\":null}", "pre_tokenizer");
    assert_refused("{" AB_MODEL ",\"normalizer\":{\"type\":\"Lowercase\"}," BYTE_LEVEL "}",
                   "Lowercase");
    assert_refused("{" AB_MODEL "," BYTE_LEVEL ",\"post_processor\":{\"type\":\"BertProcessing\"}}",
                   "BertProcessing");
    assert_refused("{" AB_MODEL "," BYTE_LEVEL ",\"decoder\":{\"type\":\"WordPiece\"}}",
                   "WordPiece");
    assert_refused("{" AB_MODEL
                   ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"},"
                   "\"behavior\":\"Isolated\"}}",
                   "\\h");
}

static void damaged_vocabularies_are_refused(void **state)
{
    (void)state;
    assert_refused("[]", "not an object");
    assert_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}", "malformed JSON");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}",
                   "twice");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0]},\"merges\":[]}}",
                   "malformed");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}",
                   "whole number");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,},\"merges\":[]}}",
                   "malformed");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\\ud800\":0},\"merges\":[]}}",
                   "malformed");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\",]}}",
                   "merges[");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}",
                   "not an object of pieces");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
                   "two pieces");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "id");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}",
                   "99999999");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}",
                   "merges[0]");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}}",
                   "whole number");
}

static void text_that_is_not_utf8_is_refused_with_its_byte(void **state)
{
    static const char json[] = "{" AB_MODEL "," BYTE_LEVEL "," DECODER "}";
    struct err e = {0};
    struct tokenizer *t = tokenizer_parse(json, sizeof json - 1, NULL, 0, &e);
    struct token_list ids = {0};

    (void)state;
    assert_non_null(t);
    assert_int_equal(tokenizer_encode(t, "ab\xff", 3, 0, &ids, &e), -1);
    assert_int_equal(e.code, ERR_ARG);
    assert_non_null(strstr(e.msg, "byte 2"));
    assert_int_equal(ids.n, 0);
    token_list_release(&ids);
    tokenizer_unref(t);
}

/* ---- added tokens ---- */

static void assert_encodes(const char *json, const char *text, const int32_t *want, size_t n)
{
    struct err e = {0};
    struct tokenizer *t = tokenizer_parse(json, strlen(json), NULL, 0, &e);
    struct token_list ids = {0};

    if (!t)
        fail_msg("%s", e.msg);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), 0, &ids, &e), 0);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof *want);
    token_list_release(&ids);
    tokenizer_unref(t);
}

static void added_tokens_match_leftmost_then_longest(void **state)
{
    static const char json[] = "{" AB_MODEL "," BYTE_LEVEL "," DECODER ",\"added_tokens\":["
                               "{\"id\":3,\"content\":\"<x\"},{\"id\":4,\"content\":\"<x>\"},"
                               "{\"id\":5,\"content\":\"x>a\"}]}";

    (void)state;
    assert_encodes(json, "ab<x>a<xb", (const int32_t[]){2, 4, 0, 3, 1}, 5);
}

static void strip_flags_take_white_space_along(void **state)
{
    static const char json[] = "{" AB_MODEL "," BYTE_LEVEL "," DECODER ",\"added_tokens\":["
                               "{\"id\":3,\"content\":\"<l>\",\"lstrip\":true},"
                               "{\"id\":4,\"content\":\"<r>\",\"rstrip\":true},"
                               "{\"id\":5,\"content\":\"w\",\"single_word\":true}]}";

    (void)state;
    /* without the flags each space would vanish too (no piece), so look at the words around: w is a
     * token only where it stands alone */
    assert_encodes(json, "a  <l>b<r> \n b", (const int32_t[]){0, 3, 1, 4, 1}, 5);
    assert_encodes(json, "w aw w", (const int32_t[]){5, 0, 5}, 3);
}

#define UNK_MODEL(more)                                                                            \
    "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<u>\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<u>" \
    "\":3}," more "\"merges\":[\"a b\"]}," BYTE_LEVEL "," DECODER "}"

static void bytes_without_a_piece_become_the_unknown_token_where_there_is_one(void **state)
{
    (void)state;
    assert_encodes(UNK_MODEL(""), "axyb x", (const int32_t[]){0, 3, 3, 1, 3, 3}, 6);
    assert_encodes(UNK_MODEL("\"fuse_unk\":true,"), "axyb x", (const int32_t[]){0, 3, 1, 3}, 4);
    assert_encodes("{" AB_MODEL "," BYTE_LEVEL "," DECODER "}", "axyb x", (const int32_t[]){2}, 1);
    assert_refused(
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "unk_token");
}

static void a_special_token_that_plain_text_would_become_is_refused(void **state)
{
    (void)state;
    assert_refused("{" AB_MODEL
                   ",\"added_tokens\":[{\"id\":2,\"content\":\"<x>\",\"special\":true}]}",
                   "\"<x>\" (id 2) is also what model.merges make");
    assert_refused("{" AB_MODEL
                   ",\"added_tokens\":[{\"id\":2,\"content\":\"ab\",\"special\":true}]}",
                   "\"ab\" (id 2) is also what model.merges make");
    assert_refused("{" AB_MODEL
                   ",\"added_tokens\":[{\"id\":1,\"content\":\"b\",\"special\":true}]}",
                   "\"b\" (id 1) is also what model.vocab makes");
}

/* ---- steps of the pre-tokenizer ---- */

#define STEPS(list)                                                                              \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"1\":2,\"-\":3,\"aa\":4,\"bb\":5," \
    "\"11\":6,\"b1\":7,\"a-\":8},\"merges\":[\"a a\",\"b b\",\"1 1\",\"b 1\",\"a -\"]},"         \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" list                          \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}}"

static void each_step_cuts_what_the_one_before_it_left(void **state)
{
    static const char *const text = "aa-b11b";

    (void)state;
    assert_encodes(STEPS(""), text, (const int32_t[]){4, 3, 1, 6, 1}, 5);
    assert_encodes(STEPS("{\"type\":\"Digits\",\"individual_digits\":true},"), text,
                   (const int32_t[]){4, 3, 1, 2, 2, 1}, 6);
    assert_encodes(STEPS("{\"type\":\"Digits\"},"), "b11b1", (const int32_t[]){1, 6, 1, 2}, 4);
    assert_encodes(
        STEPS("{\"type\":\"Split\",\"pattern\":{\"String\":\"a-\"},\"behavior\":\"Isolated\"},"),
        text, (const int32_t[]){0, 8, 1, 6, 1}, 5);
    assert_encodes(
        STEPS("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-\"},\"behavior\":\"Removed\"},"), text,
        (const int32_t[]){4, 1, 6, 1}, 4);
    assert_encodes(
        STEPS("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-]+\"},\"behavior\":\"Removed\","
              "\"invert\":true},"),
        text, (const int32_t[]){4, 3}, 2);
    assert_refused(
        STEPS(
            "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-\"},\"behavior\":\"MergedWithNext\"},"),
        "MergedWithNext");
    assert_refused(STEPS("{\"type\":\"Split\",\"behavior\":\"Isolated\"},"), "pattern");
}

/* ---- threads ---- */

struct job {
    const struct vectors *v;
    int wrong;
};

static void *encode_everything(void *arg)
{
    struct job *job = arg;
    struct token_list ids = {0};
    struct err e = {0};

    for (size_t i = 0; i < json_array_size(job->v->texts); i++) {
        const json_t *s = json_array_get(job->v->texts, i);

        token_list_reset(&ids);
        if (tokenizer_encode(job->v->t, json_string_value(s), json_string_length(s), 0, &ids, &e) <
                0 ||
            ids.n != json_array_size(json_array_get(json_object_get(job->v->entry, "ids"), i)))
            job->wrong++;
    }
    token_list_release(&ids);
    return NULL;
}

static void several_threads_share_one_tokenizer(void **state)
{
    struct vectors v;
    pthread_t threads[4];
    struct job jobs[4];

    (void)state;
    load_vectors(&v, "tiny-llama3");
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){&v, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_everything, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].wrong, 0);
    }
    free_vectors(&v);
}

static void special_ids_come_from_the_configuration(void **state)
{
    struct tokenizer *t = open_dir("tests/vectors/models/tiny-llama-untied-rope3");

    (void)state;
    assert_non_null(t);
    assert_int_equal(tokenizer_bos_id(t), tokenizer_find(t, "<|begin_of_text|>", 17));
    assert_int_equal(tokenizer_eos_id(t), tokenizer_find(t, "<|eot_id|>", 10));
    assert_true(tokenizer_is_special(t, tokenizer_eos_id(t)));
    assert_int_equal(tokenizer_vocab_size(t), 544);
    assert_int_equal(tokenizer_chat_flags(t, "<|begin_of_text|>hi", 19), 0);
    assert_int_equal(tokenizer_chat_flags(t, "hi", 2), TOK_ADD_SPECIAL);
    assert_int_equal(tokenizer_find(t, "no such piece", 13), -1);
    tokenizer_unref(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm_ids_texts_and_streams_equal_the_reference),
        cmocka_unit_test(llama3_ids_texts_and_streams_equal_the_reference),
        cmocka_unit_test(qwen2_ids_texts_and_streams_equal_the_reference),
        cmocka_unit_test(qwen3_ids_texts_and_streams_equal_the_reference),
        cmocka_unit_test(lfm2_ids_texts_and_streams_equal_the_reference),
        cmocka_unit_test(the_real_smollm2_equals_the_reference),
        cmocka_unit_test(the_real_qwen3_equals_the_reference),
        cmocka_unit_test(a_text_and_its_lines_give_the_same_ids),
        cmocka_unit_test(a_word_over_the_short_limit_merges_like_its_definition),
        cmocka_unit_test(parts_that_are_not_understood_are_refused_by_name),
        cmocka_unit_test(damaged_vocabularies_are_refused),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_with_its_byte),
        cmocka_unit_test(added_tokens_match_leftmost_then_longest),
        cmocka_unit_test(strip_flags_take_white_space_along),
        cmocka_unit_test(bytes_without_a_piece_become_the_unknown_token_where_there_is_one),
        cmocka_unit_test(a_special_token_that_plain_text_would_become_is_refused),
        cmocka_unit_test(each_step_cuts_what_the_one_before_it_left),
        cmocka_unit_test(several_threads_share_one_tokenizer),
        cmocka_unit_test(special_ids_come_from_the_configuration),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
