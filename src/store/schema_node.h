/* store/schema_node.h - the schema made ready for checking (inside the room).
 *
 * A lineage checks thousands of manifests, and looking keywords up by name in the document took
 * more time than comparing the values. So $ref is followed and patterns are compiled once. The
 * nodes borrow texts and values from the document, which outlives them. */
#ifndef STORE_SCHEMA_NODE_H
#define STORE_SCHEMA_NODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "store/schema_impl.h"

struct err;
struct schema_member;
struct schema_pattern; /* a compiled `pattern` */

struct schema_node {
    const char *type;              /* "" : any */
    const json_t *constant;        /* or NULL, like those that follow */
    const json_t *allowed;         /* enum: an array of texts */
    const json_t *low, *high;      /* minimum, maximum */
    const char *pattern;           /* as it stands in the document */
    struct schema_pattern *regex;  /* with `pattern` */
    bool date_time;                /* format */
    bool closed;                   /* additionalProperties: false */
    struct schema_node *branches;  /* anyOf: [n_branches] */
    struct schema_member *members; /* properties: [n_members] */
    const json_t *required;        /* an array of keys */
    size_t n_branches, n_members;
};

struct schema_member {
    const char *key;
    enum schema_writer writer;
    struct schema_node node;
};

/* The document `root`, which has passed schema_lint. Owned (schema_node_free); NULL: ERR_NOMEM,
 * ERR_FORMAT (a $ref that leads into itself, a pattern that does not compile). */
struct schema_node *schema_node_new(const json_t *root, struct err *e);
void schema_node_free(struct schema_node *n); /* NULL is allowed */

/* NULL: the object has no such property. */
const struct schema_member *schema_member_find(const struct schema_node *n, const char *key);
#endif
