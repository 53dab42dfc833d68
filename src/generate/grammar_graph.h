/* generate/grammar_graph.h - the graph behind a grammar, and how it is put together (inside the
 * room).
 *
 * A rule is a start node and what can be reached from it. From a node one goes on by an arc over a
 * byte, by a free arc, or by a call: the callee's rule, then the node behind the call. A final node
 * returns from its rule. Several ways at once are allowed everywhere.
 *
 * A string with a length keeps its number of characters beside the node: arcs that begin a
 * character need room for one more, the closing quote needs enough of them.
 *
 * Order: graph_init, nodes and arcs in any order, graph_finish (which takes everything out), or
 * graph_release. A failed allocation is noted in `failed`, later calls do nothing, graph_finish
 * tells it. */
#ifndef GENERATE_GRAMMAR_GRAPH_H
#define GENERATE_GRAMMAR_GRAPH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

struct err;

enum {
    GRAPH_NODES_MAX = 60000,
    NO_RULE = -1,
    NEED_NONE = 0xffff, /* no end can be reached */
};

enum byte_arc_kind {
    ARC_PLAIN,
    ARC_BEGINS, /* a character of a string with a length */
    ARC_CLOSES, /* the end of one */
};

struct byte_arc {
    uint8_t lo, hi; /* the bytes it goes over */
    uint8_t kind;
    int32_t to;
};

struct free_arc {
    int32_t callee; /* start node of a rule, or NO_RULE */
    int32_t to;     /* behind it */
    int32_t levels; /* of nesting that the call adds: 1 inside an object or array, else 0 */
};

struct string_limit {
    uint32_t min, max; /* characters */
};

struct graph_node {
    uint32_t bytes, frees; /* its first arcs; the next node's are behind its last */
    uint16_t need;         /* levels of nesting it takes to reach the end of the rule */
    uint16_t limit;        /* of its string: index into limits, 0: none */
    bool final;
};

struct grammar {
    atomic_int refs;
    struct graph_node *nodes; /* [n_nodes + 1] */
    struct byte_arc *bytes;
    struct free_arc *frees;
    struct string_limit *limits;
    int32_t n_nodes;
    int32_t start;
    int height;                      /* the largest `need` */
    unsigned char key[SHA256_BYTES]; /* of the whole: equal grammars have equal keys */
};

/* An arc on its way into the grammar. */
struct graph_arc {
    int32_t from, to, callee, levels;
    uint8_t lo, hi, kind;
    bool free;
};

struct graph {
    struct graph_arc *arcs;
    size_t n_arcs, cap_arcs;
    bool *finals;
    uint16_t *limit_of;
    int32_t n_nodes, cap_nodes;
    struct string_limit *limits; /* [0] is not used */
    int n_limits;
    bool failed; /* out of memory */
    bool full;   /* more nodes than a grammar may have */
    /* rules that many schemas share; NO_RULE until they are asked for */
    int32_t rule_space, rule_string, rule_number, rule_integer, rule_value, rule_object, rule_array;
    bool python; /* the literals of Python: True, False, None */
};

void graph_init(struct graph *g);
void graph_release(struct graph *g);

int32_t graph_node(struct graph *g);
void graph_final(struct graph *g, int32_t node);
void graph_bytes(struct graph *g, int32_t from, int lo, int hi, int32_t to);
void graph_byte_kind(struct graph *g, int32_t from, int lo, int hi, int32_t to,
                     enum byte_arc_kind kind);
void graph_free_arc(struct graph *g, int32_t from, int32_t to);
void graph_call(struct graph *g, int32_t from, int32_t rule, int32_t to);
/* The same for what stands inside an object or an array: one level deeper. Every container makes at
 * least one such call, so that it counts even when it is empty. */
void graph_call_inside(struct graph *g, int32_t from, int32_t rule, int32_t to);
/* Index of a new limit; 0 when there are too many. */
int graph_limit(struct graph *g, uint32_t min, uint32_t max);
void graph_set_limit(struct graph *g, int32_t node, int limit);

/* The whole as a grammar that begins at `start`; *g is empty afterwards, also on failure. ERR_ARG:
 * a rule calls itself without a byte in between, no string of the language has an end, or it is too
 * large. */
struct grammar *graph_finish(struct graph *g, int32_t start, struct err *e);

/* ---- grammar_text.c: fixed texts and characters ---- */

/* A chain over the bytes of the text, to a new node, which is returned. */
int32_t graph_text(struct graph *g, int32_t from, const char *text, size_t len);
/* The same to a given node; the text has at least one byte. */
void graph_text_to(struct graph *g, int32_t from, const char *text, size_t len, int32_t to);
/* Whole characters of [lo, hi] in UTF-8; surrogates are left out. */
void graph_chars(struct graph *g, int32_t from, uint32_t lo, uint32_t hi, int32_t to,
                 enum byte_arc_kind kind);
/* Characters of [lo, hi] as a JSON string spells them: raw, or escaped where they must be. */
void graph_string_chars(struct graph *g, int32_t from, uint32_t lo, uint32_t hi, int32_t to,
                        enum byte_arc_kind kind);

/* ---- grammar_json.c: rules of JSON, made when they are first asked for ---- */

int32_t
rule_space(struct graph *g); /* what may stand between two parts: nothing, a space, a line */
int32_t rule_string(struct graph *g);
int32_t rule_string_of_length(struct graph *g, uint32_t min, uint32_t max);
int32_t rule_number(struct graph *g);
int32_t rule_integer(struct graph *g);
int32_t rule_value(struct graph *g);
int32_t rule_object(struct graph *g);
int32_t rule_array(struct graph *g);
/* The word for true, false and null. */
const char *rule_word(const struct graph *g, int kind /* JSON_TRUE, ... */);
/* from: opening quote, text, closing quote, in canonical spelling. */
int32_t graph_fixed_string(struct graph *g, int32_t from, const char *text, size_t len);

#endif
