/* Text of one choice: characters cut by tokens, stop strings cut by tokens, offsets of
 * log-probabilities. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/json.h"
#include "service/chat_choice.h"
#include "text/tokenizer.h"

struct heard {
    struct buf text;
    struct buf calls;
    int pieces, finished;
    enum chat_finish why;
    int64_t offsets[256];
    int n_offsets;
};

static void on_piece(void *arg, int choice, const char *text, size_t len,
                     const struct chat_token *tokens, int n)
{
    struct heard *h = arg;

    (void)choice;
    h->pieces++;
    buf_add(&h->text, text, len);
    for (int i = 0; i < n; i++)
        h->offsets[h->n_offsets++] = tokens[i].text_offset;
}

static void on_finished(void *arg, int choice, enum chat_finish why)
{
    struct heard *h = arg;

    (void)choice;
    h->finished++;
    h->why = why;
}

static void on_call(void *arg, int choice, const char *name, const char *arguments)
{
    struct heard *h = arg;

    (void)choice;
    buf_printf(&h->calls, "%s %s;", name, arguments);
}

static struct tokenizer *open_model(const char *path)
{
    struct err e = {0};
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    struct tokenizer *t = tokenizer_open(fd, &e);

    close(fd);
    if (!t)
        fail_msg("%s", e.msg);
    return t;
}

static int open_tokenizer(void **state)
{
    *state = open_model("tests/vectors/models/tiny-qwen3");
    return 0;
}

static int close_tokenizer(void **state)
{
    tokenizer_unref(*state);
    return 0;
}

/* Feeds the text token by token until a stop string is found. Release heard.text. */
static void feed(const struct tokenizer *t, const struct chat_job *job, const char *text,
                 struct heard *h)
{
    const struct chat_sink sink = {.arg = h, .piece = on_piece, .finished = on_finished};
    struct token_list list = {0};
    struct err e = {0};
    struct choice c;
    bool found = false;

    assert_int_equal(tokenizer_encode(t, text, strlen(text), 0, &list, &e), 0);
    choice_init(&c, 0, job, &sink, t, TOOLS_NONE);
    for (size_t i = 0; i < list.n && !found; i++) {
        struct gen_event ev = {.kind = GEN_TOKEN, .token = list.ids[i]};
        found = choice_add(&c, &ev, false);
    }
    choice_finish(&c, CHAT_LENGTH);
    choice_release(&c);
    token_list_release(&list);
}

/* The same for an answer with the tools f and g; the number of tokens it took. */
static size_t feed_tools(const struct tokenizer *t, enum tool_form form, bool one_call,
                         const char *text, struct heard *h)
{
    static const char offered[] =
        "[{\"function\": {\"name\": \"f\"}}, {\"function\": {\"name\": \"g\"}}]";
    const struct chat_sink sink = {
        .arg = h, .piece = on_piece, .call = on_call, .finished = on_finished};
    struct err e = {0};
    json_t *tools = json_parse(offered, strlen(offered), &e);
    struct chat_job job = {.top_logprobs = 0, .tools = {.list = tools, .one_call = one_call}};
    struct token_list list = {0};
    struct choice c;
    bool found = false;
    size_t i;

    assert_int_equal(tokenizer_encode(t, text, strlen(text), 0, &list, &e), 0);
    choice_init(&c, 0, &job, &sink, t, form);
    for (i = 0; i < list.n && !found; i++) {
        struct gen_event ev = {.kind = GEN_TOKEN, .token = list.ids[i]};
        found = choice_add(&c, &ev, false);
    }
    choice_finish(&c, CHAT_STOP);
    choice_release(&c);
    token_list_release(&list);
    json_decref(tools);
    return i;
}

static const char emoji[] = "caf\xc3\xa9 \xf0\x9f\x98\x80\xf0\x9f\x91\xa9 \xe6\xb0\xb4 end";

static void pieces_are_whole_characters_and_join_to_the_text(void **state)
{
    struct chat_job job = {.top_logprobs = -1};
    struct heard h = {0};

    feed(*state, &job, emoji, &h);
    assert_string_equal(buf_str(&h.text), emoji);
    assert_true(h.pieces > 3 && h.finished == 1 && h.why == CHAT_LENGTH);
    buf_release(&h.text);
}

static void a_stop_string_ends_the_text_before_itself(void **state)
{
    struct chat_job job = {
        .top_logprobs = -1, .n_stops = 1, .stops = {{"\xf0\x9f\x91\xa9 \xe6", 6}}};
    struct heard h = {0};

    feed(*state, &job, emoji, &h);
    assert_string_equal(buf_str(&h.text), "caf\xc3\xa9 \xf0\x9f\x98\x80");
    assert_true(h.finished == 1 && h.why == CHAT_STOP);
    buf_release(&h.text);
}

static void held_text_comes_at_the_end_when_no_stop_completes(void **state)
{
    struct chat_job job = {
        .top_logprobs = -1, .n_stops = 2, .stops = {{"end of it", 9}, {"\xe6\xb0\xb4 en\n", 7}}};
    struct heard h = {0};

    feed(*state, &job, emoji, &h);
    assert_string_equal(buf_str(&h.text), emoji);
    assert_int_equal(h.why, CHAT_LENGTH);
    buf_release(&h.text);
}

static void offsets_count_characters(void **state)
{
    struct chat_job job = {.top_logprobs = 0};
    struct heard h = {0};
    struct token_list list = {0};
    struct err e = {0};
    int64_t characters = 0;
    size_t bytes = 0, seen = 0;

    feed(*state, &job, emoji, &h);
    assert_int_equal(tokenizer_encode(*state, emoji, strlen(emoji), 0, &list, &e), 0);
    assert_int_equal(h.n_offsets, (int)list.n);
    for (size_t i = 0; i < list.n; i++) {
        const char *token;
        size_t n;

        for (; seen < bytes;
             seen++) /* a token inside a character stands where the character does */
            characters += (emoji[seen] & 0xc0) != 0x80;
        if ((emoji[bytes] & 0xc0) == 0x80)
            assert_int_equal(h.offsets[i], characters - 1);
        else
            assert_int_equal(h.offsets[i], characters);
        assert_true(tokenizer_token_bytes(*state, list.ids[i], &token, &n));
        bytes += n;
    }
    token_list_release(&list);
    buf_release(&h.text);
}

static void a_broken_character_counts_before_the_token_that_breaks_it(void **state)
{
    struct chat_job job = {.top_logprobs = 0};
    struct heard h = {0};
    const struct chat_sink sink = {.arg = &h, .piece = on_piece, .finished = on_finished};
    struct gen_event half = {.kind = GEN_TOKEN, .token = tokenizer_find(*state, "\xf0\x9f", 2)};
    struct gen_event letter = {.kind = GEN_TOKEN, .token = tokenizer_find(*state, "a", 1)};
    struct choice c;

    if (half.token < 0)
        half.token = tokenizer_find(*state, "\xf0", 1);
    assert_true(half.token >= 0 && letter.token >= 0);
    choice_init(&c, 0, &job, &sink, *state, TOOLS_NONE);
    choice_add(&c, &half, false);
    choice_add(&c, &letter, false);
    choice_add(&c, &half, false);
    choice_finish(&c, CHAT_LENGTH);
    choice_release(&c);
    assert_string_equal(buf_str(&h.text), "\xef\xbf\xbd"
                                          "a"
                                          "\xef\xbf\xbd");
    assert_int_equal(h.n_offsets, 3);
    assert_int_equal(h.offsets[0], 0);
    assert_int_equal(h.offsets[1], 1);
    assert_int_equal(h.offsets[2], 2);
    buf_release(&h.text);
}

static void calls_are_told_apart_and_every_token_is_told(void **state)
{
    static const char text[] = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
                               "1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>";
    struct heard h = {0};
    size_t n = feed_tools(*state, TOOLS_TAGGED, false, text, &h);

    assert_string_equal(buf_str(&h.text), "Let me see.");
    assert_string_equal(buf_str(&h.calls), "f {\"a\":1};g {};");
    assert_true(h.finished == 1 && h.why == CHAT_TOOL_CALLS);
    assert_int_equal(h.n_offsets, n);
    buf_release(&h.text);
    buf_release(&h.calls);
}

static void the_only_call_ends_the_answer(void **state)
{
    static const char text[] = "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": "
                               "\"g\"}</tool_call>";
    struct heard h = {0};
    size_t all = feed_tools(*state, TOOLS_TAGGED, false, text, &h), one;

    assert_string_equal(buf_str(&h.calls), "f {};g {};");
    buf_reset(&h.calls);
    h.finished = h.n_offsets = 0;
    one = feed_tools(*state, TOOLS_TAGGED, true, text, &h);
    assert_string_equal(buf_str(&h.calls), "f {};");
    assert_true(one < all && h.finished == 1 && h.why == CHAT_TOOL_CALLS);
    buf_release(&h.text);
    buf_release(&h.calls);
}

static void marks_that_are_special_tokens_are_seen_and_not_shown(void **state)
{
    struct tokenizer *t = open_model("tests/vectors/models/tiny-lfm2");
    struct heard h = {0};

    (void)state;
    feed_tools(t, TOOLS_PYTHON, false,
               "<|im_start|>Now: <|tool_call_start|>[f(a='x'), g()]<|tool_call_end|>", &h);
    assert_string_equal(buf_str(&h.text), "Now:");
    assert_string_equal(buf_str(&h.calls), "f {\"a\":\"x\"};g {};");
    buf_release(&h.text);
    buf_release(&h.calls);
    tokenizer_unref(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_whole_characters_and_join_to_the_text),
        cmocka_unit_test(a_stop_string_ends_the_text_before_itself),
        cmocka_unit_test(held_text_comes_at_the_end_when_no_stop_completes),
        cmocka_unit_test(offsets_count_characters),
        cmocka_unit_test(a_broken_character_counts_before_the_token_that_breaks_it),
        cmocka_unit_test(calls_are_told_apart_and_every_token_is_told),
        cmocka_unit_test(the_only_call_ends_the_answer),
        cmocka_unit_test(marks_that_are_special_tokens_are_seen_and_not_shown),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
