/* service/chat_prompt.h - from the prompts of a job to token ids that fit the model. */
#ifndef SERVICE_CHAT_PROMPT_H
#define SERVICE_CHAT_PROMPT_H

#include "text/tokenizer.h"

struct chat_job;
struct image;
struct refusal;
struct service;

struct prompt_tokens {
    struct token_list list;
    int n_silent; /* leading ids that were put in front of the caller's text: not echoed */
};

/* One entry for each conversation or prompt, in *out (owned, prompts_free). -1 with *r:
 * no_chat_template, invalid_parameter, context_length_exceeded, ... */
int prompts_build(struct service *s, const struct chat_job *job, const struct image *im,
                  struct prompt_tokens **out, struct refusal *r);
void prompts_free(struct prompt_tokens *p, int n); /* NULL is allowed */
int prompts_count(const struct chat_job *job);
#endif
