/* generate/grammar_text.c - fixed texts, and ranges of characters as bytes of UTF-8 or as a JSON
 * string spells them. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "generate/grammar_graph.h"

void graph_text_to(struct graph *g, int32_t from, const char *text, size_t len, int32_t to)
{
    for (size_t i = 0; i < len; i++) {
        int32_t next = i + 1 < len ? graph_node(g) : to;

        graph_bytes(g, from, (unsigned char)text[i], (unsigned char)text[i], next);
        from = next;
    }
}

int32_t graph_text(struct graph *g, int32_t from, const char *text, size_t len)
{
    int32_t to = graph_node(g);

    if (len == 0)
        graph_free_arc(g, from, to);
    else
        graph_text_to(g, from, text, len, to);
    return to;
}

/* ---- UTF-8 ---- */

/* lo and hi have n bytes each, and every byte of a character between them lies between theirs. */
static void add_sequence(struct graph *g, int32_t from, uint32_t lo, uint32_t hi, int32_t to,
                         enum byte_arc_kind kind)
{
    char first[4], last[4];
    size_t n = utf8_encode(lo, first);

    utf8_encode(hi, last);
    for (size_t i = 0; i < n; i++) {
        int32_t next = i + 1 < n ? graph_node(g) : to;

        graph_byte_kind(g, from, (unsigned char)first[i], (unsigned char)last[i], next,
                        i == 0 ? kind : ARC_PLAIN);
        from = next;
    }
}

/* Cuts [lo, hi], of one length in bytes, where a continuation byte would have to wrap around. */
static void add_range(struct graph *g, int32_t from, uint32_t lo, uint32_t hi, int32_t to,
                      enum byte_arc_kind kind, int n_bytes)
{
    for (int i = 1; i < n_bytes; i++) {
        uint32_t low = (1u << (6 * i)) - 1;

        if ((lo & ~low) == (hi & ~low))
            continue;
        if (lo & low) {
            add_range(g, from, lo, lo | low, to, kind, n_bytes);
            add_range(g, from, (lo | low) + 1, hi, to, kind, n_bytes);
            return;
        }
        if ((hi & low) != low) {
            add_range(g, from, lo, (hi & ~low) - 1, to, kind, n_bytes);
            add_range(g, from, hi & ~low, hi, to, kind, n_bytes);
            return;
        }
    }
    add_sequence(g, from, lo, hi, to, kind);
}

void graph_chars(struct graph *g, int32_t from, uint32_t lo, uint32_t hi, int32_t to,
                 enum byte_arc_kind kind)
{
    static const struct {
        uint32_t lo, hi;
        int n_bytes;
    } parts[] = {{0, 0x7f, 1},
                 {0x80, 0x7ff, 2},
                 {0x800, 0xd7ff, 3},
                 {0xe000, 0xffff, 3},
                 {0x10000, 0x10ffff, 4}};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t first = lo > parts[i].lo ? lo : parts[i].lo;
        uint32_t last = hi < parts[i].hi ? hi : parts[i].hi;

        if (first <= last)
            add_range(g, from, first, last, to, kind, parts[i].n_bytes);
    }
}

/* ---- inside a JSON string ---- */

static void add_escape(struct graph *g, int32_t from, uint32_t c, int32_t to,
                       enum byte_arc_kind kind)
{
    static const char letters[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                   ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    int32_t escape = graph_node(g);
    char text[8];
    int n = c < sizeof letters && letters[c]
                ? snprintf(text, sizeof text, "%c", letters[c])
                : snprintf(text, sizeof text, "u%04x", (unsigned)(c & 0xffff));

    graph_byte_kind(g, from, '\\', '\\', escape, kind);
    graph_text_to(g, escape, text, (size_t)n, to);
}

void graph_string_chars(struct graph *g, int32_t from, uint32_t lo, uint32_t hi, int32_t to,
                        enum byte_arc_kind kind)
{
    static const uint32_t raw[][2] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}};

    for (uint32_t c = lo; c <= hi && c < 0x20; c++)
        add_escape(g, from, c, to, kind);
    if (lo <= '"' && hi >= '"')
        add_escape(g, from, '"', to, kind);
    if (lo <= '\\' && hi >= '\\')
        add_escape(g, from, '\\', to, kind);
    for (size_t i = 0; i < sizeof raw / sizeof *raw; i++) {
        uint32_t first = lo > raw[i][0] ? lo : raw[i][0];
        uint32_t last = hi < raw[i][1] ? hi : raw[i][1];

        if (first <= last)
            graph_chars(g, from, first, last, to, kind);
    }
}
