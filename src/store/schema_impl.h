/* store/schema_impl.h - what the files of the schema reader share. */
#ifndef STORE_SCHEMA_IMPL_H
#define STORE_SCHEMA_IMPL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct err;
struct schema_node;
struct schema_pattern;

struct schema {
    json_t *root;             /* the built-in document; owned */
    struct schema_node *node; /* the same made ready (schema_node.h); NULL while unusable */
    char problem[320];        /* "" while usable */
};

enum schema_writer { SCHEMA_BY_NOBODY, SCHEMA_BY_TRAINER, SCHEMA_BY_SERVER, SCHEMA_CONSTANT };

/* Who writes the property that `node` describes; SCHEMA_CONSTANT: the server, and a caller may
 * repeat it. */
enum schema_writer schema_writer_of(const json_t *node);
/* The node that `node` refers to, or node itself. Local references only; NULL when it leads
 * nowhere. */
const json_t *schema_follow(const json_t *root, const json_t *node);
/* -1 with ERR_FORMAT: an unknown keyword, a keyword of the wrong form, a property without its
 * writer. */
int schema_lint(const json_t *root, struct err *e);
/* Both documents without what only explains: title, description, $schema, $id, default. */
bool schema_same_facts(const json_t *a, const json_t *b);

bool schema_is_date_time(const char *text, size_t len); /* RFC 3339 */
/* ECMA-style, found anywhere. NULL: it does not compile, or no memory. Read-only afterwards. */
struct schema_pattern *schema_pattern_new(const char *pattern);
void schema_pattern_free(struct schema_pattern *p); /* NULL is allowed */
/* 1, 0, or -1: no memory. */
int schema_matches(const struct schema_pattern *p, const json_t *value);
#endif
