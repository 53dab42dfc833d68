/* text/chat_template.h - messages to prompt text, by the chat template of the model.
 *
 * A model's template is a Jinja program written by whoever made the model: it is run by Jinja
 * itself, in its sandbox, in a process of its own that has no files, no network and a limit on
 * time, memory and output. docs/decisions/0005-chat-templates.md gives the reasons and the walls.
 *
 * Two objects:
 *   struct chat_source  what a directory says: the template (or several by name) and the special
 * tokens that a template may print. Immutable, counted, any thread. struct chat_worker  the process
 * that renders. One per server; it is started at the first render, and again when it died. Any
 * thread may render; one render runs at a time.
 *
 * Ownership: json values in a request are borrowed during the call.
 * Errors of chat_render: ERR_ARG the template refused the messages (its own raise_exception text is
 * the message), or has an error, or took too long, too much memory or printed too much;
 * ERR_NOT_FOUND there is no template (of that name); ERR_IO the worker could not be started;
 * ERR_NOMEM. */
#ifndef TEXT_CHAT_TEMPLATE_H
#define TEXT_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct err;
struct buf;
struct chat_source;
struct chat_worker;

enum {
    CHAT_TEMPLATE_MAX = 1 << 20, /* bytes of one template */
    CHAT_OUTPUT_MAX = 1 << 20,   /* bytes of one rendered prompt */
    CHAT_INPUT_MAX = 8 << 20,    /* bytes of one request, as JSON */
    CHAT_TIME_MS = 2000,         /* of one render */
};

/* Reads chat_template.jinja (wins), else the chat_template of tokenizer_config.json: a string, or a
 * list of {name, template}. Neither: a source without template. Owned. ERR_FORMAT when a file is
 * damaged. */
struct chat_source *chat_source_open(int dir_fd, struct err *e);
/* The same from memory: `config` is tokenizer_config.json parsed, `jinja` the text of
 * chat_template.jinja; either may be NULL. */
struct chat_source *chat_source_new(const json_t *config, const char *jinja, struct err *e);
struct chat_source *chat_source_ref(struct chat_source *s);
void chat_source_unref(struct chat_source *s); /* NULL is allowed */
/* `name` NULL is the default one. */
bool chat_source_has(const struct chat_source *s, const char *name);
/* Whether the template for tools ("tool_use", else the default one) uses the variable, and whether
 * the text stands anywhere in it. */
bool chat_source_uses(const struct chat_source *s, const char *variable);
bool chat_source_prints(const struct chat_source *s, const char *text);

struct chat_request {
    const json_t *messages; /* array of {role, content, ...} objects */
    const json_t *tools;    /* array, or NULL */
    const json_t *kwargs;   /* object of further template variables, or NULL */
    const char
        *template_name; /* NULL: "tool_use" when tools are given and it exists, else "default" */
    bool add_generation_prompt;  /* the text ends where the assistant speaks */
    bool continue_final_message; /* the last message is left open; excludes add_generation_prompt */
};

struct chat_worker *chat_worker_new(struct err *e); /* owned; starts no process yet */
void chat_worker_free(struct chat_worker *w);       /* ends the process; NULL is allowed */
/* Starts the process if there is none, so that the first render is quick. */
int chat_worker_warm(struct chat_worker *w, struct err *e);

/* Appends the rendered text to *out; on failure *out is as before. */
int chat_render(struct chat_worker *w, const struct chat_source *s, const struct chat_request *r,
                struct buf *out, struct err *e);

/* The generic form for models without a template, no worker needed: "role: content\n" for each
 * message, then "assistant:" with add_generation_prompt. A last message that is continued gets no
 * newline. */
int chat_render_plain(const struct chat_request *r, struct buf *out, struct err *e);
#endif
