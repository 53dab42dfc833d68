/* text/tool_python.c - a list of calls in the notation of Python: names, keyword arguments,
 * literals.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/tool_call.h"

enum { DEPTH_MAX = 64, NAME_MAX_BYTES = 256 };

struct python {
    const char *at, *end;
    int depth;
};

static json_t *read_value(struct python *p);

static void skip_space(struct python *p)
{
    while (p->at < p->end && strchr(" \t\r\n", *p->at) && *p->at)
        p->at++;
}

/* The next sign, if it is this one. */
static bool take(struct python *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static bool is_name_char(char c, bool dots)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (dots && (c == '.' || c == '-'));
}

/* A name into out [NAME_MAX_BYTES]. */
static bool read_name(struct python *p, bool dots, char *out)
{
    size_t n = 0;

    skip_space(p);
    while (p->at < p->end && is_name_char(*p->at, dots) && n + 1 < NAME_MAX_BYTES)
        out[n++] = *p->at++;
    out[n] = '\0';
    return n > 0 && !(out[0] >= '0' && out[0] <= '9');
}

/* ---- literals ---- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(struct python *p, int n, uint32_t *out)
{
    for (*out = 0; n > 0; n--, p->at++) {
        int v = p->at < p->end ? hex_value(*p->at) : -1;

        if (v < 0)
            return false;
        *out = *out * 16 + (uint32_t)v;
    }
    return true;
}

static bool add_char(struct buf *out, uint32_t c)
{
    char bytes[4];

    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return false;
    buf_add(out, bytes, utf8_encode(c, bytes));
    return true;
}

/* \uD83D\uDE00: both halves, as JSON writes them. */
static bool read_pair(struct python *p, uint32_t *c)
{
    uint32_t low;

    if (*c < 0xd800 || *c >= 0xdc00)
        return true;
    if (p->end - p->at < 6 || p->at[0] != '\\' || p->at[1] != 'u')
        return false;
    p->at += 2;
    if (!read_hex(p, 4, &low) || low < 0xdc00 || low >= 0xe000)
        return false;
    *c = 0x10000 + ((*c - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* Behind a backslash. */
static bool read_escape(struct python *p, struct buf *out)
{
    static const char letters[] = "abfnrtv\\'\"/", codes[] = "\a\b\f\n\r\t\v\\'\"/";
    char c = *p->at++;
    const char *found = c ? strchr(letters, c) : NULL;
    uint32_t code;

    if (found)
        return buf_add_char(out, codes[found - letters]), true;
    if (c == 'x' || c == 'u' || c == 'U')
        return read_hex(p,
                        c == 'x'   ? 2
                        : c == 'u' ? 4
                                   : 8,
                        &code) &&
               read_pair(p, &code) && add_char(out, code);
    if (c != '\n') { /* a backslash that escapes nothing stands for itself */
        buf_add_char(out, '\\');
        buf_add_char(out, c);
    }
    return true;
}

static bool read_string(struct python *p, struct buf *out)
{
    char quote = *p->at++;

    while (p->at < p->end && *p->at != quote) {
        if (*p->at != '\\') {
            buf_add_char(out, *p->at++);
            continue;
        }
        p->at++;
        if (p->at == p->end || !read_escape(p, out))
            return false;
    }
    if (p->at == p->end)
        return false;
    p->at++;
    return true;
}

static json_t *string_value(struct python *p)
{
    struct buf text = {0};
    json_t *v = read_string(p, &text) ? json_stringn(buf_str(&text), text.len) : NULL;

    buf_release(&text);
    return v;
}

static json_t *number_value(struct python *p)
{
    json_error_t where;
    struct err ignored;
    size_t n = 0;

    while (p->at + n < p->end && p->at[n] && strchr("+-0123456789.eE", p->at[n]))
        n++;
    p->at += n;
    return json_load_text(p->at - n, n, JSON_DECODE_ANY, &where, &ignored);
}

static json_t *word_value(struct python *p)
{
    char name[NAME_MAX_BYTES];

    if (!read_name(p, false, name))
        return NULL;
    if (strcmp(name, "True") == 0 || strcmp(name, "true") == 0)
        return json_true();
    if (strcmp(name, "False") == 0 || strcmp(name, "false") == 0)
        return json_false();
    return strcmp(name, "None") == 0 || strcmp(name, "null") == 0 ? json_null() : NULL;
}

/* ---- containers ---- */

static bool read_items(struct python *p, char close, json_t *list)
{
    while (!take(p, close)) {
        json_t *v;

        if (json_array_size(list) > 0 && !take(p, ','))
            return false;
        if (take(p, close)) /* a comma before the end */
            return json_array_size(list) > 0;
        v = read_value(p);
        if (!v || json_array_append_new(list, v) < 0)
            return false;
    }
    return true;
}

static bool read_pairs(struct python *p, json_t *object)
{
    while (!take(p, '}')) {
        struct buf key = {0};
        json_t *v = NULL;

        if (json_object_size(object) > 0 && !take(p, ','))
            return false;
        skip_space(p);
        if (p->at < p->end && (*p->at == '"' || *p->at == '\'') && read_string(p, &key) &&
            take(p, ':'))
            v = read_value(p);
        if (v)
            json_object_set_new(object, buf_str(&key), v);
        buf_release(&key);
        if (!v)
            return false;
    }
    return true;
}

static json_t *container_value(struct python *p, char open)
{
    json_t *v = open == '{' ? json_object() : json_array();
    bool ok = p->depth++ < DEPTH_MAX;

    p->at++;
    ok = ok && (open == '{' ? read_pairs(p, v) : read_items(p, open == '[' ? ']' : ')', v));
    p->depth--;
    if (ok)
        return v;
    json_decref(v);
    return NULL;
}

static json_t *read_value(struct python *p)
{
    skip_space(p);
    if (p->at == p->end)
        return NULL;
    switch (*p->at) {
    case '"':
    case '\'':
        return string_value(p);
    case '[':
    case '(':
    case '{':
        return container_value(p, *p->at);
    default:
        return is_name_char(*p->at, false) && !(*p->at >= '0' && *p->at <= '9') ? word_value(p)
                                                                                : number_value(p);
    }
}

/* ---- calls ---- */

static bool read_arguments(struct python *p, json_t *arguments)
{
    char name[NAME_MAX_BYTES];

    while (!take(p, ')')) {
        json_t *v;

        if (json_object_size(arguments) > 0 && !take(p, ','))
            return false;
        if (!read_name(p, false, name) || !take(p, '='))
            return false;
        v = read_value(p);
        if (!v)
            return false;
        json_object_set_new(arguments, name, v);
    }
    return true;
}

static json_t *read_call(struct python *p)
{
    char name[NAME_MAX_BYTES];
    json_t *arguments = json_object();

    if (read_name(p, true, name) && take(p, '(') && read_arguments(p, arguments))
        return json_pack("{s:s, s:o}", "name", name, "arguments", arguments);
    json_decref(arguments);
    return NULL;
}

json_t *tool_python_calls(const char *text, size_t len)
{
    struct python p = {.at = text, .end = text + len};
    json_t *list = json_array();
    bool ok = take(&p, '[');

    while (ok && !take(&p, ']')) {
        json_t *call = NULL;

        if (json_array_size(list) == 0 || take(&p, ','))
            call = read_call(&p);
        ok = call && json_array_append_new(list, call) == 0;
    }
    skip_space(&p);
    if (ok && p.at == p.end && json_array_size(list) > 0)
        return list;
    json_decref(list);
    return NULL;
}
