/* generate/grammar_json.c - the rules of JSON (RFC 8259), a little narrower where JSON is too wide
 * for a model: white space between two parts is nothing, one space, or a new line with its indent,
 * so that no answer can lose itself in it; numbers have at most as many digits as a double keeps;
 * an escaped surrogate has its partner. */
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "generate/grammar.h"
#include "generate/grammar_graph.h"

enum {
    INDENT_SPACES = 24,
    INDENT_TABS = 8,
    WHOLE_DIGITS = 15, /* before the point */
    INTEGER_DIGITS = 18,
    PART_DIGITS = 15, /* behind the point */
    EXPONENT_DIGITS = 2,
};

/* ---- white space ---- */

static void add_indent(struct graph *g, int32_t line, char c, int n)
{
    for (int i = 0; i < n; i++) {
        int32_t next = graph_node(g);

        graph_bytes(g, line, c, c, next);
        graph_final(g, next);
        line = next;
    }
}

int32_t rule_space(struct graph *g)
{
    int32_t start, one, line;

    if (g->rule_space != NO_RULE)
        return g->rule_space;
    g->rule_space = start = graph_node(g);
    one = graph_node(g);
    line = graph_node(g);
    graph_final(g, start);
    graph_final(g, one);
    graph_final(g, line);
    graph_bytes(g, start, ' ', ' ', one);
    graph_bytes(g, start, '\n', '\n', line);
    add_indent(g, line, ' ', INDENT_SPACES);
    add_indent(g, line, '\t', INDENT_TABS);
    return start;
}

/* ---- strings ---- */

static int32_t add_hex(struct graph *g, int32_t from, int n, int32_t to)
{
    for (int i = 0; i < n; i++) {
        int32_t next = i + 1 < n ? graph_node(g) : to;

        graph_bytes(g, from, '0', '9', next);
        graph_bytes(g, from, 'A', 'F', next);
        graph_bytes(g, from, 'a', 'f', next);
        from = next;
    }
    return to;
}

/* Behind "\u": four digits that are no surrogate, or a pair of surrogates. */
static void add_unicode_escape(struct graph *g, int32_t from, int32_t to)
{
    int32_t rest = graph_node(g), d = graph_node(g), low = graph_node(g), high = graph_node(g);
    int32_t second = graph_node(g), pair = graph_node(g), end = graph_node(g);

    graph_bytes(g, from, '0', '9', rest);
    graph_bytes(g, from, 'A', 'C', rest);
    graph_bytes(g, from, 'a', 'c', rest);
    graph_bytes(g, from, 'E', 'F', rest);
    graph_bytes(g, from, 'e', 'f', rest);
    add_hex(g, rest, 3, to);
    graph_bytes(g, from, 'D', 'D', d);
    graph_bytes(g, from, 'd', 'd', d);
    graph_bytes(g, d, '0', '7', low);
    add_hex(g, low, 2, to);
    graph_bytes(g, d, '8', '9', high);
    graph_bytes(g, d, 'A', 'B', high);
    graph_bytes(g, d, 'a', 'b', high);
    add_hex(g, high, 2, second);
    graph_text_to(g, second, "\\u", 2, pair);
    graph_bytes(g, pair, 'D', 'D', end);
    graph_bytes(g, pair, 'd', 'd', end);
    second = graph_node(g);
    graph_bytes(g, end, 'C', 'F', second);
    graph_bytes(g, end, 'c', 'f', second);
    add_hex(g, second, 2, to);
}

/* Any character, raw or escaped, leads back to `body`. */
static void add_any_chars(struct graph *g, int32_t body, enum byte_arc_kind kind)
{
    int32_t escape = graph_node(g), unicode = graph_node(g);

    graph_chars(g, body, 0x20, '"' - 1, body, kind);
    graph_chars(g, body, '"' + 1, '\\' - 1, body, kind);
    graph_chars(g, body, '\\' + 1, 0x10ffff, body, kind);
    graph_byte_kind(g, body, '\\', '\\', escape, kind);
    for (const char *c = "\"\\/bfnrt"; *c; c++)
        graph_bytes(g, escape, *c, *c, body);
    graph_bytes(g, escape, 'u', 'u', unicode);
    add_unicode_escape(g, unicode, body);
}

static int32_t add_string(struct graph *g, int limit)
{
    int32_t start = graph_node(g), body = graph_node(g), end = graph_node(g);

    graph_bytes(g, start, '"', '"', body);
    add_any_chars(g, body, limit ? ARC_BEGINS : ARC_PLAIN);
    graph_byte_kind(g, body, '"', '"', end, limit ? ARC_CLOSES : ARC_PLAIN);
    graph_set_limit(g, body, limit);
    graph_final(g, end);
    return start;
}

int32_t rule_string(struct graph *g)
{
    if (g->rule_string == NO_RULE)
        g->rule_string = add_string(g, 0);
    return g->rule_string;
}

int32_t rule_string_of_length(struct graph *g, uint32_t min, uint32_t max)
{
    return add_string(g, graph_limit(g, min, max));
}

int32_t graph_fixed_string(struct graph *g, int32_t from, const char *text, size_t len)
{
    struct buf spelled = {0};

    json_write_str(&spelled, text, len);
    g->failed = g->failed || spelled.failed;
    from = graph_text(g, from, buf_str(&spelled), spelled.len);
    buf_release(&spelled);
    return from;
}

/* ---- numbers ---- */

/* One to n digits; each node that is reached may be followed by what `join` stands for. */
static void add_digits(struct graph *g, int32_t from, int n, int32_t join)
{
    for (int i = 0; i < n; i++) {
        int32_t next = graph_node(g);

        graph_bytes(g, from, '0', '9', next);
        graph_free_arc(g, next, join);
        from = next;
    }
}

/* -?(0|[1-9][0-9]*), then whatever follows `join`. */
static int32_t add_whole(struct graph *g, int digits, int32_t join)
{
    int32_t start = graph_node(g), sign = graph_node(g), first = graph_node(g);

    graph_bytes(g, start, '-', '-', sign);
    graph_free_arc(g, start, sign);
    graph_bytes(g, sign, '0', '0', join);
    graph_bytes(g, sign, '1', '9', first);
    graph_free_arc(g, first, join);
    add_digits(g, first, digits - 1, join);
    return start;
}

int32_t rule_integer(struct graph *g)
{
    int32_t end;

    if (g->rule_integer != NO_RULE)
        return g->rule_integer;
    end = graph_node(g);
    graph_final(g, end);
    return g->rule_integer = add_whole(g, INTEGER_DIGITS, end);
}

int32_t rule_number(struct graph *g)
{
    int32_t whole, part, end, point, power, sign;

    if (g->rule_number != NO_RULE)
        return g->rule_number;
    whole = graph_node(g);
    part = graph_node(g);
    end = graph_node(g);
    point = graph_node(g);
    power = graph_node(g);
    sign = graph_node(g);
    graph_bytes(g, whole, '.', '.', point);
    add_digits(g, point, PART_DIGITS, part);
    graph_free_arc(g, whole, part);
    graph_bytes(g, part, 'e', 'e', power);
    graph_bytes(g, part, 'E', 'E', power);
    graph_free_arc(g, part, end);
    graph_bytes(g, power, '+', '+', sign);
    graph_bytes(g, power, '-', '-', sign);
    graph_free_arc(g, power, sign);
    add_digits(g, sign, EXPONENT_DIGITS, end);
    graph_final(g, end);
    return g->rule_number = add_whole(g, WHOLE_DIGITS, whole);
}

/* ---- any value ---- */

const char *rule_word(const struct graph *g, int kind)
{
    if (kind == JSON_NULL)
        return g->python ? "None" : "null";
    if (kind == JSON_TRUE)
        return g->python ? "True" : "true";
    return g->python ? "False" : "false";
}

int32_t rule_value(struct graph *g)
{
    int32_t start, end;

    if (g->rule_value != NO_RULE)
        return g->rule_value;
    g->rule_value = start = graph_node(g);
    end = graph_node(g);
    graph_final(g, end);
    for (int kind = JSON_TRUE; kind <= JSON_NULL; kind++)
        graph_text_to(g, start, rule_word(g, kind), strlen(rule_word(g, kind)), end);
    graph_call(g, start, rule_string(g), end);
    graph_call(g, start, rule_number(g), end);
    graph_call(g, start, rule_object(g), end);
    graph_call(g, start, rule_array(g), end);
    return start;
}

/* Entries between two brackets, commas between them; `start` is where it begins. */
static void add_container(struct graph *g, int32_t start, char open, int32_t entry, char close)
{
    int32_t first = graph_node(g), inside = graph_node(g), more = graph_node(g);
    int32_t comma = graph_node(g), next = graph_node(g), last = graph_node(g), end = graph_node(g);

    graph_bytes(g, start, open, open, first);
    graph_call_inside(g, first, rule_space(g), inside);
    graph_bytes(g, inside, close, close, end);
    graph_call_inside(g, inside, entry, more);
    graph_bytes(g, more, ',', ',', comma);
    graph_call(g, comma, rule_space(g), next);
    graph_call_inside(g, next, entry, more);
    graph_call(g, more, rule_space(g), last);
    graph_bytes(g, last, close, close, end);
    graph_final(g, end);
}

/* "name": value. */
static int32_t add_member(struct graph *g)
{
    int32_t start = graph_node(g), named = graph_node(g), colon = graph_node(g);
    int32_t spaced = graph_node(g), end = graph_node(g);

    graph_call(g, start, rule_string(g), named);
    graph_bytes(g, named, ':', ':', colon);
    graph_bytes(g, colon, ' ', ' ', spaced);
    graph_free_arc(g, colon, spaced);
    graph_call(g, spaced, rule_value(g), end);
    graph_final(g, end);
    return start;
}

int32_t rule_object(struct graph *g)
{
    int32_t start;

    if (g->rule_object != NO_RULE)
        return g->rule_object;
    g->rule_object = start = graph_node(g); /* known before its values, which may be objects */
    add_container(g, start, '{', add_member(g), '}');
    return start;
}

int32_t rule_array(struct graph *g)
{
    int32_t start;

    if (g->rule_array != NO_RULE)
        return g->rule_array;
    g->rule_array = start = graph_node(g);
    add_container(g, start, '[', rule_value(g), ']');
    return start;
}

struct grammar *grammar_json_object(struct err *e)
{
    struct graph g;

    graph_init(&g);
    return graph_finish(&g, rule_object(&g), e);
}
