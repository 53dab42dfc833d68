/* generate/grammar_schema.h - from a JSON schema to rules (inside the room).
 *
 * Every schema becomes a rule of its own, made once: a `$ref` to it, from inside as well, calls the
 * same rule. The path says where one is, for the error. */
#ifndef GENERATE_GRAMMAR_SCHEMA_H
#define GENERATE_GRAMMAR_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct graph;

struct schema_rule {
    const json_t *schema;
    int32_t rule;
};

struct schema_reader {
    struct graph *g;
    const json_t *root; /* what "#" means */
    struct schema_rule *rules;
    size_t n_rules, cap_rules;
    struct buf path; /* ".properties.a" */
    int depth;
};

void schema_reader_release(struct schema_reader *s);

/* The rule of a schema (an object, true or false). NO_RULE with *e; the path is put into its
 * detail. */
int32_t schema_rule(struct schema_reader *s, const json_t *schema, struct err *e);
/* The same for the part of a schema under `key`, which is told in the path; key NULL: no part. */
int32_t schema_part(struct schema_reader *s, const json_t *schema, const char *key, struct err *e);

/* The arguments of a call: an object, or with `keywords` `name=value, ...`. 0 or -1. */
int schema_arguments(struct schema_reader *s, const json_t *schema, bool keywords, int32_t node,
                     int32_t end, struct err *e);

/* ERR_ARG at the present place; `key` (or NULL) is the keyword that is wrong. */
int schema_refuse(struct schema_reader *s, struct err *e, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* A whole number of 0 and more; absent: *out is left alone. */
int schema_count(struct schema_reader *s, const json_t *schema, const char *key, uint32_t *out,
                 struct err *e);

/* ---- the kinds of values; `node` is where the rule begins, `end` is its final node ---- */

/* grammar_object.c. keywords: `name=value, ...` without braces. */
int schema_object(struct schema_reader *s, const json_t *schema, bool keywords, int32_t node,
                  int32_t end, struct err *e);
int schema_array(struct schema_reader *s, const json_t *schema, int32_t node, int32_t end,
                 struct err *e);
/* grammar_values.c: the listed values that have one of the types (bits 1 << JSON_...; 0: any). */
int schema_enum(struct schema_reader *s, const json_t *values, unsigned types, int32_t node,
                int32_t end, struct err *e);
/* grammar_range.c: minimum and maximum. */
int schema_number(struct schema_reader *s, const json_t *schema, bool whole, int32_t node,
                  int32_t end, struct err *e);

/* ---- grammar_values.c ---- */

/* One of several texts; each leads to a node of its own. Sorted by the call. */
struct fixed_text {
    const char *text;
    size_t len;
    int32_t to;
};
void graph_texts(struct graph *g, int32_t from, struct fixed_text *texts, size_t n);
/* A JSON string, quotes and all, that is none of the keys of `names`. */
void graph_other_string(struct graph *g, int32_t from, const json_t *names, int32_t to);

/* ---- grammar_regex.c ---- */

/* A JSON string whose value a part of which fits the pattern (ECMA-262), with min to max
 * characters (max UINT32_MAX: no end). ERR_ARG. */
int graph_pattern(struct graph *g, int32_t from, const char *pattern, size_t len, uint32_t min,
                  uint32_t max, int32_t to, struct err *e);
#endif
