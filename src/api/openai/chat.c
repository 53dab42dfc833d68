/* api/openai/chat.c
 * POST /v1/chat/completions  {"model", "messages", ...}
 * 200 chat.completion, or text/event-stream with "stream": true; refusals: docs/api/errors.md.
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
        a->logprobs ? chat_logprobs(t, c->tokens, c->n_tokens, a->token_ids) : json_null();

    return json_pack("{s:i, s:{s:s, s:s%}, s:s, s:o}", "index", index, "message", "role",
                     "assistant", "content", buf_str(&c->text), c->text.len, "finish_reason",
                     finish_word(c->finish), "logprobs", logprobs);
}

static json_t *opening(int index)
{
    return json_pack("{s:i, s:{s:s}}", "index", index, "delta", "role", "assistant");
}

static json_t *delta(const struct ask *a, const struct tokenizer *t, int index, const char *text,
                     size_t len, const struct chat_token *tokens, int n_tokens)
{
    json_t *entry;

    if (!text)
        return json_pack("{s:i, s:{}}", "index", index, "delta");
    entry = json_pack("{s:i, s:{s:s%}}", "index", index, "delta", "content", text, len);
    if (entry && a->logprobs && n_tokens)
        json_object_set_new(entry, "logprobs", chat_logprobs(t, tokens, n_tokens, a->token_ids));
    return entry;
}

static const struct answer_form form = {
    .parse = ask_parse_chat,
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .choice = whole_choice,
    .opening = opening,
    .delta = delta,
};

void openai_chat(struct api_call *call)
{
    answer_call(call, &form);
}
