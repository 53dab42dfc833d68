/* api/openai/ask_format.c - response_format: {"type": "text"}, {"type": "json_object"} or
 * {"type": "json_schema", "json_schema": {"name", "schema", "strict"?, "description"?}}.
 *
 * A schema is compiled here, before any model is loaded: what is not understood is refused by its
 * place in the request. */
#include <string.h>

#include "api/openai/ask.h"
#include "base/err.h"
#include "generate/grammar.h"

#define SCHEMA_FIELD "response_format.json_schema.schema"

static void refuse_format(struct ask *a, const char *param, const char *what)
{
    problem(a, REFUSAL_V1_INVALID_PARAMETER, param, "%s %s.", param, what);
}

static void take_grammar(struct ask *a, struct grammar *g, const struct err *e)
{
    const char *where;

    a->grammar = g;
    a->job.grammar = g;
    a->no_memory |= !g && e->code == ERR_NOMEM;
    if (g || a->no_memory)
        return;
    where = ask_path(a, SCHEMA_FIELD "%s", e->code == ERR_ARG ? e->detail : "");
    problem(a, REFUSAL_V1_RESPONSE_FORMAT_UNSUPPORTED, where, "%s: %s.", where, e->msg);
}

static void parse_schema(struct ask *a, const json_t *format)
{
    const json_t *spec = json_object_get(format, "json_schema");
    const json_t *schema = json_object_get(spec, "schema");
    struct err e = {0};

    if (!json_is_object(spec)) {
        refuse_format(a, "response_format.json_schema", "must be {\"name\", \"schema\"}");
        return;
    }
    if (!ask_is_name(json_string_value(json_object_get(spec, "name"))))
        refuse_format(a, "response_format.json_schema.name",
                      "must be 1 to 64 of letters, digits, _ and -");
    ask_ignore_others(a, "response_format.json_schema", spec, "name schema strict description");
    if (schema)
        take_grammar(a, grammar_schema(schema, &e), &e);
    else
        refuse_format(a, SCHEMA_FIELD, "is missing");
}

/* A grammar and these fields decide about the same tokens. */
static void check_company(struct ask *a)
{
    if (a->job.allowed)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "allowed_token_ids",
                "allowed_token_ids does not go with a response_format or a forced call.");
}

void ask_response_format(struct ask *a)
{
    const json_t *format = field(a, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    struct err e = {0};

    ask_ignore_others(a, "response_format", format,
                      type && strcmp(type, "json_schema") == 0 ? "type json_schema" : "type");
    if (!format || (type && strcmp(type, "text") == 0))
        return;
    if (type && strcmp(type, "json_object") == 0)
        take_grammar(a, grammar_json_object(&e), &e);
    else if (type && strcmp(type, "json_schema") == 0)
        parse_schema(a, format);
    else
        problem(a, REFUSAL_V1_RESPONSE_FORMAT_UNSUPPORTED, "response_format",
                "response_format must have the type text, json_object or json_schema.");
    check_company(a);
    if (a->job.tools.list && a->job.tools.choice != TOOL_CHOICE_NONE)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "response_format",
                "response_format does not go with tools that may be called; send one of them, or "
                "tool_choice none.");
}
