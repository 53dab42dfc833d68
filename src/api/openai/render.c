#include "api/openai/render.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/ids.h"
#include "text/tokenizer.h"

void make_completion_id(const char *prefix, char out[COMPLETION_ID_MAX])
{
    new_id(prefix, out, COMPLETION_ID_MAX);
}

const char *finish_word(enum chat_finish f)
{
    static const char *const words[] = {[CHAT_STOP] = "stop",
                                        [CHAT_LENGTH] = "length",
                                        [CHAT_TOOL_CALLS] = "tool_calls",
                                        [CHAT_TIMEOUT] = "timeout"};

    return words[f];
}

json_t *tool_call_object(const char *name, const char *arguments)
{
    char id[COMPLETION_ID_MAX];

    make_completion_id("call_", id);
    return json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function", "function", "name",
                     name, "arguments", arguments);
}

json_t *usage_object(const struct chat_usage *u)
{
    return json_pack("{s:i, s:i, s:i, s:{s:i}}", "prompt_tokens", u->prompt_tokens,
                     "completion_tokens", u->completion_tokens, "total_tokens",
                     u->prompt_tokens + u->completion_tokens, "prompt_tokens_details",
                     "cached_tokens", u->cached_tokens);
}

/* JSON has no infinity; the value of impossible tokens is the one that clients know. */
static json_t *logprob_value(bool has, float logprob)
{
    if (!has)
        return json_null();
    return json_real(isfinite(logprob) ? (double)logprob : -9999.0);
}

/* The token's text, broken characters as U+FFFD; or its number. */
static json_t *token_text(const struct tokenizer *t, int32_t id, bool as_id)
{
    struct buf text = {0};
    json_t *v;

    if (as_id)
        return json_sprintf("token_id:%d", (int)id);
    tokenizer_decode(t, &id, 1, 0, &text);
    v = json_stringn(buf_str(&text), text.len);
    buf_release(&text);
    return v;
}

static json_t *token_bytes(const struct tokenizer *t, int32_t id)
{
    const char *bytes;
    size_t n;
    json_t *list = json_array();

    if (tokenizer_token_bytes(t, id, &bytes, &n))
        for (size_t i = 0; i < n; i++)
            json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return list;
}

static json_t *chat_entry(const struct tokenizer *t, int32_t id, bool has, float logprob,
                          bool as_ids)
{
    return json_pack("{s:o, s:o, s:o}", "token", token_text(t, id, as_ids), "logprob",
                     logprob_value(has, logprob), "bytes", token_bytes(t, id));
}

json_t *chat_logprobs(const struct tokenizer *t, const struct chat_token *tokens, int n,
                      bool as_ids)
{
    json_t *content = json_array();

    for (int i = 0; i < n; i++) {
        const struct chat_token *tok = &tokens[i];
        json_t *top = json_array();
        json_t *entry = chat_entry(t, tok->id, tok->has_logprob, tok->logprob, as_ids);

        for (int k = 0; k < tok->n_top; k++)
            json_array_append_new(
                top, chat_entry(t, tok->top[k].token, true, tok->top[k].logprob, as_ids));
        json_object_set_new(entry, "top_logprobs", top);
        json_array_append_new(content, entry);
    }
    return json_pack("{s:o}", "content", content);
}

static bool is_among(const struct chat_token *tok, int32_t id)
{
    for (int k = 0; k < tok->n_top; k++)
        if (tok->top[k].token == id)
            return true;
    return false;
}

/* Two tokens may have one text (parts of characters do); the later one goes by its number. */
static void add_top(json_t *top, const struct tokenizer *t, int32_t id, float logprob, bool as_id)
{
    json_t *key = token_text(t, id, as_id);

    if (json_object_get(top, json_string_value(key))) {
        json_decref(key);
        key = token_text(t, id, true);
    }
    json_object_set_new(top, json_string_value(key), logprob_value(true, logprob));
    json_decref(key);
}

/* {text: logprob}: the likeliest ones and the token itself. */
static json_t *top_object(const struct tokenizer *t, const struct chat_token *tok, bool as_ids)
{
    json_t *top;

    if (!tok->has_logprob)
        return json_null();
    top = json_object();
    for (int k = 0; k < tok->n_top; k++)
        add_top(top, t, tok->top[k].token, tok->top[k].logprob, as_ids);
    if (!is_among(tok, tok->id))
        add_top(top, t, tok->id, tok->logprob, as_ids);
    return top;
}

json_t *completion_logprobs(const struct tokenizer *t, const struct chat_token *tokens, int n,
                            bool as_ids)
{
    json_t *texts = json_array(), *values = json_array(), *tops = json_array();
    json_t *offsets = json_array();

    for (int i = 0; i < n; i++) {
        json_array_append_new(texts, token_text(t, tokens[i].id, as_ids));
        json_array_append_new(values, logprob_value(tokens[i].has_logprob, tokens[i].logprob));
        json_array_append_new(tops, top_object(t, &tokens[i], as_ids));
        json_array_append_new(offsets, json_integer(tokens[i].text_offset));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", texts, "token_logprobs", values,
                     "top_logprobs", tops, "text_offset", offsets);
}
