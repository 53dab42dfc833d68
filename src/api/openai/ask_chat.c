/* api/openai/ask_chat.c - what is special to /v1/chat/completions: messages and template variables.
 */
#include <stdio.h>
#include <string.h>

#include "api/openai/ask.h"
#include "base/err.h"
#include "base/json.h"

enum { CONVERSATIONS_MAX = 64 };

/* ---- one message ---- */

static bool is_role(const char *role)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};

    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role, roles[i]) == 0)
            return true;
    return false;
}

/* [{"type": "text", "text": ...}...] joined; NULL when the finding has been noted. */
static json_t *join_parts(struct ask *a, const char *path, const json_t *parts)
{
    struct buf text = {0};
    json_t *joined = NULL;

    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *piece = json_object_get(part, "text");
        const char *where;

        where = ask_path(a, "%s.content[%zu]", path, i);
        if (type && strcmp(type, "text") != 0) {
            problem(a, REFUSAL_V1_FIELD_NOT_HONOURED, where,
                    "%s: parts of type %.40s are not understood, only text.", where, type);
            goto done;
        }
        if (!type || !json_is_string(piece)) {
            problem(a, REFUSAL_V1_INVALID_PARAMETER, where,
                    "%s must be {\"type\": \"text\", \"text\": string}.", where);
            goto done;
        }
        ask_ignore_others(a, where, part, "type text");
        buf_add(&text, json_string_value(piece), json_string_length(piece));
    }
    joined = json_stringn(buf_str(&text), text.len);

done:
    buf_release(&text);
    return joined;
}

/* A message that makes calls may say nothing beside them; templates print that as no text. */
static bool only_calls(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");

    return (!content || json_is_null(content)) && role && strcmp(role, "assistant") == 0 &&
           json_array_size(json_object_get(message, "tool_calls")) > 0;
}

static json_t *read_content(struct ask *a, const char *path, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    const char *where;

    if (only_calls(message))
        return json_string("");
    if (json_is_string(content))
        return json_copy((json_t *)content);
    if (json_is_array(content) && json_array_size(content))
        return join_parts(a, path, content);
    where = ask_path(a, "%s.content", path);
    problem(a, REFUSAL_V1_INVALID_PARAMETER, where, "%s must be a string or a list of text parts.",
            where);
    return NULL;
}

/* The older form of calls. */
static void refuse_function_call(struct ask *a, const char *path, const json_t *v)
{
    const char *where;

    where = ask_path(a, "%s.function_call", path);
    if (!json_is_null(v))
        problem(a, REFUSAL_V1_FIELD_NOT_HONOURED, where,
                "%s cannot be honoured by this server; send tool_calls.", where);
}

static void take_calls(struct ask *a, const char *path, const json_t *v, json_t *out)
{
    json_t *calls = json_is_null(v) ? json_array() : ask_message_calls(a, path, v);

    if (json_array_size(calls) > 0)
        json_object_set(out, "tool_calls", calls);
    json_decref(calls);
}

/* Keys that templates know, passed on where they are strings: the name of a tool beside its result.
 */
static bool is_passed_on(const char *key, const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return strcmp(key, "reasoning_content") == 0 || strcmp(key, "tool_call_id") == 0 ||
           (strcmp(key, "name") == 0 && role && strcmp(role, "tool") == 0);
}

/* Keys beside role and content: passed on, refused, or reported. */
static void read_other_keys(struct ask *a, const char *path, const json_t *message, json_t *out)
{
    const char *key;
    json_t *v;

    json_object_foreach ((json_t *)message, key, v) {
        if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0)
            continue;
        if (strcmp(key, "tool_calls") == 0)
            take_calls(a, path, v, out);
        else if (strcmp(key, "function_call") == 0)
            refuse_function_call(a, path, v);
        else if (is_passed_on(key, message)) {
            if (json_is_string(v))
                json_object_set(out, key, v);
            else if (!json_is_null(v))
                problem(a, REFUSAL_V1_INVALID_PARAMETER, path, "%s.%s must be a string.", path,
                        key);
        } else if (!json_is_null(v)) {
            ask_ignore(a, "%s.%s", path, key);
        }
    }
}

/* The message as the template gets it, or NULL. */
static json_t *read_message(struct ask *a, const char *path, const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const char *where;
    json_t *content, *out;

    if (!json_is_object(message)) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, path, "%s must be an object.", path);
        return NULL;
    }
    if (!is_role(role)) {
        where = ask_path(a, "%s.role", path);
        problem(a, REFUSAL_V1_INVALID_PARAMETER, where,
                "%s must be system, developer, user, assistant, tool or function.", where);
        return NULL;
    }
    content = read_content(a, path, message);
    if (!content)
        return NULL;
    out = json_pack("{s:s, s:o}", "role", strcmp(role, "developer") == 0 ? "system" : role,
                    "content", content);
    if (out)
        read_other_keys(a, path, message, out);
    return out;
}

/* ---- conversations ---- */

/* A list of messages, owned by a->owned; NULL when something is wrong. */
static const json_t *read_conversation(struct ask *a, const char *path, const json_t *list)
{
    json_t *out = json_array();
    const char *where;

    json_array_append_new(a->owned, out);
    if (!json_is_array(list) || json_array_size(list) == 0) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, path, "%s must be a list of at least one message.",
                path);
        return NULL;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *message;

        where = ask_path(a, "%s[%zu]", path, i);
        message = read_message(a, where, json_array_get(list, i));
        if (!message)
            return NULL;
        json_array_append_new(out, message);
    }
    return out;
}

static void parse_conversations(struct ask *a)
{
    const json_t *extra = field(a, "extra_messages");
    size_t n_extra = json_array_size(extra);
    const json_t **list;
    const char *where;

    if (extra && (!json_is_array(extra) || n_extra >= CONVERSATIONS_MAX)) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "extra_messages",
                "extra_messages must be a list of fewer than %d conversations.", CONVERSATIONS_MAX);
        n_extra = 0;
    }
    if (n_extra && a->stream)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "extra_messages",
                "extra_messages cannot be streamed.");
    list = arena_alloc(&a->arena, (1 + n_extra) * sizeof(json_t *));
    if (!list)
        return;
    list[0] = read_conversation(a, "messages", json_object_get(a->body, "messages"));
    for (size_t i = 0; i < n_extra; i++) {
        where = ask_path(a, "extra_messages[%zu]", i);
        list[1 + i] = read_conversation(a, where, json_array_get(extra, i));
    }
    a->job.conversations = list;
    a->job.n_conversations = 1 + (int)n_extra;
}

/* ---- chat_template_kwargs: an object, its JSON text, or a list of objects ---- */

static json_t *kwargs_object(const json_t *v)
{
    struct err ignored = {0};
    json_t *parsed;

    if (json_is_object(v))
        return json_incref((json_t *)v);
    if (!json_is_string(v))
        return NULL;
    parsed = json_parse(json_string_value(v), json_string_length(v), &ignored);
    if (json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return NULL;
}

static void parse_kwargs(struct ask *a)
{
    const json_t *v = field(a, "chat_template_kwargs");
    json_t *merged = json_object();
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    json_array_append_new(a->owned, merged);
    for (size_t i = 0; v && i < n; i++) {
        json_t *one = kwargs_object(json_is_array(v) ? json_array_get(v, i) : v);

        if (!one) {
            problem(a, REFUSAL_V1_INVALID_PARAMETER, "chat_template_kwargs",
                    "chat_template_kwargs must be an object, its JSON text, or a list of objects.");
            return;
        }
        json_object_update(merged, one);
        json_decref(one);
    }
    if (json_object_size(merged))
        a->job.template_kwargs = merged;
}

int ask_parse_chat(struct ask *a, struct refusal *r)
{
    ask_common(a, ON_CHAT);
    parse_conversations(a);
    parse_kwargs(a);
    ask_tools(a);
    ask_response_format(a);
    if (a->job.top_logprobs >= 0 && !a->logprobs)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "top_logprobs",
                "top_logprobs needs \"logprobs\": true.");
    if (a->logprobs && a->job.top_logprobs < 0)
        a->job.top_logprobs = 0;
    return ask_finish(a, r);
}
