/* Which texts belong to the language of a schema. */
#include "grammar_test.h"

struct example {
    const char *schema;
    const char *good[12];
    const char *bad[12];
};

static void check_example(struct token_trie *trie, const struct example *x)
{
    struct grammar *g = schema_grammar(x->schema);

    for (int i = 0; i < 12 && x->good[i]; i++)
        if (!fits(g, trie, x->good[i]))
            fail_msg("%s refuses %s", x->schema, x->good[i]);
    for (int i = 0; i < 12 && x->bad[i]; i++)
        if (fits(g, trie, x->bad[i]))
            fail_msg("%s takes %s", x->schema, x->bad[i]);
    grammar_unref(g);
}

static void check_examples(const struct example *list, size_t n)
{
    struct token_trie *trie = open_trie(MODELS "tiny-qwen3");

    for (size_t i = 0; i < n; i++)
        check_example(trie, &list[i]);
    token_trie_unref(trie);
}

#define CHECK(list) check_examples(list, sizeof(list) / sizeof *(list))

static void plain_types_take_their_values_only(void **state)
{
    static const struct example list[] = {
        {"{\"type\": \"string\"}",
         {"\"\"", "\"a\"", "\"\xc3\xa9 \xf0\x9f\x98\x80\"", "\"\\n\\u00e9\\ud83d\\ude00\""},
         {"a", "\"a", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ud83d\\u0041\"", "\"\xc3\"",
          "\"a\" "}},
        {"{\"type\": \"integer\"}",
         {"0", "-7", "120", "999999999999999999"},
         {"01", "1.0", "-", "+1", "1e2", "1000000000000000000"}},
        {"{\"type\": \"number\"}",
         {"0", "-0.5", "1e5", "1.25E-7", "12"},
         {".5", "1.", "1e", "0x1", "NaN"}},
        {"{\"type\": \"boolean\"}", {"true", "false"}, {"True", "1", "null"}},
        {"{\"type\": \"null\"}", {"null"}, {"nul", "none"}},
        {"{\"type\": [\"string\", \"null\"]}", {"null", "\"x\""}, {"1"}},
        {"{}", {"1", "\"a\"", "[]", "{}", "{\"a\": [1, {\"b\": null}]}"}, {"", "{", "[1,]"}},
        {"true", {"[true]"}, {"]"}},
    };

    (void)state;
    CHECK(list);
}

static void members_come_in_order_and_optional_ones_may_be_left_out(void **state)
{
    static const struct example list[] = {
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": "
         "{\"type\": "
         "\"string\"}, \"c\": {\"type\": \"null\"}}, \"required\": [\"b\"]}",
         {"{\"a\": 1, \"b\": \"x\", \"c\": null}", "{\"b\":\"\"}", "{ \"b\": \"x\" }",
          "{\n  \"a\": 1,\n  \"b\": \"\"\n}", "{\"b\": \"\", \"c\": null}", "{\"a\":1,\"b\":\"\"}"},
         {"{}", "{\"a\": 1}", "{\"b\": \"\", \"a\": 1}", "{\"b\": 1}", "{\"b\": \"\",}",
          "{\"b\": \"\", \"d\": 1}", "{\"a\": 1, \"b\": \"\", \"b\": \"\"}", "{,\"b\": \"\"}",
          "{  \"b\": \"\"}"}},
        {"{\"type\": \"object\", \"properties\": {}}", {"{}", "{ }"}, {"{\"a\": 1}", "{,}"}},
        {"{\"type\": \"object\"}", {"{}", "{\"x\": {\"y\": [1]}}"}, {"[]"}},
        {"{\"properties\": {\"a\": true, \"b\": true}}",
         {"{}", "{\"a\": 1}", "{\"b\": []}", "{\"a\": {}, \"b\": 2}"},
         {"{\"b\": 1, \"a\": 1}", "7"}},
        {"{\"type\": \"object\", \"required\": [\"z\"]}",
         {"{\"z\": 1}", "{\"z\": 1, \"y\": 2}"},
         {"{}", "{\"y\": 1}", "{\"z\": 1, \"z\": 2}"}},
    };

    (void)state;
    CHECK(list);
}

static void other_names_come_where_they_may_and_never_repeat_a_known_one(void **state)
{
    static const struct example list[] = {
        {"{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"n\": true}, "
         "\"additionalProperties\": {\"type\": \"integer\"}, \"required\": [\"name\"]}",
         {"{\"name\": \"x\"}", "{\"name\": \"x\", \"names\": 1}",
          "{\"name\": \"\", \"na\": 1, \"m\": 2}", "{\"name\": \"\", \"\": 1}",
          "{\"name\": \"\", \"\xc3\xa9\\n\": 1}"},
         {"{\"name\": \"x\", \"name\": 1}", "{\"name\": \"x\", \"m\": \"y\"}", "{\"m\": 1}",
          "{\"name\": \"x\", \"n\\u0061me\": 1}", "{\"name\": \"\", \"m\": 1, \"n\": 2}"}},
        {"{\"additionalProperties\": {\"type\": \"null\"}}",
         {"{}", "{\"a\": null, \"b\": null}"},
         {"{\"a\": 1}"}},
        {"{\"additionalProperties\": false}", {"{}"}, {"{\"a\": 1}"}},
    };

    (void)state;
    CHECK(list);
}

static void arrays_have_their_number_of_items(void **state)
{
    static const struct example list[] = {
        {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}",
         {"[]", "[1]", "[1, 2,3]", "[\n  1,\n  2\n]", "[ ]"},
         {"[1 2]", "[,]", "[\"a\"]", "[1,]"}},
        {"{\"type\": \"array\", \"minItems\": 2, \"maxItems\": 3}",
         {"[1, 2]", "[1, null, {}]"},
         {"[]", "[1]", "[1, 2, 3, 4]"}},
        {"{\"items\": {\"type\": \"null\"}, \"minItems\": 3}",
         {"[null,null,null]", "[null,null,null,null,null]"},
         {"[null,null]"}},
        {"{\"type\": \"array\", \"maxItems\": 0}", {"[]"}, {"[1]"}},
    };

    (void)state;
    CHECK(list);
}

static void strings_have_their_length_in_characters(void **state)
{
    static const struct example list[] = {
        {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
         {"\"ab\"", "\"abc\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\n\\ud83d\\ude00\"",
          "\"\\u0061bc\""},
         {"\"\"", "\"a\"", "\"abcd\"", "\"\\n\"", "\"\xc3\xa9\"", "\"\\ud83d\\ude00\""}},
        {"{\"minLength\": 1}", {"\"a\"", "\"abcdefghijklmnopqrstuvwxyz\""}, {"\"\""}},
        {"{\"maxLength\": 0}", {"\"\""}, {"\"a\""}},
    };

    (void)state;
    CHECK(list);
}

static void listed_values_are_taken_as_they_are(void **state)
{
    static const struct example list[] = {
        {"{\"enum\": [\"red\", \"re\", 1, 12, null, true, {\"a\": [1, \"x\"]}]}",
         {"\"red\"", "\"re\"", "1", "12", "null", "true", "{\"a\": [1, \"x\"]}"},
         {"\"r\"", "\"redd\"", "121", "2", "false"}},
        {"{\"type\": \"string\", \"enum\": [\"dark \\\"blue\\\" \xc3\xa9\", 5]}",
         {"\"dark \\\"blue\\\" \xc3\xa9\""},
         {"5", "\"dark\""}},
        {"{\"const\": 2.5}", {"2.5"}, {"2", "2.50"}},
        {"{\"type\": \"integer\", \"enum\": [1.0, 2, 2.5]}", {"1.0", "2"}, {"2.5"}},
    };

    (void)state;
    CHECK(list);
}

static void alternatives_and_references_may_nest(void **state)
{
    static const struct example list[] = {
        {"{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"string\", \"maxLength\": 1}, "
         "{\"type\": "
         "\"object\", \"properties\": {\"a\": {\"type\": \"null\"}}, \"required\": [\"a\"]}, "
         "{\"type\": "
         "\"object\", \"properties\": {\"a\": {\"type\": \"boolean\"}}, \"required\": [\"a\"]}]}",
         {"12", "\"x\"", "{\"a\": null}", "{\"a\": true}"},
         {"1.5", "\"xy\"", "{}", "{\"a\": 1}"}},
        {"{\"$defs\": {\"node\": {\"type\": \"object\", \"properties\": {\"v\": {\"type\": "
         "\"integer\"}, "
         "\"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/node\"}, {\"type\": \"null\"}]}}, "
         "\"required\": "
         "[\"v\", \"next\"]}}, \"$ref\": \"#/$defs/node\"}",
         {"{\"v\": 1, \"next\": null}", "{\"v\": 1, \"next\": {\"v\": 2, \"next\": null}}"},
         {"{\"v\": 1}", "{\"v\": 1, \"next\": {}}", "null"}},
        {"{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}",
         {"[]", "[[], [[]]]"},
         {"[1]", "[[]"}},
        {"{\"definitions\": {\"a/b~c\": {\"const\": 7}}, \"$ref\": \"#/definitions/a~1b~0c\"}",
         {"7"},
         {"8"}},
    };

    (void)state;
    CHECK(list);
}

static void numbers_stay_between_their_bounds(void **state)
{
    static const struct example list[] = {
        {"{\"type\": \"integer\", \"minimum\": 8, \"maximum\": 123}",
         {"8", "9", "10", "99", "100", "123"},
         {"7", "0", "124", "130", "1000", "-8", "08", "9.0"}},
        {"{\"type\": \"integer\", \"minimum\": -15, \"maximum\": 3}",
         {"-15", "-9", "-1", "0", "3"},
         {"-16", "4", "-0", "-20", "-100", "10"}},
        {"{\"type\": \"integer\", \"exclusiveMinimum\": 0}", {"1", "10", "123456"}, {"0", "-1"}},
        {"{\"type\": \"integer\", \"minimum\": 1.5, \"exclusiveMaximum\": 4}",
         {"2", "3"},
         {"1", "4"}},
        {"{\"type\": \"integer\", \"maximum\": -5}", {"-5", "-6", "-123"}, {"-4", "0", "5"}},
        {"{\"type\": \"number\", \"minimum\": 0.25, \"maximum\": 1.5}",
         {"0.25", "0.3", "0.251", "1", "1.0", "1.49", "1.5"},
         {"0", "0.2", "0.24999", "1.51", "1.6", "2", "-1", "1e0"}},
        {"{\"type\": \"number\", \"minimum\": -1, \"maximum\": 1}",
         {"-1", "-0.5", "0", "0.0", "1", "-1.0", "1.00"},
         {"-1.1", "1.01", "2", "-0", "-0.0"}},
        {"{\"type\": \"number\", \"exclusiveMinimum\": 0, \"exclusiveMaximum\": 1}",
         {"0.1", "0.001", "0.999"},
         {"0", "0.0", "1", "1.0"}},
        {"{\"minimum\": 1e3}", {"1000", "1000.5", "99999"}, {"999", "0"}},
    };

    (void)state;
    CHECK(list);
}

static void patterns_hold_for_the_text_behind_the_escapes(void **state)
{
    static const struct example list[] = {
        {"{\"type\": \"string\", \"pattern\": \"^[a-c]{2,3}x?$\"}",
         {"\"ab\"", "\"abc\"", "\"aax\"", "\"cccx\""},
         {"\"a\"", "\"abcd\"", "\"abxx\"", "\"x\"", "\" ab\""}},
        {"{\"type\": \"string\", \"pattern\": \"b+\"}",
         {"\"b\"", "\"abba\"", "\"\\nb\xc3\xa9\""},
         {"\"\"", "\"a\""}},
        {"{\"pattern\": \"^(foo|ba[rz])*$\"}", {"\"\"", "\"foobarbaz\""}, {"\"fo\"", "\"foob\""}},
        {"{\"pattern\": \"^\\\\d{4}-\\\\d\\\\d$\"}", {"\"2026-11\""}, {"\"202-11\"", "\"2026-1\""}},
        {"{\"pattern\": \"^[^\\\"\\\\\\\\]\\\"$\"}",
         {"\"a\\\"\"", "\"\\n\\\"\""},
         {"\"\\\"\\\"\""}},
        {"{\"pattern\": \"^\\\\u00e9.\\\\x41$\"}",
         {"\"\xc3\xa9zA\""},
         {"\"ezA\"", "\"\xc3\xa9\\nA\""}},
        {"{\"pattern\": \"^a*$\", \"minLength\": 2, \"maxLength\": 3}",
         {"\"aa\"", "\"aaa\""},
         {"\"a\"", "\"aaaa\"", "\"ab\""}},
        {"{\"pattern\": \"^(?:a|b)+?$|^$\"}", {"\"\"", "\"ab\""}, {"\"c\""}},
    };

    (void)state;
    CHECK(list);
}

/* Two tools: one without arguments, one with; in the form given. */
static struct grammar *call_grammar(const struct grammar_call_form *form, bool several)
{
    static const char text[] =
        "{\"type\": \"object\", \"properties\": {\"unit\": {\"enum\": [\"c\", "
        "\"f\"]}, \"now\": {\"type\": \"boolean\"}}, \"required\": [\"unit\"]}";
    struct err e = {0};
    json_t *schema = json_parse(text, strlen(text), &e);
    struct grammar_tool tools[] = {{"get_time", NULL}, {"get_weather", schema}};
    struct grammar *g = grammar_calls(form, tools, 2, several, &e);

    if (!g)
        fail_msg("%s (%s)", e.msg, e.detail);
    json_decref(schema);
    return g;
}

static void check_calls(const struct grammar_call_form *form, bool several, const char *const *good,
                        const char *const *bad)
{
    struct token_trie *trie = open_trie(MODELS "tiny-qwen3");
    struct grammar *g = call_grammar(form, several);

    for (; *good; good++)
        if (!fits(g, trie, *good))
            fail_msg("refused: %s", *good);
    for (; *bad; bad++)
        if (fits(g, trie, *bad))
            fail_msg("taken: %s", *bad);
    grammar_unref(g);
    token_trie_unref(trie);
}

static void calls_are_written_in_the_form_of_the_family(void **state)
{
    static const struct grammar_call_form tagged = {.open = "",
                                                    .close = "",
                                                    .before = "<t>{\"name\": \"",
                                                    .between = "\", \"arguments\": ",
                                                    .after = "}</t>",
                                                    .separator = "\n"};
    static const struct grammar_call_form python = {.open = "[",
                                                    .close = "]",
                                                    .before = "",
                                                    .between = "(",
                                                    .after = ")",
                                                    .separator = ", ",
                                                    .keywords = true};
    static const char *const good[] = {
        "<t>{\"name\": \"get_time\", \"arguments\": {}}</t>",
        "<t>{\"name\": \"get_weather\", \"arguments\": {\"unit\": \"f\", \"now\": true}}</t>",
        NULL};
    static const char *const bad[] = {"<t>{\"name\": \"get\", \"arguments\": {}}</t>",
                                      "<t>{\"name\": \"get_weather\", \"arguments\": {}}</t>",
                                      "<t>{\"name\": \"get_time\", \"arguments\": {\"a\": 1}}</t>",
                                      "", NULL};
    static const char *const two[] = {
        "<t>{\"name\": \"get_time\", \"arguments\": {}}</t>\n<t>{\"name\": "
        "\"get_time\", \"arguments\": {}}</t>",
        NULL};
    static const char *const good_python[] = {"[get_time()]", "[get_weather(unit=\"c\")]",
                                              "[get_weather(unit=\"c\", now=True), get_time()]",
                                              NULL};
    static const char *const bad_python[] = {"[]",
                                             "[get_weather()]",
                                             "[get_weather(unit=\"x\")]",
                                             "[get_weather(unit=\"c\",)]",
                                             "[get_time(), ]",
                                             "[get_weather(unit=\"c\", now=true)]",
                                             NULL};

    (void)state;
    check_calls(&tagged, false, good, bad);
    check_calls(&tagged, false, good, two);
    check_calls(&tagged, true, two, bad);
    check_calls(&python, true, good_python, bad_python);
}

static void what_is_not_understood_is_refused_with_its_place(void **state)
{
    static const char *const list[][3] = {
        {"{\"type\": \"nonsense\"}", ".type", "nonsense"},
        {"{\"properties\": {\"a\": {\"multipleOf\": 2}}}", ".properties.a.multipleOf",
         "multipleOf"},
        {"{\"anyOf\": [{\"type\": \"string\"}, {\"oneOf\": []}]}", ".anyOf[1].oneOf", "oneOf"},
        {"{\"$ref\": \"https://example.com/x\"}", ".$ref", "nowhere"},
        {"{\"$ref\": \"#/$defs/x\"}", ".$ref", "nowhere"},
        {"{\"$ref\": \"#\"}", "", "itself"},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": "
         "[\"a\"]}",
         "", "no value"},
        {"false", "", "no value"},
        {"7", "", "must be an object"},
        {"{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", ".maxLength", "below"},
        {"{\"type\": \"string\", \"minLength\": -1}", ".minLength", "whole number"},
        {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", ".maximum", "between"},
        {"{\"enum\": []}", "", "no value"},
        {"{\"type\": \"string\", \"enum\": [1]}", "", "no value"},
        {"{\"enum\": [1], \"minimum\": 0}", ".minimum", "beside"},
        {"{\"pattern\": \"(?=a)\"}", ".pattern", "not supported"},
        {"{\"pattern\": \"(a\"}", ".pattern", "without its"},
        {"{\"pattern\": \"\\\\1\"}", ".pattern", "not supported"},
        {"{\"pattern\": \"^a{5}$\", \"maxLength\": 3}", "", "no value"},
        {"{\"properties\": {\"a\": true}, \"additionalProperties\": false, \"required\": [\"b\"]}",
         ".required", "is no property"},
        {"{\"type\": \"array\", \"minItems\": 2, \"maxItems\": 1}", ".maxItems", "below"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct err e = {0};
        json_t *schema = json_parse(list[i][0], strlen(list[i][0]), &e);
        struct grammar *g = grammar_schema(schema, &e);

        if (g)
            fail_msg("%s is taken", list[i][0]);
        assert_int_equal(e.code, ERR_ARG);
        if (strcmp(e.detail, list[i][1]) != 0 || !strstr(e.msg, list[i][2]))
            fail_msg("%s: \"%s\" at \"%s\"", list[i][0], e.msg, e.detail);
        json_decref(schema);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_types_take_their_values_only),
        cmocka_unit_test(members_come_in_order_and_optional_ones_may_be_left_out),
        cmocka_unit_test(other_names_come_where_they_may_and_never_repeat_a_known_one),
        cmocka_unit_test(arrays_have_their_number_of_items),
        cmocka_unit_test(strings_have_their_length_in_characters),
        cmocka_unit_test(listed_values_are_taken_as_they_are),
        cmocka_unit_test(alternatives_and_references_may_nest),
        cmocka_unit_test(numbers_stay_between_their_bounds),
        cmocka_unit_test(patterns_hold_for_the_text_behind_the_escapes),
        cmocka_unit_test(calls_are_written_in_the_form_of_the_family),
        cmocka_unit_test(what_is_not_understood_is_refused_with_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
