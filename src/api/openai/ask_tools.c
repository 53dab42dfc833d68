/* api/openai/ask_tools.c - tools, tool_choice, parallel_tool_calls, and the calls that earlier
 * messages made. */
#include <string.h>

#include "api/openai/ask.h"
#include "base/err.h"
#include "base/json.h"
#include "generate/grammar.h"

enum { TOOLS_MAX = 128, CALLS_MAX = 128 };

static const char *function_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static bool is_function(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));

    return type && strcmp(type, "function") == 0;
}

/* ---- tools ---- */

static bool is_known(const json_t *tools, const char *name, size_t before)
{
    for (size_t i = 0; i < before; i++) {
        const char *one = function_name(json_array_get(tools, i));

        if (one && strcmp(one, name) == 0)
            return true;
    }
    return false;
}

/* false: the finding has been noted. */
static bool check_tool(struct ask *a, const json_t *tools, size_t i)
{
    const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters");
    const char *name = function_name(tool), *where;

    where = ask_path(a, "tools[%zu].function%s", i, ask_is_name(name) ? ".parameters" : ".name");
    if (!json_is_object(tool) || !is_function(tool) || !json_is_object(function)) {
        where = ask_path(a, "tools[%zu]", i);
        problem(a, REFUSAL_V1_INVALID_PARAMETER, where,
                "%s must be {\"type\": \"function\", \"function\": {\"name\", ...}}.", where);
        return false;
    }
    if (!ask_is_name(name)) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, where,
                "%s must be 1 to %d of letters, digits, _ and -.", where, ASK_NAME_MAX);
        return false;
    }
    if (is_known(tools, name, i)) {
        where = ask_path(a, "tools[%zu].function.name", i);
        problem(a, REFUSAL_V1_INVALID_PARAMETER, where, "%s: there are two tools %.64s.", where,
                name);
        return false;
    }
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters)) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, where, "%s must be a JSON schema.", where);
        return false;
    }
    ask_ignore_others(a, ask_path(a, "tools[%zu]", i), tool, "type function");
    ask_ignore_others(a, ask_path(a, "tools[%zu].function", i), function,
                      "name description parameters strict");
    return true;
}

static void parse_list(struct ask *a)
{
    const json_t *tools = field(a, "tools");
    size_t n = json_array_size(tools);

    if (!tools)
        return;
    if (!json_is_array(tools) || n > TOOLS_MAX) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "tools", "tools must be a list of at most %d.",
                TOOLS_MAX);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (!check_tool(a, tools, i))
            return;
    if (n > 0)
        a->job.tools.list = tools;
}

/* ---- tool_choice ---- */

static void take_named(struct ask *a, const json_t *choice)
{
    const char *name = function_name(choice);
    const json_t *tools = a->job.tools.list;

    if (!is_function(choice) || !name) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "tool_choice",
                "tool_choice must be none, auto, required or {\"type\": \"function\", "
                "\"function\": {\"name\"}}.");
        return;
    }
    if (!is_known(tools, name, json_array_size(tools))) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "tool_choice",
                "tool_choice names %.64s, which is none of the tools.", name);
        return;
    }
    ask_ignore_others(a, "tool_choice", choice, "type function");
    ask_ignore_others(a, "tool_choice.function", json_object_get(choice, "function"), "name");
    a->job.tools.choice = TOOL_CHOICE_REQUIRED;
    a->job.tools.named = name;
}

static void parse_choice(struct ask *a)
{
    const json_t *choice = field(a, "tool_choice");
    const char *word = json_string_value(choice);

    if (!choice || (word && strcmp(word, "auto") == 0))
        return;
    if (word && strcmp(word, "none") == 0)
        a->job.tools.choice = TOOL_CHOICE_NONE;
    else if (word && strcmp(word, "required") == 0)
        a->job.tools.choice = TOOL_CHOICE_REQUIRED;
    else
        take_named(a, choice);
    if (a->job.tools.choice == TOOL_CHOICE_REQUIRED && !a->job.tools.list)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "tool_choice",
                "tool_choice asks for a call, and there are no tools.");
}

static void parse_parallel(struct ask *a)
{
    const json_t *v = field(a, "parallel_tool_calls");

    if (v && !json_is_boolean(v))
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "parallel_tool_calls",
                "parallel_tool_calls must be true or false.");
    a->job.tools.one_call = json_is_false(v);
}

/* A forced call is decoded under the schemas of its tools: what they may not say is found before
 * any model is loaded. */
static void check_schemas(struct ask *a)
{
    const struct chat_tools *t = &a->job.tools;

    if (t->choice != TOOL_CHOICE_REQUIRED)
        return;
    for (size_t i = 0; i < json_array_size(t->list); i++) {
        const json_t *tool = json_array_get(t->list, i);
        const json_t *schema = json_object_get(json_object_get(tool, "function"), "parameters");
        struct err e = {0};
        struct grammar *g;
        const char *where;

        if (!json_is_object(schema) || (t->named && strcmp(t->named, function_name(tool)) != 0))
            continue;
        g = grammar_schema(schema, &e);
        where = ask_path(a, "tools[%zu].function.parameters%s", i, g ? "" : e.detail);
        if (!g)
            problem(a, REFUSAL_V1_RESPONSE_FORMAT_UNSUPPORTED, where, "%s: %s.", where, e.msg);
        grammar_unref(g);
    }
    if (a->job.allowed)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "allowed_token_ids",
                "allowed_token_ids does not go with a forced call.");
}

/* Free calls are read, not decoded under the schema: what asks for that is reported. */
static void report_strict(struct ask *a)
{
    const struct chat_tools *t = &a->job.tools;

    for (size_t i = 0; t->choice == TOOL_CHOICE_AUTO && i < json_array_size(t->list); i++) {
        const json_t *function = json_object_get(json_array_get(t->list, i), "function");

        if (json_is_true(json_object_get(function, "strict")))
            ask_ignore(a, "tools[%zu].function.strict", i);
    }
}

void ask_tools(struct ask *a)
{
    parse_list(a);
    parse_choice(a);
    parse_parallel(a);
    report_strict(a);
    if (a->problems.n == 0)
        check_schemas(a);
}

/* ---- calls of earlier messages ---- */

/* Templates print the arguments as an object; clients send its text. NULL: it is no object. */
static json_t *arguments_object(const json_t *v)
{
    struct err ignored = {0};
    json_t *parsed;

    if (json_is_object(v))
        return json_incref((json_t *)(uintptr_t)v);
    if (!json_is_string(v))
        return NULL;
    if (json_string_length(v) == 0)
        return json_object();
    parsed = json_parse(json_string_value(v), json_string_length(v), &ignored);
    if (json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return NULL;
}

/* One call as a template takes it, or NULL. */
static json_t *read_call(struct ask *a, const char *where, const json_t *call)
{
    const json_t *function = json_object_get(call, "function");
    const char *name = function_name(call);
    json_t *arguments = arguments_object(json_object_get(function, "arguments"));
    json_t *out = NULL;

    if (!is_function(call) || !name)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, where,
                "%s must be {\"id\", \"type\": \"function\", \"function\": {\"name\", "
                "\"arguments\"}}.",
                where);
    else if (!arguments)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, ask_path(a, "%s.function.arguments", where),
                "%s.function.arguments must be the text of a JSON object.", where);
    else
        out = json_pack("{s:O*, s:s, s:{s:s, s:O}}", "id", json_object_get(call, "id"), "type",
                        "function", "function", "name", name, "arguments", arguments);
    ask_ignore_others(a, where, call, "id type function");
    ask_ignore_others(a, ask_path(a, "%s.function", where), function, "name arguments");
    json_decref(arguments);
    return out;
}

json_t *ask_message_calls(struct ask *a, const char *path, const json_t *list)
{
    json_t *out = json_array();
    const char *where = ask_path(a, "%s.tool_calls", path);

    if (!json_is_array(list) || json_array_size(list) > CALLS_MAX)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, where, "%s must be a list of at most %d calls.",
                where, CALLS_MAX);
    for (size_t i = 0; i < json_array_size(list) && i < CALLS_MAX; i++) {
        json_t *call = read_call(a, ask_path(a, "%s[%zu]", where, i), json_array_get(list, i));

        if (call)
            json_array_append_new(out, call);
    }
    if (json_array_size(out) > 0 && !a->job.calls_at)
        a->job.calls_at = where;
    return out;
}
