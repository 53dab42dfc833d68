/* api/openai/ask_completion.c - what is special to /v1/completions: prompts as text, ids, or lists
 * of them. */
#include <stdint.h>
#include <stdio.h>

#include "api/openai/ask.h"
#include "base/json.h"

static void refuse_prompt(struct ask *a, const char *why)
{
    problem(a, REFUSAL_V1_INVALID_PARAMETER, "prompt",
            "prompt must be a text, a list of token ids, or a list of either: %s.", why);
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

static void take_list(struct ask *a, const json_t *list)
{
    size_t n = json_array_size(list);
    bool texts = json_is_string(json_array_get(list, 0));
    struct chat_prompt *prompts;

    if (n == 0 || n > CHAT_CHOICES_MAX) {
        refuse_prompt(a, n ? "the list is too long" : "the list is empty");
        return;
    }
    prompts = arena_alloc(&a->arena, n * sizeof *prompts);
    for (size_t i = 0; prompts && i < n; i++) {
        const json_t *one = json_array_get(list, i);

        if (texts ? !take_text(&prompts[i], one) : !take_ids(a, &prompts[i], one)) {
            refuse_prompt(a, "an entry is neither, or of another kind than the first");
            return;
        }
    }
    a->job.prompts = prompts;
    a->job.n_prompts = prompts ? (int)n : 0;
}

static void take_single(struct ask *a, const json_t *v)
{
    struct chat_prompt *p = arena_alloc(&a->arena, sizeof *p);

    if (!p)
        return;
    if (json_is_string(v) ? !take_text(p, v) : !take_ids(a, p, v)) {
        refuse_prompt(a, "a token id is not a whole number of at least 0");
        return;
    }
    a->job.prompts = p;
    a->job.n_prompts = 1;
}

static void parse_prompt(struct ask *a)
{
    const json_t *v = field(a, "prompt");

    if (!v)
        problem(a, REFUSAL_V1_INVALID_PARAMETER, "prompt", "prompt is missing.");
    else if (json_is_string(v) || is_ids(v))
        take_single(a, v);
    else if (json_is_array(v))
        take_list(a, v);
    else
        refuse_prompt(a, "it is something else");
}

int ask_parse_completion(struct ask *a, struct refusal *r)
{
    ask_common(a, ON_COMPLETIONS);
    parse_prompt(a);
    a->logprobs = a->job.top_logprobs >= 0;
    if (a->job.best_of > a->job.n && !a->logprobs)
        a->job.top_logprobs = 0; /* the best is found by log-probability */
    return ask_finish(a, r);
}
