#include "store/schema.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "store/schema_impl.h"
#include "store/schema_node.h"

enum { SCHEMA_MAX_BYTES = 1 << 20 };

static const unsigned char built_in[] = {
#include "manifest_schema.inc"
};

static void set_problem(struct schema *s, const struct err *e)
{
    snprintf(s->problem, sizeof s->problem, "%s", e->msg);
}

/* Looks at an external file only to find out whether it says what the built-in schema says. */
static void compare_external(struct schema *s, const char *path)
{
    struct err why = {0};
    json_t *other = json_parse_file(AT_FDCWD, path, SCHEMA_MAX_BYTES, &why);

    if (!other) {
        set_problem(s, &why);
        return;
    }
    if (schema_lint(other, &why) < 0)
        set_problem(s, &why);
    else if (!schema_same_facts(s->root, other))
        snprintf(s->problem, sizeof s->problem,
                 "%s states other facts than the schema built into this program", path);
    json_decref(other);
}

struct schema *schema_load(const char *external_path, struct err *e)
{
    struct schema *s = calloc(1, sizeof *s);
    struct err why = {0};

    if (!s) {
        err_nomem(e);
        return NULL;
    }
    s->root = json_parse((const char *)built_in, sizeof built_in, &why);
    if (s->root && schema_lint(s->root, &why) == 0)
        s->node = schema_node_new(s->root, &why);
    if (!s->node)
        set_problem(s, &why);
    else if (external_path && *external_path)
        compare_external(s, external_path);
    return s;
}

void schema_free(struct schema *s)
{
    if (!s)
        return;
    schema_node_free(s->node);
    json_decref(s->root);
    free(s);
}

const char *schema_problem(const struct schema *s)
{
    return s->problem[0] ? s->problem : NULL;
}

json_t *schema_server_fields(const struct schema *s, const json_t *value, struct err *e)
{
    json_t *found = json_array();
    const char *key;
    json_t *member;

    json_object_foreach ((json_t *)(uintptr_t)value, key, member) {
        const struct schema_member *m = s->node ? schema_member_find(s->node, key) : NULL;

        if (m && m->writer == SCHEMA_BY_SERVER &&
            json_array_append_new(found, json_string(key)) < 0)
            goto fail;
    }
    if (found)
        return found;

fail:
    json_decref(found);
    err_nomem(e);
    return NULL;
}
