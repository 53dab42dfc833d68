/* store/schema.h - a reader for the part of JSON Schema that the manifest schema uses.
 *
 * The schema is docs/schemas/checkpoint-manifest-v1.json, built into the program; an external file
 * (WEIGHTS_SCHEMA_FILE) may stand in for it only if it states the same facts. A schema is usable
 * when every keyword is known and every property says who writes it (x-written-by); otherwise
 * schema_problem tells why, and saves and loads are refused with it (schema_ownership). Read-only
 * after loading: safe from several threads.
 *
 * Keywords with meaning: $ref (local), $defs, type, properties, required, additionalProperties:
 * false, const, enum, anyOf, pattern, format: date-time, minimum, maximum, x-written-by (server |
 * trainer), x-caller-may-send (constant). Annotations: $schema, $id, title, description, default,
 * x-schema-revision. */
#ifndef STORE_SCHEMA_H
#define STORE_SCHEMA_H

#include <jansson.h>

struct err;
struct schema;

enum schema_form {
    SCHEMA_CALLER, /* manifest of a save request: server-written properties are not looked at,
                      except that kind and schema_version must be their constants; parent is bounded
                    */
    SCHEMA_FILE,   /* manifest.json: everything that is required must be there */
};

enum { SCHEMA_MAX_ERRORS = 100 }; /* then one more entry with keyword "truncated" */

/* external_path NULL or "": the built-in schema. A file that is missing, unreadable or different is
 * no failure: the schema then has a problem. NULL: out of memory. Owned. */
struct schema *schema_load(const char *external_path, struct err *e);
void schema_free(struct schema *s);
const char *schema_problem(const struct schema *s); /* NULL: usable; else one sentence, borrowed */

/* All errors in document order, an owned array of
 *     {"path": "$.optimizer.state", "message": str, "keyword": str, "key"?: str}
 * "key" is the missing or unknown key; its path is that of its object. Missing keys come after the
 * errors of the object's own members. Empty array: valid. NULL with *e: no memory, or an unusable
 * schema. */
json_t *schema_check(const struct schema *s, const json_t *value, enum schema_form form,
                     struct err *e);

/* Top-level keys of value that only the server writes, in document order: an owned array of
 * strings. */
json_t *schema_server_fields(const struct schema *s, const json_t *value, struct err *e);
#endif
