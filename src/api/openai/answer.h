/* api/openai/answer.h - runs a job and sends its answer: whole, or as a stream of events. */
#ifndef API_OPENAI_ANSWER_H
#define API_OPENAI_ANSWER_H

#include <jansson.h>

#include "api/openai/ask.h"
#include "service/chat.h"

struct api_call;
struct ask;
struct collected_choice;
struct refusal;

/* What differs between the two routes. Results are owned. */
struct answer_form {
    ask_parse_fn *parse;      /* the fields of the route */
    const char *id_prefix;    /* "chatcmpl-" */
    const char *object;       /* "chat.completion" */
    const char *chunk_object; /* "chat.completion.chunk" */
    /* An entry of choices, complete. */
    json_t *(*choice)(const struct ask *a, const struct tokenizer *t, int index,
                      const struct collected_choice *c);
    /* The first entry of a choice in a stream, or NULL where there is none. */
    json_t *(*opening)(int index);
    /* An entry with new text and tokens; text NULL: the last one, with the reason. */
    json_t *(*delta)(const struct ask *a, const struct tokenizer *t, int index, const char *text,
                     size_t len, const struct chat_token *tokens, int n_tokens);
    /* An entry with call number `call` of the choice; NULL where there are no tools. */
    json_t *(*call_delta)(int index, int call, const char *name, const char *arguments);
};

/* A whole call: the request read and refused, or run and answered in the form it asks for. */
void answer_call(struct api_call *call, const struct answer_form *form);

void answer_whole(struct ask *a, const struct answer_form *form);
void answer_stream(struct ask *a, const struct answer_form *form);
#endif
