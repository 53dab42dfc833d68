/* api/openai/fields.c - which fields the routes know, and what each may hold. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api/openai/ask.h"
#include "base/json.h"

enum { BOTH = ON_CHAT | ON_COMPLETIONS };

const json_t *field(const struct ask *a, const char *name)
{
    const json_t *v = json_object_get(a->body, name);

    return json_is_null(v) ? NULL : v;
}

/* ---- fields with a plain value ---- */

enum value_kind { AS_FLOAT, AS_INT, AS_BOOL };

struct value_field {
    const char *name;
    int where;
    enum value_kind kind;
    double least, most;
    size_t offset; /* in struct ask */
};

#define JOB(f)   offsetof(struct ask, job.f)
#define EMBED(f) offsetof(struct ask, embed.f)
#define ASK(f)   offsetof(struct ask, f)

static const struct value_field values[] = {
    {"temperature", BOTH, AS_FLOAT, 0, 2, JOB(temperature)},
    {"top_p", BOTH, AS_FLOAT, 0, 1, JOB(top_p)},
    {"min_p", BOTH, AS_FLOAT, 0, 1, JOB(min_p)},
    {"frequency_penalty", BOTH, AS_FLOAT, -2, 2, JOB(frequency_penalty)},
    {"presence_penalty", BOTH, AS_FLOAT, -2, 2, JOB(presence_penalty)},
    {"repetition_penalty", BOTH, AS_FLOAT, 0.01, 10, JOB(repetition_penalty)},
    {"top_k", BOTH, AS_INT, -1, 9007199254740992.0, JOB(top_k)},
    {"n", BOTH, AS_INT, 1, CHAT_N_MAX, JOB(n)},
    {"best_of", ON_COMPLETIONS, AS_INT, 1, CHAT_N_MAX, JOB(best_of)},
    {"stream", BOTH, AS_BOOL, 0, 0, ASK(stream)},
    {"logprobs", ON_CHAT, AS_BOOL, 0, 0, ASK(logprobs)},
    {"logprobs", ON_COMPLETIONS, AS_INT, 0, CHAT_TOP_MAX, JOB(top_logprobs)},
    {"top_logprobs", ON_CHAT, AS_INT, 0, CHAT_TOP_MAX, JOB(top_logprobs)},
    {"return_tokens_as_token_ids", BOTH, AS_BOOL, 0, 0, ASK(token_ids)},
    {"echo", ON_COMPLETIONS, AS_BOOL, 0, 0, JOB(echo)},
    {"add_special_tokens", ON_COMPLETIONS, AS_BOOL, 0, 0, JOB(add_special)},
    {"normalize", ON_EMBEDDINGS, AS_BOOL, 0, 0, EMBED(normalize)},
    {"dimensions", ON_EMBEDDINGS, AS_INT, 1, INT32_MAX, EMBED(dimensions)},
};

static bool in_range(const struct value_field *f, double v)
{
    return isfinite(v) && v >= f->least && v <= f->most;
}

static void take_float(struct ask *a, const struct value_field *f, const json_t *v)
{
    if (!json_is_number(v) || !in_range(f, json_number_value(v)))
        problem(a, REFUSAL_V1_INVALID_PARAMETER, f->name, "%s must be a number from %g to %g.",
                f->name, f->least, f->most);
    else
        *(float *)(void *)((char *)a + f->offset) = (float)json_number_value(v);
}

static void take_int(struct ask *a, const struct value_field *f, const json_t *v)
{
    int64_t whole;

    if (!json_is_number(v) || !json_is_whole(v, &whole) || !in_range(f, (double)whole))
        problem(a, REFUSAL_V1_INVALID_PARAMETER, f->name,
                "%s must be a whole number from %.0f to %.0f.", f->name, f->least, f->most);
    else
        *(int *)(void *)((char *)a + f->offset) = whole > INT32_MAX ? INT32_MAX : (int)whole;
}

static void take_bool(struct ask *a, const struct value_field *f, const json_t *v)
{
    if (!json_is_boolean(v))
        problem(a, REFUSAL_V1_INVALID_PARAMETER, f->name, "%s must be true or false.", f->name);
    else
        *((bool *)a + f->offset) = json_is_true(v);
}

static void take_value(struct ask *a, const struct value_field *f, const json_t *v)
{
    static void (*const take[])(struct ask *, const struct value_field *, const json_t *) = {
        [AS_FLOAT] = take_float, [AS_INT] = take_int, [AS_BOOL] = take_bool};

    take[f->kind](a, f, v);
}

/* ---- fields that change the answer in ways that are not offered ---- */

static bool never(const json_t *v)
{
    (void)v;
    return false;
}

static bool is_empty(const json_t *v)
{
    return (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0);
}

static bool is_text_format(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));

    return type && strcmp(type, "text") == 0;
}

static bool is_only_text(const json_t *v)
{
    const char *one = json_string_value(json_array_get(v, 0));

    return json_is_array(v) && (json_array_size(v) == 0 ||
                                (json_array_size(v) == 1 && one && strcmp(one, "text") == 0));
}

static bool is_no_choice(const json_t *v)
{
    const char *word = json_string_value(v);

    return word && (strcmp(word, "none") == 0 || strcmp(word, "auto") == 0);
}

static bool is_mean(const json_t *v)
{
    return json_is_string(v) && strcmp(json_string_value(v), "mean") == 0;
}

static bool is_false(const json_t *v)
{
    return json_is_false(v);
}

static bool is_one(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) == 1;
}

/* Refused by name, unless the value asks for nothing. Null never does. */
static const struct refused_field {
    const char *name;
    int where;
    bool (*neutral)(const json_t *v);
} refused[] = {
    {"tools", ON_COMPLETIONS, is_empty},
    {"tool_choice", ON_COMPLETIONS, is_no_choice},
    {"functions", BOTH, is_empty},
    {"function_call", BOTH, is_no_choice},
    {"response_format", ON_COMPLETIONS, is_text_format},
    {"suffix", ON_COMPLETIONS, is_empty},
    {"audio", BOTH, never},
    {"modalities", BOTH, is_only_text},
    {"top_logprobs", ON_COMPLETIONS, never},
    {"dimensions", BOTH, never},
    {"pooling", BOTH, is_mean},
    {"normalize", BOTH, is_false},
    {"profile", BOTH, never},
    {"steering_intensity", BOTH, never},
    {"steering", BOTH, never},
    {"return_sae_activations", BOTH, is_false},
    /* nothing is generated */
    {"seed", ON_EMBEDDINGS, never},
    {"n", ON_EMBEDDINGS, is_one},
    {"max_tokens", ON_EMBEDDINGS, never},
    {"max_completion_tokens", ON_EMBEDDINGS, never},
    {"logprobs", ON_EMBEDDINGS, is_false},
    {"top_logprobs", ON_EMBEDDINGS, never},
    {"allowed_token_ids", ON_EMBEDDINGS, is_empty},
    {"logit_bias", ON_EMBEDDINGS, is_empty},
    {"stream", ON_EMBEDDINGS, is_false},
    {"tools", ON_EMBEDDINGS, is_empty},
    {"tool_choice", ON_EMBEDDINGS, is_no_choice},
    {"response_format", ON_EMBEDDINGS, is_text_format},
    {"profile", ON_EMBEDDINGS, never},
    {"steering_intensity", ON_EMBEDDINGS, never},
    {"steering", ON_EMBEDDINGS, never},
    {"return_sae_activations", ON_EMBEDDINGS, is_false},
};

/* Read by the code of the routes. */
static const struct {
    const char *name;
    int where;
} others[] = {
    {"model", BOTH | ON_EMBEDDINGS},
    {"messages", ON_CHAT},
    {"extra_messages", ON_CHAT},
    {"chat_template_kwargs", ON_CHAT},
    {"tools", ON_CHAT},
    {"tool_choice", ON_CHAT},
    {"parallel_tool_calls", ON_CHAT},
    {"response_format", ON_CHAT},
    {"prompt", ON_COMPLETIONS},
    {"max_tokens", BOTH},
    {"max_completion_tokens", BOTH},
    {"stop", BOTH},
    {"stop_token_ids", BOTH},
    {"seed", BOTH},
    {"logit_bias", BOTH},
    {"allowed_token_ids", BOTH},
    {"stream_options", BOTH},
    {"input", ON_EMBEDDINGS},
    {"encoding_format", ON_EMBEDDINGS},
    {"pooling", ON_EMBEDDINGS},
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

/* What asks for no log-probabilities on the other routes asks for none where their number stands.
 */
static bool asks_for_none(const struct value_field *f, const json_t *v)
{
    return json_is_null(v) ||
           (json_is_false(v) && f->kind == AS_INT && strcmp(f->name, "logprobs") == 0);
}

/* true: the name is known on this route. */
static bool check_one(struct ask *a, enum endpoint where, const char *name, const json_t *v)
{
    for (size_t i = 0; i < COUNT(values); i++)
        if ((values[i].where & (int)where) && strcmp(values[i].name, name) == 0) {
            if (!asks_for_none(&values[i], v))
                take_value(a, &values[i], v);
            return true;
        }
    for (size_t i = 0; i < COUNT(refused); i++)
        if ((refused[i].where & (int)where) && strcmp(refused[i].name, name) == 0) {
            if (!json_is_null(v) && !refused[i].neutral(v))
                problem(a, REFUSAL_V1_FIELD_NOT_HONOURED, name,
                        "%s cannot be honoured by this server; leave it out.", name);
            return true;
        }
    for (size_t i = 0; i < COUNT(others); i++)
        if ((others[i].where & (int)where) && strcmp(others[i].name, name) == 0)
            return true;
    return false;
}

void fields_check(struct ask *a, enum endpoint where)
{
    const char *name;
    json_t *v;

    json_object_foreach (a->body, name, v)
        if (!check_one(a, where, name, v) && !json_is_null(v))
            ask_ignore(a, "%s", name);
}

void parse_token_ids(struct ask *a, const char *name, int most, const int32_t **ids, int *n)
{
    const json_t *list = field(a, name);
    size_t count = json_array_size(list);
    int32_t *out;
    int64_t id;

    if (!list)
        return;
    if (!json_is_array(list) || count < 1 || count > (size_t)most) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, name, "%s must be a list of 1 to %d token ids.",
                name, most);
        return;
    }
    out = arena_alloc(&a->arena, count * sizeof *out);
    for (size_t i = 0; out && i < count; i++) {
        const json_t *v = json_array_get(list, i);

        if (!json_is_integer(v) || !json_is_whole(v, &id) || id < 0 || id > INT32_MAX) {
            problem(a, REFUSAL_V1_INVALID_PARAMETER, name, "%s[%zu] is no token id.", name, i);
            return;
        }
        out[i] = (int32_t)id;
    }
    *ids = out;
    *n = out ? (int)count : 0;
}

void fields_each(enum endpoint where, field_fn *fn, void *arg)
{
    static const char *const types[] = {
        [AS_FLOAT] = "number", [AS_INT] = "integer", [AS_BOOL] = "boolean"};

    for (size_t i = 0; i < COUNT(values); i++) {
        const struct value_field *f = &values[i];
        struct field_facts facts = {f->name, types[f->kind], f->least, f->most};

        if (f->where & (int)where)
            fn(arg, &facts);
    }
    for (size_t i = 0; i < COUNT(others); i++)
        if (others[i].where & (int)where)
            fn(arg, &(struct field_facts){.name = others[i].name});
}
