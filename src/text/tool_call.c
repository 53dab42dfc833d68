#include "text/tool_call.h"

#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

static const struct {
    const char *open, *close;
} marks[] = {
    [TOOLS_NONE] = {NULL, NULL},
    [TOOLS_TAGGED] = {"<tool_call>", "</tool_call>"},
    [TOOLS_JSON] = {NULL, NULL},
    [TOOLS_PYTHON] = {"<|tool_call_start|>", "<|tool_call_end|>"},
};

const char *tool_form_open(enum tool_form form)
{
    return marks[form].open;
}

const char *tool_form_close(enum tool_form form)
{
    return marks[form].close;
}

enum tool_form tool_form_of(const struct chat_source *s, const struct tokenizer *t)
{
    static const enum tool_form marked[] = {TOOLS_PYTHON, TOOLS_TAGGED};

    if (!s || !chat_source_uses(s, "tools"))
        return TOOLS_NONE;
    for (size_t i = 0; i < 2; i++)
        if (chat_source_prints(s, marks[marked[i]].open))
            return marked[i];
    for (size_t i = 0; i < 2; i++) {
        const char *open = marks[marked[i]].open;

        if (tokenizer_find(t, open, strlen(open)) >= 0)
            return marked[i];
    }
    return TOOLS_JSON;
}

/* ---- what a call says ---- */

static bool is_offered(const struct tool_reader *r, const char *name)
{
    for (size_t i = 0; i < json_array_size(r->tools); i++) {
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function");
        const char *one = json_string_value(json_object_get(function, "name"));

        if (one && strcmp(one, name) == 0)
            return true;
    }
    return false;
}

/* A model may write anything: "[" without end as well. */
static bool is_deep(const char *text, size_t len)
{
    struct err e = {0};

    return json_check_nesting(text, len, &e) < 0;
}

/* The arguments of a call as an object, however they are named; some models write them as text. */
static json_t *arguments_of(const json_t *call)
{
    const json_t *v = json_object_get(call, "arguments");
    json_error_t where;
    struct err ignored;

    if (!v)
        v = json_object_get(call, "parameters");
    if (json_is_string(v) && is_deep(json_string_value(v), json_string_length(v)))
        return NULL;
    if (json_is_string(v))
        return json_load_text(json_string_value(v), json_string_length(v), 0, &where, &ignored);
    return v ? json_incref((json_t *)(uintptr_t)v) : json_object();
}

static bool is_call(const struct tool_reader *r, const json_t *call)
{
    const char *name = json_string_value(json_object_get(call, "name"));
    json_t *arguments = arguments_of(call);
    bool ok = name && is_offered(r, name) && json_is_object(arguments);

    json_decref(arguments);
    return ok;
}

static void tell_call(struct tool_reader *r, const json_t *call)
{
    json_t *arguments = arguments_of(call);
    struct buf text = {0};

    json_write(&text, arguments);
    r->failed = r->failed || text.failed;
    r->n_calls++;
    r->sink.call(r->sink.arg, json_string_value(json_object_get(call, "name")), buf_str(&text));
    buf_release(&text);
    json_decref(arguments);
}

/* All of them or none: false, and nothing has been told. */
static bool tell_calls(struct tool_reader *r, const json_t *list)
{
    size_t n = json_array_size(list);

    for (size_t i = 0; i < n; i++)
        if (!is_call(r, json_array_get(list, i)))
            return false;
    if (n > 0)
        buf_reset(&r->space);
    for (size_t i = 0; i < n; i++)
        tell_call(r, json_array_get(list, i));
    return n > 0;
}

/* JSON objects one behind the other, or a list of them. Owned; NULL: something else. */
static json_t *json_calls(const char *text, size_t len)
{
    json_t *list = is_deep(text, len) ? NULL : json_array();
    size_t at = 0;

    while (list && at < len) {
        json_error_t where;
        struct err ignored;
        json_t *v;

        if (strchr(" \t\r\n;", text[at]) && text[at]) {
            at++;
            continue;
        }
        v = json_load_text(text + at, len - at, JSON_DISABLE_EOF_CHECK, &where, &ignored);
        if (json_is_array(v))
            json_array_extend(list, v);
        else if (json_is_object(v))
            json_array_append(list, v);
        json_decref(v);
        if (!v) {
            json_decref(list);
            return NULL;
        }
        at += (size_t)where.position;
    }
    return list;
}

/* What stands between two marks. */
static bool read_calls(struct tool_reader *r, const char *text, size_t len)
{
    json_t *list = r->form == TOOLS_PYTHON ? tool_python_calls(text, len) : json_calls(text, len);
    bool ok = tell_calls(r, list);

    json_decref(list);
    return ok;
}

/* ---- text ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* White space behind other text waits for what comes next; behind a call it is dropped. */
static void tell_text(struct tool_reader *r, const char *text, size_t len)
{
    size_t end = len;

    if (r->n_calls > 0 && !r->seen_text)
        while (len > 0 && is_space(*text)) {
            text++;
            len--;
            end--;
        }
    while (end > 0 && is_space(text[end - 1]))
        end--;
    if (end > 0) {
        r->seen_text = true;
        if (r->space.len)
            r->sink.text(r->sink.arg, buf_str(&r->space), r->space.len);
        buf_reset(&r->space);
        r->sink.text(r->sink.arg, text, end);
    }
    buf_add(&r->space, text + end, len - end);
}

/* How many bytes at the end of the held text may be the beginning of the mark. */
static size_t partial_mark(const struct buf *held, const char *mark)
{
    size_t n = strlen(mark) - 1;

    n = n < held->len ? n : held->len;
    while (n > 0 && memcmp(held->data + held->len - n, mark, n) != 0)
        n--;
    return n;
}

static void drop_front(struct buf *b, size_t n)
{
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = '\0';
}

/* ---- marked forms ---- */

/* One step over the held text. false: more text is needed. */
static bool step_marked(struct tool_reader *r)
{
    const char *open = tool_form_open(r->form), *close = tool_form_close(r->form);
    size_t skip = r->inside ? strlen(open) : 0; /* the opening mark stays, for what is no call */
    const char *mark = r->inside ? close : open;
    char *found = memmem(r->held.data + skip, r->held.len - skip, mark, strlen(mark));
    size_t before = found ? (size_t)(found - r->held.data) : 0;

    if (!found && !r->inside) {
        before = r->held.len - partial_mark(&r->held, open);
        tell_text(r, r->held.data, before);
        drop_front(&r->held, before);
    }
    if (!found)
        return false;
    if (!r->inside) {
        tell_text(r, r->held.data, before);
        drop_front(&r->held, before);
        r->inside = true;
        return true;
    }
    r->inside = false;
    if (read_calls(r, r->held.data + skip, before - skip))
        r->seen_text = false;
    else
        tell_text(r, r->held.data, before + strlen(close));
    drop_front(&r->held, before + strlen(close));
    return r->held.len > 0;
}

/* ---- the whole answer as a call ---- */

static void push_json(struct tool_reader *r)
{
    size_t at = 0;

    while (at < r->held.len && is_space(r->held.data[at]))
        at++;
    if (at == r->held.len || (!r->seen_text && r->held.data[at] == '{'))
        return; /* may be a call: known at the end */
    tell_text(r, r->held.data, r->held.len);
    buf_reset(&r->held);
}

void tool_reader_init(struct tool_reader *r, enum tool_form form, const json_t *tools,
                      const struct tool_sink *sink)
{
    *r = (struct tool_reader){.form = form, .tools = tools, .sink = *sink};
}

void tool_reader_push(struct tool_reader *r, const char *text, size_t len)
{
    buf_add(&r->held, text, len);
    if (r->held.failed || r->held.len == 0)
        return;
    if (r->form == TOOLS_JSON)
        push_json(r);
    else
        while (step_marked(r))
            ;
}

void tool_reader_finish(struct tool_reader *r)
{
    size_t skip = r->inside ? strlen(tool_form_open(r->form)) : 0;
    bool may_be_call = r->held.len > 0 && (r->inside || r->form == TOOLS_JSON);

    if (may_be_call && read_calls(r, r->held.data + skip, r->held.len - skip))
        r->seen_text = false;
    else if (r->held.len > 0)
        tell_text(r, r->held.data, r->held.len);
    if (r->space.len && (r->n_calls == 0 || r->seen_text))
        r->sink.text(r->sink.arg, buf_str(&r->space), r->space.len);
    r->failed = r->failed || r->held.failed || r->space.failed;
    buf_reset(&r->held);
    buf_reset(&r->space);
}

void tool_reader_release(struct tool_reader *r)
{
    buf_release(&r->held);
    buf_release(&r->space);
}
