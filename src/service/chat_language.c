#include "service/chat_language.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "engine/image.h"
#include "generate/grammar.h"
#include "generate/token_trie.h"
#include "model/config.h"
#include "service/chat.h"
#include "service/grammar_cache.h"
#include "service/refusal.h"
#include "service/service.h"
#include "text/tokenizer.h"

enum { MARK_MAX = 32, FIXED_MAX = 96 };

/* ---- the form of a forced call ---- */

/* A mark as a grammar names it: a special token behind its sign, else plain text. */
static void spell_mark(const struct tokenizer *t, const char *mark, char out[MARK_MAX])
{
    int32_t id = tokenizer_find(t, mark, strlen(mark));
    bool special = id >= 0 && tokenizer_is_special(t, id);

    snprintf(out, MARK_MAX, "%s%s", special ? "\xff" : "", mark);
}

/* Fixed texts of a form; the strings live in `texts`. */
static struct grammar_call_form call_form(enum tool_form form, const struct tokenizer *t,
                                          char texts[2][FIXED_MAX])
{
    char open[MARK_MAX] = "", close[MARK_MAX] = "";

    if (form == TOOLS_JSON)
        return (struct grammar_call_form){.open = "",
                                          .close = "",
                                          .before = "{\"name\": \"",
                                          .between = "\", \"parameters\": ",
                                          .after = "}"};
    spell_mark(t, tool_form_open(form), open);
    spell_mark(t, tool_form_close(form), close);
    if (form == TOOLS_PYTHON) {
        snprintf(texts[0], FIXED_MAX, "%s[", open);
        snprintf(texts[1], FIXED_MAX, "]%s", close);
        return (struct grammar_call_form){.open = texts[0],
                                          .close = texts[1],
                                          .before = "",
                                          .between = "(",
                                          .after = ")",
                                          .separator = ", ",
                                          .keywords = true};
    }
    snprintf(texts[0], FIXED_MAX, "%s\n{\"name\": \"", open);
    snprintf(texts[1], FIXED_MAX, "}\n%s", close);
    return (struct grammar_call_form){.open = "",
                                      .close = "",
                                      .before = texts[0],
                                      .between = "\", \"arguments\": ",
                                      .after = texts[1],
                                      .separator = "\n"};
}

/* The tools that may be called, into out; their number. */
static int list_tools(const struct chat_tools *tools, struct grammar_tool *out)
{
    int n = 0;

    for (size_t i = 0; i < json_array_size(tools->list); i++) {
        const json_t *function = json_object_get(json_array_get(tools->list, i), "function");
        const json_t *parameters = json_object_get(function, "parameters");
        const char *name = json_string_value(json_object_get(function, "name"));

        if (!tools->named || strcmp(tools->named, name) == 0)
            out[n++] = (struct grammar_tool){
                .name = name, .parameters = json_is_null(parameters) ? NULL : parameters};
    }
    return n;
}

static int refuse_grammar(const struct err *e, const char *field, struct refusal *r)
{
    char param[sizeof r->param];

    if (e->code != ERR_ARG && e->code != ERR_FORMAT)
        return refuse_internal(r, e);
    snprintf(param, sizeof param, "%s%s", field, e->code == ERR_ARG ? e->detail : "");
    return refuse_param(r, REFUSAL_V1_RESPONSE_FORMAT_UNSUPPORTED, param, "%s: %s.", param, e->msg);
}

/* The calls that the answer must consist of. Owned. */
static struct grammar *forced_calls(const struct chat_tools *tools, enum tool_form form,
                                    const struct tokenizer *t, struct refusal *r)
{
    struct grammar_tool *list = calloc(json_array_size(tools->list) + 1, sizeof *list);
    char texts[2][FIXED_MAX];
    struct grammar_call_form fixed = call_form(form, t, texts);
    struct err e = {0};
    struct grammar *g = NULL;

    if (list)
        g = grammar_calls(&fixed, list, list_tools(tools, list), !tools->named && !tools->one_call,
                          &e);
    else
        err_nomem(&e);
    if (!g)
        refuse_grammar(&e, "tools", r);
    free(list);
    return g;
}

/* ---- both ---- */

static bool offers_tools(const struct chat_job *job)
{
    return json_array_size(job->tools.list) > 0 && job->tools.choice != TOOL_CHOICE_NONE;
}

static int find_form(const struct chat_job *job, const struct image *im, struct chat_language *out,
                     struct refusal *r)
{
    enum tool_form form = tool_form_of(im->files->chat, im->files->tokenizer);

    if (form == TOOLS_NONE && offers_tools(job))
        return refuse_param(r, REFUSAL_V1_FIELD_NOT_HONOURED, "tools",
                            "The chat template of this model does not know tools; leave them out.");
    if (form == TOOLS_NONE && job->calls_at)
        return refuse_param(r, REFUSAL_V1_FIELD_NOT_HONOURED, job->calls_at,
                            "%s: the chat template of this model does not know calls of tools.",
                            job->calls_at);
    out->form = offers_tools(job) ? form : TOOLS_NONE;
    return 0;
}

int chat_language_prepare(struct service *s, const struct chat_job *job, const struct image *im,
                          struct chat_language *out, struct refusal *r)
{
    struct grammar *calls = NULL, *g = job->grammar;
    struct err e = {0};

    *out = (struct chat_language){0};
    if (!im->files->tokenizer) /* told by what comes next */
        return 0;
    if (find_form(job, im, out, r) < 0)
        return -1;
    if (out->form != TOOLS_NONE && job->tools.choice == TOOL_CHOICE_REQUIRED) {
        g = calls = forced_calls(&job->tools, out->form, im->files->tokenizer, r);
        if (!g)
            return -1;
    }
    if (!g)
        return 0;
    out->grammar =
        grammar_cache_bind(s->grammars, g, im->files->tokenizer, im->files->config->vocab, &e);
    grammar_unref(calls);
    return out->grammar ? 0 : refuse_grammar(&e, calls ? "tool_choice" : "response_format", r);
}

void chat_language_release(struct chat_language *l)
{
    grammar_bound_unref(l->grammar);
    *l = (struct chat_language){0};
}
