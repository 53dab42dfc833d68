/* api/openai/chat.c
 * POST /v1/chat/completions  {"model", "messages", ...}
 * 200 chat.completion, or text/event-stream with "stream": true; refusals: docs/api/errors.md.
 * Fields: api/openai/fields.c. What generating means: service/chat.c. */
#include "api/openai/answer.h"
#include "api/openai/ask.h"
#include "api/openai/render.h"
#include "api/openai/routes.h"
#include "service/chat_collect.h"

/* Text beside calls is rare: without any, the content is null. */
static json_t *whole_message(const struct collected_choice *c)
{
    json_t *content = c->n_calls > 0 && c->text.len == 0
                          ? json_null()
                          : json_stringn(buf_str(&c->text), c->text.len);
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content", content);
    json_t *calls = c->n_calls > 0 ? json_array() : NULL;

    for (int i = 0; i < c->n_calls; i++)
        json_array_append_new(calls, tool_call_object(c->calls[i].name, c->calls[i].arguments));
    if (calls)
        json_object_set_new(message, "tool_calls", calls);
    return message;
}

static json_t *whole_choice(const struct ask *a, const struct tokenizer *t, int index,
                            const struct collected_choice *c)
{
    json_t *logprobs =
        a->logprobs ? chat_logprobs(t, c->tokens, c->n_tokens, a->token_ids) : json_null();

    return json_pack("{s:i, s:o, s:s, s:o}", "index", index, "message", whole_message(c),
                     "finish_reason", finish_word(c->finish), "logprobs", logprobs);
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

/* A call comes in one piece. */
static json_t *call_delta(int index, int call, const char *name, const char *arguments)
{
    json_t *entry = tool_call_object(name, arguments);

    json_object_set_new(entry, "index", json_integer(call));
    return json_pack("{s:i, s:{s:[o]}}", "index", index, "delta", "tool_calls", entry);
}

static const struct answer_form form = {
    .parse = ask_parse_chat,
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .choice = whole_choice,
    .opening = opening,
    .delta = delta,
    .call_delta = call_delta,
};

void openai_chat(struct api_call *call)
{
    answer_call(call, &form);
}
