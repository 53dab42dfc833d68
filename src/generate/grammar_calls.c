/* generate/grammar_calls.c - calls of tools as a language: the fixed parts of the family's form,
 * one of the names, arguments that fit the tool's schema. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/grammar.h"
#include "generate/grammar_graph.h"
#include "generate/grammar_schema.h"

struct calls {
    struct graph g;
    const struct grammar_call_form *form;
    const struct grammar_tool *tools;
    int n;
    struct buf *heads; /* [n]: all that stands in front of the arguments */
    json_t *none;      /* the schema of no arguments */
};

/* Behind the head of tool i: its arguments, then what closes the call. */
static int add_arguments(struct calls *c, int i, int32_t from, int32_t done, struct err *e)
{
    const json_t *schema = c->tools[i].parameters ? c->tools[i].parameters : c->none;
    struct schema_reader s = {.g = &c->g, .root = schema};
    int32_t end = graph_node(&c->g);
    int rc;

    buf_printf(&s.path, "[%d].function.parameters", i);
    rc = schema_arguments(&s, schema, c->form->keywords, from, end, e);
    graph_free_arc(&c->g, graph_text(&c->g, end, c->form->after, strlen(c->form->after)), done);
    schema_reader_release(&s);
    return rc;
}

static int add_call(struct calls *c, int32_t from, int32_t done, struct err *e)
{
    struct fixed_text *texts = calloc((size_t)c->n, sizeof *texts);

    if (!texts)
        return err_nomem(e);
    for (int i = 0; i < c->n; i++) {
        texts[i] = (struct fixed_text){
            .text = buf_str(&c->heads[i]), .len = c->heads[i].len, .to = graph_node(&c->g)};
        if (add_arguments(c, i, texts[i].to, done, e) < 0) {
            free(texts);
            return -1;
        }
    }
    graph_texts(&c->g, from, texts, (size_t)c->n);
    free(texts);
    return 0;
}

static int add_calls(struct calls *c, int32_t start, bool several, struct err *e)
{
    const struct grammar_call_form *form = c->form;
    int32_t first = graph_text(&c->g, start, form->open, strlen(form->open));
    int32_t done = graph_node(&c->g), end;

    if (add_call(c, first, done, e) < 0)
        return -1;
    if (several && form->separator)
        graph_text_to(&c->g, done, form->separator, strlen(form->separator), first);
    end = graph_text(&c->g, done, form->close, strlen(form->close));
    graph_final(&c->g, end);
    return 0;
}

static bool write_heads(struct calls *c)
{
    bool ok = c->heads && c->none;

    for (int i = 0; ok && i < c->n; i++) {
        buf_add_str(&c->heads[i], c->form->before);
        buf_add_str(&c->heads[i], c->tools[i].name);
        buf_add_str(&c->heads[i], c->form->between);
        ok = !c->heads[i].failed;
    }
    return ok;
}

struct grammar *grammar_calls(const struct grammar_call_form *form,
                              const struct grammar_tool *tools, int n_tools, bool several,
                              struct err *e)
{
    struct calls c = {.form = form,
                      .tools = tools,
                      .n = n_tools,
                      .heads = calloc((size_t)n_tools + 1, sizeof *c.heads),
                      .none = json_pack("{s:s, s:{}}", "type", "object", "properties")};
    struct grammar *out = NULL;
    int32_t start;

    graph_init(&c.g);
    c.g.python = form->keywords;
    start = graph_node(&c.g);
    if (!write_heads(&c))
        err_nomem(e);
    else if (add_calls(&c, start, several, e) == 0)
        out = graph_finish(&c.g, start, e);
    graph_release(&c.g);
    for (int i = 0; c.heads && i < n_tools; i++)
        buf_release(&c.heads[i]);
    free(c.heads);
    json_decref(c.none);
    return out;
}
