/* generate/grammar_values.c - listed values, and strings that are none of some. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "generate/grammar_graph.h"
#include "generate/grammar_schema.h"

/* ---- one of several texts ---- */

static int by_text(const void *a, const void *b)
{
    const struct fixed_text *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);

    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* The texts t[0..n) are sorted and share their first `at` bytes, which lead to `from`. */
static void add_texts(struct graph *g, int32_t from, const struct fixed_text *t, size_t n,
                      size_t at)
{
    while (n > 0) {
        size_t same = 0;
        int32_t next;

        if (t->len == at) {
            graph_free_arc(g, from, t->to);
            t++;
            n--;
            continue;
        }
        while (same < n && t[same].text[at] == t->text[at])
            same++;
        next = graph_node(g);
        graph_bytes(g, from, (unsigned char)t->text[at], (unsigned char)t->text[at], next);
        if (same == n) { /* no branch here: the next byte */
            from = next;
            at++;
            continue;
        }
        add_texts(g, next, t, same, at + 1);
        t += same;
        n -= same;
    }
}

void graph_texts(struct graph *g, int32_t from, struct fixed_text *texts, size_t n)
{
    qsort(texts, n, sizeof *texts, by_text);
    add_texts(g, from, texts, n, 0);
}

/* ---- values ---- */

static void write_value(const struct graph *g, struct buf *out, const json_t *v);

static void write_members(const struct graph *g, struct buf *out, const json_t *v)
{
    const char *key, *comma = "";
    json_t *one;

    buf_add_char(out, '{');
    json_object_foreach ((json_t *)(uintptr_t)v, key, one) {
        buf_add_str(out, comma);
        json_write_str(out, key, strlen(key));
        buf_add_str(out, ": ");
        write_value(g, out, one);
        comma = ", ";
    }
    buf_add_char(out, '}');
}

/* As models write it: a space behind commas and colons. */
static void write_value(const struct graph *g, struct buf *out, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        write_members(g, out, v);
        return;
    case JSON_ARRAY:
        buf_add_char(out, '[');
        for (size_t i = 0; i < json_array_size(v); i++) {
            buf_add_str(out, i ? ", " : "");
            write_value(g, out, json_array_get(v, i));
        }
        buf_add_char(out, ']');
        return;
    case JSON_TRUE:
    case JSON_FALSE:
    case JSON_NULL:
        buf_add_str(out, rule_word(g, (int)json_typeof(v)));
        return;
    default:
        json_write(out, v);
    }
}

static bool has_type(const json_t *v, unsigned types)
{
    int64_t whole;
    unsigned own = 1u << json_typeof(v);

    if (json_is_integer(v) || (json_is_real(v) && json_is_whole(v, &whole)))
        own |= 1u << JSON_INTEGER | 1u << JSON_REAL;
    if (json_is_boolean(v))
        own = 1u << JSON_TRUE;
    return types == 0 || (own & types);
}

int schema_enum(struct schema_reader *s, const json_t *values, unsigned types, int32_t node,
                int32_t end, struct err *e)
{
    size_t n = json_array_size(values), kept = 0;
    struct fixed_text *texts = calloc(n + 1, sizeof *texts);
    struct buf *spelled = calloc(n + 1, sizeof *spelled);
    bool ok = texts && spelled;
    int rc = 0;

    for (size_t i = 0; ok && i < n; i++) {
        if (!has_type(json_array_get(values, i), types))
            continue;
        write_value(s->g, &spelled[kept], json_array_get(values, i));
        ok = !spelled[kept].failed;
        texts[kept] = (struct fixed_text){spelled[kept].data, spelled[kept].len, end};
        kept++;
    }
    if (!ok)
        rc = err_nomem(e);
    else if (kept == 0)
        rc = schema_refuse(s, e, NULL, "enum lists no value of the type");
    else
        graph_texts(s->g, node, texts, kept);
    for (size_t i = 0; spelled && i < kept; i++)
        buf_release(&spelled[i]);
    free(spelled);
    free(texts);
    return rc;
}

/* ---- strings that are no known name ---- */

struct others {
    struct graph *g;
    int32_t free_rest; /* the name differs already: anything may follow */
    int32_t close;     /* behind the closing quote */
};

static uint32_t char_at(const char *text, size_t *len)
{
    const unsigned char *p = (const unsigned char *)text;

    *len = utf8_sequence(p, p + strlen(text));
    if (*len <= 1)
        return p[0];
    uint32_t c = p[0] & (0x7fu >> *len);

    for (size_t i = 1; i < *len; i++)
        c = c << 6 | (p[i] & 0x3fu);
    return c;
}

/* The names t[0..n) are sorted and share their first `at` bytes, which lead to `from`. */
static void add_others(const struct others *o, int32_t from, const struct fixed_text *t, size_t n,
                       size_t at)
{
    struct graph *g = o->g;

    while (!g->full && !g->failed) {
        size_t same = 0, len = 0;
        uint32_t free_from = 0;
        int32_t only = -1;

        if (n > 0 && t->len == at) {
            t++; /* a name ends here: no closing quote */
            n--;
        } else {
            graph_bytes(g, from, '"', '"', o->close);
        }
        for (size_t i = 0; i < n; i += same) {
            uint32_t c = char_at(t[i].text + at, &len), other;
            int32_t next = graph_node(g);
            size_t ignored;

            for (same = 0; i + same < n; same++) {
                other = char_at(t[i + same].text + at, &ignored);
                if (other != c)
                    break;
            }
            if (c > free_from)
                graph_string_chars(g, from, free_from, c - 1, o->free_rest, ARC_PLAIN);
            graph_string_chars(g, from, c, c, next, ARC_PLAIN);
            free_from = c + 1;
            if (same == n)
                only = next;
            else
                add_others(o, next, t + i, same, at + len);
        }
        graph_string_chars(g, from, free_from, 0x10ffff, o->free_rest, ARC_PLAIN);
        if (only < 0)
            return;
        from = only;
        at += len;
    }
}

void graph_other_string(struct graph *g, int32_t from, const json_t *names, int32_t to)
{
    size_t n = json_object_size(names), i = 0;
    struct fixed_text *texts = calloc(n + 1, sizeof *texts);
    struct others o = {.g = g, .free_rest = graph_node(g), .close = to};
    int32_t open = graph_node(g);
    const char *name;
    json_t *ignored;

    if (!texts) {
        g->failed = true;
        return;
    }
    if (n == 0) {
        graph_call(g, from, rule_string(g), to);
        free(texts);
        return;
    }
    json_object_foreach ((json_t *)(uintptr_t)names, name, ignored)
        texts[i++] = (struct fixed_text){.text = name, .len = strlen(name)};
    qsort(texts, n, sizeof *texts, by_text);
    graph_bytes(g, from, '"', '"', open);
    graph_string_chars(g, o.free_rest, 0, 0x10ffff, o.free_rest, ARC_PLAIN);
    graph_bytes(g, o.free_rest, '"', '"', to);
    add_others(&o, open, texts, n, 0);
    free(texts);
}
