/* service/chat.h - one completion: from a model name and a prompt to the text of its choices.
 *
 * A job runs on the caller's thread: the name is resolved (service/identity.h), the prompt is
 * rendered and encoded, the engine generates, and the sink is called with text as it comes. Whole
 * characters only; stop strings never appear; special tokens are not in the text. The same calls
 * come for a stream and for a gathered answer (service/chat_collect.h), so both give the same text.
 *
 * Everything in a job is borrowed until chat_run returns. */
#ifndef SERVICE_CHAT_H
#define SERVICE_CHAT_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "generate/stop.h"
#include "service/identity.h"

struct grammar;
struct image;
struct refusal;
struct served;
struct service;
struct tokenizer;

enum {
    CHAT_CHOICES_MAX = GEN_PROMPTS_MAX, /* prompts x best_of */
    CHAT_N_MAX = 256,                   /* choices of one prompt */
    CHAT_STOP_IDS_MAX = 16,             /* beside the model's own end tokens */
    CHAT_MAX_TOKENS_DEFAULT = 512,      /* cut to the room that the context leaves */
};

struct chat_prompt {
    const char *text; /* or NULL: ids */
    size_t len;
    const int32_t *ids;
    int n_ids;
};

/* Runs fn(arg) once as soon as the caller has lost interest; NULL takes it back. */
typedef void chat_watch_fn(void *watch_arg, void (*fn)(void *), void *arg);

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED };

/* Tools that the model may call, or must. */
struct chat_tools {
    const json_t *list; /* [{"type": "function", "function": {"name", "parameters", ...}}], checked;
                           NULL: none */
    enum tool_choice choice;
    const char *named; /* TOOL_CHOICE_REQUIRED: this one; NULL: any of them */
    bool one_call;     /* at most */
};

struct chat_job {
    struct identity_ask ask; /* the model, and who asks */
    chat_watch_fn *watch;    /* NULL: nobody leaves */
    void *watch_arg;
    bool background; /* gives way to others */

    /* What is continued: conversations (each an array of messages) or prompts. */
    const json_t *const *conversations;
    int n_conversations;
    const json_t *template_kwargs; /* object or NULL */
    struct chat_tools tools;
    const char *calls_at;    /* path of the first message with calls of tools, or NULL */
    struct grammar *grammar; /* the language of every answer; NULL: any text */
    bool needs_template;     /* scoring: no generic form for models without one */
    const struct chat_prompt *prompts;
    int n_prompts;
    bool add_special; /* prompts: as the tokenizer begins a text */
    bool echo;        /* the prompt is part of the text */

    int n, best_of;               /* choices a prompt; samples to choose from, at least n */
    int max_tokens;               /* -1: not given; 0: only with echo */
    const char *max_tokens_field; /* how the caller spelled it, for refusals */
    float temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    int top_k;
    bool has_seed;
    uint64_t seed;
    struct stop_string stops[STOP_STRINGS_MAX];
    int n_stops;
    const int32_t *stop_ids;
    int n_stop_ids;
    const struct gen_bias *bias;
    int n_bias;
    const int32_t *allowed; /* NULL: every token */
    int n_allowed;
    int top_logprobs; /* -1: none */
    bool score; /* log-probabilities of the distribution that is sampled: divided by temperature,
                   over `allowed` */
};

enum { CHAT_TOP_MAX = 20 }; /* alternatives of one token */

/* One token of a choice: of the echoed prompt or generated. */
struct chat_token {
    int32_t id;
    bool of_prompt;
    bool has_logprob;
    float logprob;
    int n_top;
    struct gen_top top[CHAT_TOP_MAX];
    int64_t text_offset; /* characters of the choice's text before it */
};

enum chat_finish { CHAT_STOP, CHAT_LENGTH, CHAT_TOOL_CALLS, CHAT_TIMEOUT };

struct chat_start {
    const struct served *served; /* name, origin, commits: fixed at admission */
    const struct image *image;
    const struct tokenizer *tokenizer;
    int n_choices; /* prompts x best_of: prompt by prompt */
    int prompt_tokens;
};

struct chat_sink {
    void *arg;
    /* Once, when the request got its slot: no refusal can come before it any more. */
    void (*started)(void *arg, const struct chat_start *start);
    /* Text that is certain, and the tokens since the last call; either may be empty. */
    void (*piece)(void *arg, int choice, const char *text, size_t len,
                  const struct chat_token *tokens, int n_tokens);
    /* A whole call of a tool; `arguments` is a JSON object as text. */
    void (*call)(void *arg, int choice, const char *name, const char *arguments);
    void (*finished)(void *arg, int choice, enum chat_finish why);
};

struct chat_usage {
    int prompt_tokens, completion_tokens, cached_tokens;
};

/* 0, or -1 with *r; a refusal may also come after `started`. *usage is filled in both cases. */
int chat_run(struct service *s, const struct chat_job *job, const struct chat_sink *sink,
             struct chat_usage *usage, struct refusal *r);
#endif
