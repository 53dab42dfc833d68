/* Calls in what a model writes: the three forms, whole and in pieces, and what is no call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/tool_call.h"

static void add_text(void *arg, const char *text, size_t len)
{
    buf_add(arg, text, len);
}

static void add_call(void *arg, const char *name, const char *arguments)
{
    buf_printf(arg, "{%s %s}", name, arguments);
}

/* Text and calls, the latter in braces; the answer comes in pieces of `size` bytes. Owned; NULL
 * when it was not read. Asserts nothing: it is also called on other threads. */
static char *read_answer(enum tool_form form, const char *answer, size_t size)
{
    static const char offered[] = "[{\"function\": {\"name\": \"f\"}}, {\"function\": {\"name\": "
                                  "\"get_weather\"}}]";
    struct err e = {0};
    json_t *tools = json_parse(offered, strlen(offered), &e);
    struct buf out = {0};
    struct tool_sink sink = {.arg = &out, .text = add_text, .call = add_call};
    struct tool_reader r;
    size_t len = strlen(answer);
    bool failed;

    if (!tools)
        return NULL;
    tool_reader_init(&r, form, tools, &sink);
    for (size_t at = 0; at < len; at += size)
        tool_reader_push(&r, answer + at, len - at < size ? len - at : size);
    tool_reader_finish(&r);
    failed = r.failed;
    tool_reader_release(&r);
    json_decref(tools);
    buf_add(&out, "", 0);
    if (!failed)
        return buf_take(&out);
    buf_release(&out);
    return NULL;
}

struct answer {
    const char *text, *expected;
};

static void check(enum tool_form form, const struct answer *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t size = 1; size <= strlen(list[i].text) + 1; size++) {
            char *got = read_answer(form, list[i].text, size);

            assert_non_null(got);
            if (strcmp(got, list[i].expected) != 0)
                fail_msg("%s in pieces of %zu: %s", list[i].text, size, got);
            free(got);
        }
}

#define CHECK(form, list) check(form, list, sizeof(list) / sizeof *(list))

static void tagged_calls_are_told_apart_from_the_text_around_them(void **state)
{
    static const struct answer list[] = {
        {"Just text.\n", "Just text.\n"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"x\"]}}\n</tool_call>",
         "{f {\"a\":[1,\"x\"]}}"},
        {"Let me look.\n\n<tool_call>{\"name\": \"f\", \"arguments\": "
         "{}}</tool_call>\n<tool_call>{\"name\": "
         "\"get_weather\", \"arguments\": {\"b\": \"</tool\"}}</tool_call>\n",
         "Let me look.{f {}}{get_weather {\"b\":\"</tool\"}}"},
        {"<tool_call>{\"name\": \"f\"}</tool_call> and then", "{f {}}and then"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
         "{f {\"a\":1}}"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "{f {\"a\":1}}"},
    };

    (void)state;
    CHECK(TOOLS_TAGGED, list);
}

static void what_is_no_call_stays_text(void **state)
{
    static const struct answer tagged[] = {
        {"a <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call> b",
         "a <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call> b"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"},
        {"<tool_call>{\"name\": </tool_call>", "<tool_call>{\"name\": </tool_call>"},
        {"<tool_call>{\"name\": \"f\", \"argu", "<tool_call>{\"name\": \"f\", \"argu"},
        {"1 < 2 <tool <tool_cal", "1 < 2 <tool <tool_cal"},
        {"<tool_call></tool_call>", "<tool_call></tool_call>"},
    };
    static const struct answer json[] = {
        {"{\"a\": 1}", "{\"a\": 1}"},
        {"Text, then {\"name\": \"f\", \"parameters\": {}}",
         "Text, then {\"name\": \"f\", \"parameters\": {}}"},
        {"  \n", "  \n"},
    };
    static const struct answer python[] = {
        {"<|tool_call_start|>[f(1)]<|tool_call_end|>",
         "<|tool_call_start|>[f(1)]<|tool_call_end|>"},
        {"<|tool_call_start|>[g()]<|tool_call_end|>", "<|tool_call_start|>[g()]<|tool_call_end|>"},
        {"<|tool_call_start|>f()<|tool_call_end|>", "<|tool_call_start|>f()<|tool_call_end|>"},
        {"<|tool_call_start|>[f(a=)]<|tool_call_end|>",
         "<|tool_call_start|>[f(a=)]<|tool_call_end|>"},
        {"<|tool_call_start|>[f(a='x]<|tool_call_end|>",
         "<|tool_call_start|>[f(a='x]<|tool_call_end|>"},
    };

    (void)state;
    CHECK(TOOLS_TAGGED, tagged);
    CHECK(TOOLS_JSON, json);
    CHECK(TOOLS_PYTHON, python);
}

static void a_bare_object_is_a_call_when_it_is_the_whole_answer(void **state)
{
    static const struct answer list[] = {
        {"{\"name\": \"f\", \"parameters\": {\"a\": true}}", "{f {\"a\":true}}"},
        {"\n {\"name\": \"f\", \"arguments\": {}}\n", "{f {}}"},
        {"{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"get_weather\", \"parameters\": {}}",
         "{f {}}{get_weather {}}"},
    };

    (void)state;
    CHECK(TOOLS_JSON, list);
}

static void python_literals_become_json(void **state)
{
    static const struct answer list[] = {
        {"<|tool_call_start|>[f(a=1, b=-2.5, c='it\\'s', d=\"x\\n\", e=True, "
         "f=None)]<|tool_call_end|>",
         "{f {\"a\":1,\"b\":-2.5,\"c\":\"it's\",\"d\":\"x\\n\",\"e\":true,\"f\":null}}"},
        {"<|tool_call_start|>[f(l=[1, (2,), {'k': False}]), get_weather()]<|tool_call_end|>Done.",
         "{f {\"l\":[1,[2],{\"k\":false}]}}{get_weather {}}Done."},
        {"<|tool_call_start|>[f(a=\"\\u00e9\\ud83d\\ude00\\x41\\q\")]<|tool_call_end|>",
         "{f {\"a\":\"\xc3\xa9\xf0\x9f\x98\x80"
         "A\\\\q\"}}"},
    };

    (void)state;
    CHECK(TOOLS_PYTHON, list);
}

struct nest {
    enum tool_form form;
    const char *before, *open, *close, *after;
    int levels;
};

/* On a stack as small as a handler's. NULL when it stayed text, otherwise its argument. */
static void *read_nest(void *arg)
{
    const struct nest *n = arg;
    struct buf text = {0};
    char *got;
    bool same;

    buf_add_str(&text, n->before);
    for (int i = 0; i < n->levels; i++)
        buf_add_str(&text, n->open);
    for (int i = 0; i < n->levels; i++)
        buf_add_str(&text, n->close);
    buf_add_str(&text, n->after);
    got = read_answer(n->form, buf_str(&text), 4096);
    same = got && strcmp(got, buf_str(&text)) == 0;
    free(got);
    buf_release(&text);
    return same ? NULL : arg;
}

static void what_nests_too_deep_is_text(void **state)
{
    static const struct nest nests[] = {
        {TOOLS_TAGGED, "<tool_call>", "[", "]", "</tool_call>", 100000},
        {TOOLS_TAGGED, "<tool_call>{}", "{\"a\":", "", "", 100000},
        {TOOLS_TAGGED, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":", "[", "]",
         "}}</tool_call>", 2040},
        {TOOLS_TAGGED, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":", "[", "]",
         "}\"}</tool_call>", 2040},
        {TOOLS_JSON, "{\"name\":\"f\",\"arguments\":{\"a\":", "[", "]", "}}", 2040},
        {TOOLS_PYTHON, "<|tool_call_start|>[f(a=", "[", "]", ")]<|tool_call_end|>", 100000},
        {TOOLS_PYTHON, "<|tool_call_start|>[f(a=", "{'a':", "", "", 100000},
    };
    pthread_attr_t small;
    pthread_t thread;
    void *other;

    (void)state;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 512 << 10);
    for (size_t i = 0; i < sizeof nests / sizeof *nests; i++) {
        assert_int_equal(pthread_create(&thread, &small, read_nest, (void *)(uintptr_t)&nests[i]),
                         0);
        pthread_join(thread, &other);
        if (other)
            fail_msg("nest %zu did not stay text", i);
    }
    pthread_attr_destroy(&small);
}

static void a_template_knows_tools_when_it_uses_the_variable(void **state)
{
    static const struct {
        const char *text;
        bool uses;
    } list[] = {
        {"{% if tools %}{{ tools | tojson }}{% endif %}", true},
        {"{%- for t in tools -%}{% endfor %}", true},
        {"Use your tools.{{ messages[0].content }}", false},
        {"{{ 'no tools' }}{{ my_tools }}{# tools #}", false},
        {"{{ \"it's\" }}{{ tools }}", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct err e = {0};
        struct chat_source *s = chat_source_new(NULL, list[i].text, &e);

        assert_non_null(s);
        if (chat_source_uses(s, "tools") != list[i].uses)
            fail_msg("%s", list[i].text);
        chat_source_unref(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tagged_calls_are_told_apart_from_the_text_around_them),
        cmocka_unit_test(what_is_no_call_stays_text),
        cmocka_unit_test(a_bare_object_is_a_call_when_it_is_the_whole_answer),
        cmocka_unit_test(python_literals_become_json),
        cmocka_unit_test(what_nests_too_deep_is_text),
        cmocka_unit_test(a_template_knows_tools_when_it_uses_the_variable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
