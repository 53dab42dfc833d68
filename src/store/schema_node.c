#include "store/schema_node.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { NODE_DEPTH_MAX = 16 };

static int fill(struct schema_node *n, const json_t *root, const json_t *from, int depth,
                struct err *e);

static void release(struct schema_node *n)
{
    for (size_t i = 0; i < n->n_branches; i++)
        release(&n->branches[i]);
    for (size_t i = 0; i < n->n_members; i++)
        release(&n->members[i].node);
    free(n->branches);
    free(n->members);
    schema_pattern_free(n->regex);
}

static const char *text_of(const json_t *node, const char *key)
{
    return json_string_value(json_object_get(node, key));
}

static int fill_branches(struct schema_node *n, const json_t *root, const json_t *list, int depth,
                         struct err *e)
{
    json_t *branch;
    size_t i;

    n->branches = calloc(json_array_size(list) + 1, sizeof *n->branches);
    if (!n->branches)
        return err_nomem(e);
    json_array_foreach (list, i, branch) {
        n->n_branches++;
        if (fill(&n->branches[i], root, branch, depth + 1, e) < 0)
            return -1;
    }
    return 0;
}

static int fill_members(struct schema_node *n, const json_t *root, const json_t *props, int depth,
                        struct err *e)
{
    const char *key;
    json_t *from;

    n->members = calloc(json_object_size(props) + 1, sizeof *n->members);
    if (!n->members)
        return err_nomem(e);
    json_object_foreach ((json_t *)(uintptr_t)props, key, from) {
        struct schema_member *m = &n->members[n->n_members++];

        m->key = key;
        m->writer = schema_writer_of(from);
        if (fill(&m->node, root, from, depth + 1, e) < 0)
            return -1;
    }
    return 0;
}

static int fill(struct schema_node *n, const json_t *root, const json_t *from, int depth,
                struct err *e)
{
    from = schema_follow(root, from);
    if (!from || depth > NODE_DEPTH_MAX)
        return err_set(e, ERR_FORMAT, "a $ref of the schema leads nowhere, or into itself");
    *n = (struct schema_node){
        .type = text_of(from, "type"),
        .constant = json_object_get(from, "const"),
        .allowed = json_object_get(from, "enum"),
        .low = json_object_get(from, "minimum"),
        .high = json_object_get(from, "maximum"),
        .pattern = text_of(from, "pattern"),
        .date_time = json_object_get(from, "format") != NULL,
        .closed = json_is_false(json_object_get(from, "additionalProperties")),
        .required = json_object_get(from, "required"),
    };
    if (!n->type)
        n->type = "";
    if (n->pattern && !(n->regex = schema_pattern_new(n->pattern)))
        return err_set(e, ERR_FORMAT, "pattern %s of the schema is not understood", n->pattern);
    if (fill_branches(n, root, json_object_get(from, "anyOf"), depth, e) < 0)
        return -1;
    return fill_members(n, root, json_object_get(from, "properties"), depth, e);
}

struct schema_node *schema_node_new(const json_t *root, struct err *e)
{
    struct schema_node *n = calloc(1, sizeof *n);

    if (!n) {
        err_nomem(e);
        return NULL;
    }
    if (fill(n, root, root, 0, e) == 0)
        return n;
    schema_node_free(n);
    return NULL;
}

void schema_node_free(struct schema_node *n)
{
    if (!n)
        return;
    release(n);
    free(n);
}

const struct schema_member *schema_member_find(const struct schema_node *n, const char *key)
{
    for (size_t i = 0; i < n->n_members; i++)
        if (strcmp(n->members[i].key, key) == 0)
            return &n->members[i];
    return NULL;
}
