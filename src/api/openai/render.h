/* api/openai/render.h - pieces of the two answers: ids, tokens, usage, log-probabilities. All
 * results are owned. */
#ifndef API_OPENAI_RENDER_H
#define API_OPENAI_RENDER_H

#include <jansson.h>
#include <stdbool.h>

#include "service/chat.h"

struct tokenizer;

enum { COMPLETION_ID_MAX = 48 };

void make_completion_id(const char *prefix,
                        char out[COMPLETION_ID_MAX]); /* "cmpl-" + 24 hex digits */
const char *finish_word(enum chat_finish f);
json_t *usage_object(const struct chat_usage *u);
/* {"id", "type": "function", "function": {name, arguments}} with a new id. */
json_t *tool_call_object(const char *name, const char *arguments);

/* {"content": [{token, logprob, bytes, top_logprobs}]} */
json_t *chat_logprobs(const struct tokenizer *t, const struct chat_token *tokens, int n,
                      bool as_ids);
/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"} */
json_t *completion_logprobs(const struct tokenizer *t, const struct chat_token *tokens, int n,
                            bool as_ids);
#endif
