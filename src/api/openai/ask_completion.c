/* api/openai/ask_completion.c - what is special to /v1/completions. */
#include "api/openai/ask.h"

int ask_parse_completion(struct ask *a, struct refusal *r)
{
    static const struct prompt_field prompt = {.name = "prompt", .most = CHAT_CHOICES_MAX};

    ask_common(a, ON_COMPLETIONS);
    a->job.n_prompts = parse_prompts(a, &prompt, &a->job.prompts);
    a->logprobs = a->job.top_logprobs >= 0;
    if (a->job.best_of > a->job.n && !a->logprobs)
        a->job.top_logprobs = 0; /* the best is found by log-probability */
    return ask_finish(a, r);
}
