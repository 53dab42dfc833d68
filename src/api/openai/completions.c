/* api/openai/completions.c
 * POST /v1/completions  {"model", "prompt", ...}
 * 200 text_completion, or text/event-stream with "stream": true; refusals: docs/api/errors.md.
 * Fields: api/openai/fields.c. What generating means: service/chat.c. */
#include "api/openai/answer.h"
#include "api/openai/ask.h"
#include "api/openai/render.h"
#include "api/openai/routes.h"
#include "service/chat_collect.h"

static json_t *whole_choice(const struct ask *a, const struct tokenizer *t, int index,
                            const struct collected_choice *c)
{
    json_t *logprobs =
        a->logprobs ? completion_logprobs(t, c->tokens, c->n_tokens, a->token_ids) : json_null();

    return json_pack("{s:i, s:s%, s:s, s:o}", "index", index, "text", buf_str(&c->text),
                     c->text.len, "finish_reason", finish_word(c->finish), "logprobs", logprobs);
}

static json_t *no_opening(int index)
{
    (void)index;
    return NULL;
}

static json_t *delta(const struct ask *a, const struct tokenizer *t, int index, const char *text,
                     size_t len, const struct chat_token *tokens, int n_tokens)
{
    json_t *entry = json_pack("{s:i, s:s%}", "index", index, "text", text ? text : "", len);

    if (entry && a->logprobs && n_tokens)
        json_object_set_new(entry, "logprobs",
                            completion_logprobs(t, tokens, n_tokens, a->token_ids));
    return entry;
}

static const struct answer_form form = {
    .parse = ask_parse_completion,
    .id_prefix = "cmpl-",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .choice = whole_choice,
    .opening = no_opening,
    .delta = delta,
};

void openai_completions(struct api_call *call)
{
    answer_call(call, &form);
}
