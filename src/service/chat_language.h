/* service/chat_language.h - what an answer may be: free text, text that a response_format bounds,
 * or calls of tools in the form that the model's own template speaks. */
#ifndef SERVICE_CHAT_LANGUAGE_H
#define SERVICE_CHAT_LANGUAGE_H

#include "text/tool_call.h"

struct chat_job;
struct grammar_bound;
struct image;
struct refusal;
struct service;

struct chat_language {
    enum tool_form form;           /* TOOLS_NONE: no calls are looked for */
    struct grammar_bound *grammar; /* counted; NULL: any text */
};

/* 0, or -1 with *r: field_not_honoured (tools, or calls in a message, and a template that does not
 * know them), response_format_unsupported. chat_language_release in both cases. */
int chat_language_prepare(struct service *s, const struct chat_job *job, const struct image *im,
                          struct chat_language *out, struct refusal *r);
void chat_language_release(struct chat_language *l);
#endif
