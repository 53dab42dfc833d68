/* api/openai/ask.h - a request to /v1/chat/completions, /v1/completions or /v1/embeddings, checked
 * and turned into a job.
 *
 * Order (section 7.1): ask_begin (JSON, torn weights, model name), then one of the
 * ask_parse_ functions (schema and field policy), then ask.job goes to chat_run, or ask.embed to
 * embed_run. Every field is
 * honoured, reported in ask.ignored, or refused by its name. Strings of the job are borrowed from
 * ask.body and the arena. */
#ifndef API_OPENAI_ASK_H
#define API_OPENAI_ASK_H

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "service/chat.h"
#include "service/embed.h"
#include "service/refusal.h"

struct api_call;

/* What is wrong with a body: the first finding is told, the others are counted. */
struct problems {
    struct refusal first;
    int n;
};

struct ask {
    struct api_call *call; /* borrowed */
    json_t *body;          /* owned object */
    struct chat_job job;
    struct embed_job embed; /* ask_parse_embedding */
    struct arena arena;
    bool no_memory;          /* a part of it could not be made */
    json_t *owned;           /* array: what the job borrows and the body does not hold */
    struct grammar *grammar; /* owned: job.grammar, or NULL */
    json_t *ignored;         /* array of locations */
    struct problems problems;
    bool stream, include_usage;
    bool logprobs;  /* wanted in the answer */
    bool token_ids; /* return_tokens_as_token_ids */
    bool base64;    /* encoding_format */
};

typedef int ask_parse_fn(struct ask *a, struct refusal *r);

/* 0, or -1 with *r. ask_release in both cases. */
int ask_begin(struct ask *a, struct api_call *call, struct refusal *r);
ask_parse_fn ask_parse_chat, ask_parse_completion, ask_parse_embedding;
/* Both. A row of a batch that is only checked is judged by its form first, then by its model. */
int ask_read(struct ask *a, struct api_call *call, ask_parse_fn *parse, struct refusal *r);
bool ask_only_checks(const struct ask *a); /* then there is nothing to run */
void ask_release(struct ask *a);

/* Headers that every 200 of these routes carries; streams too. */
void ask_add_headers(struct ask *a, const struct chat_start *start);
void ask_add_ignored(struct ask *a); /* X-miLLM-Ignored-Fields alone */

/* ---- between the files of this folder ---- */

void ask_init(struct ask *a, struct api_call *call); /* defaults; no body yet */

/* A finding: code, path of the field, sentence. */
void problem(struct ask *a, enum refusal_code code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The path of a field, kept as long as the ask. */
const char *ask_path(struct ask *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ask_ignore(struct ask *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Reports every key of object `o` that is not among `known` (words, one space between), unless its
 * value is null; `path` is the place of `o`. Nothing when it is no object. */
void ask_ignore_others(struct ask *a, const char *path, const json_t *o, const char *known);

/* The name of a function or of a schema: 1 to ASK_NAME_MAX of letters, digits, _ and -. NULL is
 * none. */
enum { ASK_NAME_MAX = 64 };
bool ask_is_name(const char *name);

/* ask_tools.c: tools, tool_choice, parallel_tool_calls; and tool_calls of a message as templates
 * take them (owned). */
void ask_tools(struct ask *a);
json_t *ask_message_calls(struct ask *a, const char *path, const json_t *list);
/* ask_format.c: response_format. After ask_tools. */
void ask_response_format(struct ask *a);

/* fields.c: the tables. */
struct known_field;
enum endpoint { ON_CHAT = 1, ON_COMPLETIONS = 2, ON_EMBEDDINGS = 4 };
void fields_check(struct ask *a,
                  enum endpoint where); /* unknown ones, refused ones, plain values */
/* The fields that a route honours, in the order of the tables. */
struct field_facts {
    const char *name;
    const char *type;   /* of JSON Schema; NULL: read by code of the route */
    double least, most; /* number, integer */
};
typedef void field_fn(void *arg, const struct field_facts *f);
void fields_each(enum endpoint where, field_fn *fn, void *arg);
const json_t *field(const struct ask *a, const char *name); /* NULL when absent or null */
void parse_token_ids(struct ask *a, const char *name, int most, const int32_t **ids, int *n);

/* ask_prompt.c: a text, a list of token ids, or a list of either. */
struct prompt_field {
    const char *name;
    int most;        /* entries of a list */
    bool needs_text; /* "" is refused */
};
/* How many there are in *out (of the arena); 0 when a finding has been noted. */
int parse_prompts(struct ask *a, const struct prompt_field *f, const struct chat_prompt **out);

/* ask_rules.c: limits, stops, bias, headers and combinations that both routes share. */
void ask_common(struct ask *a, enum endpoint where);
void ask_scoring_rules(struct ask *a);
void parse_load_policy(struct ask *a);
int ask_finish(struct ask *a, struct refusal *r);  /* combinations, then the verdict */
int ask_verdict(struct ask *a, struct refusal *r); /* strictness, then the first finding */
#endif
