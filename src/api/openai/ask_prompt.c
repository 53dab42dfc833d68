/* api/openai/ask_prompt.c - texts and token ids: the prompt of a completion, the input of an
 * embedding. */
#include <stdint.h>

#include "api/openai/ask.h"
#include "base/json.h"

static void refuse_prompt(struct ask *a, const struct prompt_field *f, const char *why)
{
    problem(a, REFUSAL_V1_INVALID_PARAMETER, f->name,
            "%s must be a text, a list of token ids, or a list of either: %s.", f->name, why);
}

static bool is_ids(const json_t *v)
{
    return json_is_array(v) && json_is_integer(json_array_get(v, 0));
}

static bool take_text(struct chat_prompt *p, const json_t *v)
{
    *p = (struct chat_prompt){.text = json_string_value(v), .len = json_string_length(v)};
    return json_is_string(v);
}

static bool take_ids(struct ask *a, struct chat_prompt *p, const json_t *v)
{
    size_t n = json_array_size(v);
    int32_t *ids = n ? arena_alloc(&a->arena, n * sizeof *ids) : NULL;

    if (!ids || n > INT32_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(v, i);
        json_int_t id = json_integer_value(one);

        if (!json_is_integer(one) || id < 0 || id > INT32_MAX)
            return false;
        ids[i] = (int32_t)id;
    }
    *p = (struct chat_prompt){.ids = ids, .n_ids = (int)n};
    return true;
}

static bool is_missing_text(const struct prompt_field *f, const struct chat_prompt *p)
{
    return f->needs_text && p->text && p->len == 0;
}

static int take_list(struct ask *a, const struct prompt_field *f, const json_t *list,
                     struct chat_prompt *out)
{
    size_t n = json_array_size(list);
    bool texts = json_is_string(json_array_get(list, 0));

    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(list, i);

        if (texts ? !take_text(&out[i], one) : !take_ids(a, &out[i], one)) {
            refuse_prompt(a, f, "an entry is neither, or of another kind than the first");
            return 0;
        }
        if (is_missing_text(f, &out[i])) {
            refuse_prompt(a, f, "an entry is empty");
            return 0;
        }
    }
    return (int)n;
}

static int take_single(struct ask *a, const struct prompt_field *f, const json_t *v,
                       struct chat_prompt *out)
{
    if (json_is_string(v) ? !take_text(out, v) : !take_ids(a, out, v)) {
        refuse_prompt(a, f, "a token id is not a whole number of at least 0");
        return 0;
    }
    if (is_missing_text(f, out)) {
        refuse_prompt(a, f, "it is empty");
        return 0;
    }
    return 1;
}

static const char *why_not(const struct prompt_field *f, const json_t *v)
{
    if (json_is_string(v) || is_ids(v))
        return NULL;
    if (!json_is_array(v))
        return "it is something else";
    if (json_array_size(v) == 0)
        return "the list is empty";
    return json_array_size(v) > (size_t)f->most ? "the list is too long" : NULL;
}

int parse_prompts(struct ask *a, const struct prompt_field *f, const struct chat_prompt **out)
{
    const json_t *v = field(a, f->name);
    bool single = json_is_string(v) || is_ids(v);
    struct chat_prompt *prompts;

    if (!v) {
        problem(a, REFUSAL_V1_INVALID_PARAMETER, f->name, "%s is missing.", f->name);
        return 0;
    }
    if (why_not(f, v)) {
        refuse_prompt(a, f, why_not(f, v));
        return 0;
    }
    prompts = arena_alloc(&a->arena, (single ? 1 : json_array_size(v)) * sizeof *prompts);
    *out = prompts;
    if (!prompts)
        return 0;
    return single ? take_single(a, f, v, prompts) : take_list(a, f, v, prompts);
}
