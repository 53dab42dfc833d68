/* text/tool_call.h - calls of tools in what a model writes.
 *
 * Families of models write calls in their own forms:
 *   TOOLS_TAGGED  <tool_call>{"name": "f", "arguments": {...}}</tool_call>   Qwen, Hermes
 *   TOOLS_JSON    {"name": "f", "parameters": {...}}, the whole answer       Llama 3.1
 *   TOOLS_PYTHON  <|tool_call_start|>[f(a=1), g()]<|tool_call_end|>          LFM2
 *
 * A reader takes the text in pieces and tells text and calls apart as soon as that is certain; what
 * begins like a call and is none (broken, or of a tool that was not offered) is told as the text it
 * is. White space next to a call is dropped. Joined over any cuts, text and calls are the same.
 *
 * Calling order: tool_reader_init, tool_reader_push for each piece, tool_reader_finish once,
 * tool_reader_release. One thread at a time. */
#ifndef TEXT_TOOL_CALL_H
#define TEXT_TOOL_CALL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct chat_source;
struct tokenizer;

enum tool_form { TOOLS_NONE, TOOLS_TAGGED, TOOLS_JSON, TOOLS_PYTHON };

/* The form that the template, or else the vocabulary, speaks of; TOOLS_NONE: the template does not
 * know tools. */
enum tool_form tool_form_of(const struct chat_source *s, const struct tokenizer *t);

/* The marks around calls, NULL for TOOLS_JSON. */
const char *tool_form_open(enum tool_form form);
const char *tool_form_close(enum tool_form form);

struct tool_sink {
    void *arg;
    void (*text)(void *arg, const char *text, size_t len);
    /* arguments: a JSON object as text. */
    void (*call)(void *arg, const char *name, const char *arguments);
};

struct tool_reader {
    enum tool_form form;
    const json_t *tools; /* borrowed: [{"function": {"name"}}] */
    struct tool_sink sink;
    struct buf space; /* white space that the next text brings along, and the next call does not */
    struct buf held;  /* may become a mark, or is inside one */
    bool inside;      /* held begins behind an opening mark */
    bool seen_text;   /* TOOLS_JSON: the answer is no call */
    int n_calls;
    bool failed; /* out of memory */
};

void tool_reader_init(struct tool_reader *r, enum tool_form form, const json_t *tools,
                      const struct tool_sink *sink);
void tool_reader_push(struct tool_reader *r, const char *text, size_t len);
void tool_reader_finish(struct tool_reader *r);
void tool_reader_release(struct tool_reader *r);

/* "[f(a=1, b='x'), g()]" as a list of {"name", "arguments"}; NULL: it is something else. Owned. */
json_t *tool_python_calls(const char *text, size_t len);
#endif
