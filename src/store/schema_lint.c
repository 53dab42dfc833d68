/* Is a schema document one that this reader understands completely? */
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "store/schema_impl.h"

enum { SCHEMA_DEPTH_MAX = 16 };

enum form {
    FORM_TEXT,
    FORM_NUMBER,
    FORM_ANY,
    FORM_FALSE,
    FORM_TEXTS,
    FORM_NODES,
    FORM_NODE_MAP,
    FORM_PROPS
};

static const struct keyword {
    const char *name;
    enum form form;
    bool explains; /* says nothing about which values are valid */
} keywords[] = {
    {"$schema", FORM_TEXT, true},
    {"$id", FORM_TEXT, true},
    {"title", FORM_TEXT, true},
    {"description", FORM_TEXT, true},
    {"default", FORM_ANY, true},
    {"x-schema-revision", FORM_TEXT, false},
    {"$ref", FORM_TEXT, false},
    {"$defs", FORM_NODE_MAP, false},
    {"type", FORM_TEXT, false},
    {"properties", FORM_PROPS, false},
    {"required", FORM_TEXTS, false},
    {"additionalProperties", FORM_FALSE, false},
    {"const", FORM_ANY, false},
    {"enum", FORM_TEXTS, false},
    {"anyOf", FORM_NODES, false},
    {"pattern", FORM_TEXT, false},
    {"format", FORM_TEXT, false},
    {"minimum", FORM_NUMBER, false},
    {"maximum", FORM_NUMBER, false},
    {"x-written-by", FORM_TEXT, false},
    {"x-caller-may-send", FORM_TEXT, false},
};

static const struct keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++)
        if (strcmp(keywords[i].name, name) == 0)
            return &keywords[i];
    return NULL;
}

enum schema_writer schema_writer_of(const json_t *node)
{
    const char *by = json_string_value(json_object_get(node, "x-written-by"));
    const char *may = json_string_value(json_object_get(node, "x-caller-may-send"));

    if (by && strcmp(by, "trainer") == 0)
        return may ? SCHEMA_BY_NOBODY : SCHEMA_BY_TRAINER;
    if (!by || strcmp(by, "server") != 0)
        return SCHEMA_BY_NOBODY;
    if (!may)
        return SCHEMA_BY_SERVER;
    return strcmp(may, "constant") == 0 ? SCHEMA_CONSTANT : SCHEMA_BY_NOBODY;
}

const json_t *schema_follow(const json_t *root, const json_t *node)
{
    static const char prefix[] = "#/$defs/";

    for (int i = 0; i < SCHEMA_DEPTH_MAX; i++) {
        const char *ref = json_string_value(json_object_get(node, "$ref"));

        if (!ref)
            return node;
        if (strncmp(ref, prefix, sizeof prefix - 1) != 0)
            return NULL;
        node = json_object_get(json_object_get(root, "$defs"), ref + sizeof prefix - 1);
        if (!node)
            return NULL;
    }
    return NULL;
}

static int lint_node(const json_t *root, const json_t *node, const char *where, int depth,
                     struct err *e);

static int lint_properties(const json_t *root, const json_t *props, int depth, struct err *e)
{
    const char *key;
    json_t *node;

    if (!json_is_object(props))
        return err_set(e, ERR_FORMAT, "the schema's properties are not an object");
    json_object_foreach ((json_t *)(uintptr_t)props, key, node) {
        if (schema_writer_of(node) == SCHEMA_BY_NOBODY)
            return err_set(
                e, ERR_FORMAT,
                "property \"%s\" of the schema does not say who writes it (x-written-by)", key);
        if (lint_node(root, node, key, depth + 1, e) < 0)
            return -1;
    }
    return 0;
}

static int lint_node_map(const json_t *root, const json_t *map, int depth, struct err *e)
{
    const char *key;
    json_t *node;

    if (!json_is_object(map))
        return err_set(e, ERR_FORMAT, "$defs of the schema is not an object");
    json_object_foreach ((json_t *)(uintptr_t)map, key, node)
        if (lint_node(root, node, key, depth + 1, e) < 0)
            return -1;
    return 0;
}

static int lint_nodes(const json_t *root, const json_t *list, const char *where, int depth,
                      struct err *e)
{
    json_t *node;
    size_t i;

    if (json_array_size(list) == 0)
        return err_set(e, ERR_FORMAT, "anyOf of \"%s\" in the schema is not a list of schemas",
                       where);
    json_array_foreach (list, i, node)
        if (lint_node(root, node, where, depth + 1, e) < 0)
            return -1;
    return 0;
}

static bool all_texts(const json_t *list)
{
    json_t *item;
    size_t i;

    if (json_array_size(list) == 0)
        return false;
    json_array_foreach (list, i, item)
        if (!json_is_string(item))
            return false;
    return true;
}

static bool has_form(const json_t *v, enum form form)
{
    switch (form) {
    case FORM_TEXT:
        return json_is_string(v);
    case FORM_NUMBER:
        return json_is_number(v);
    case FORM_FALSE:
        return json_is_false(v);
    case FORM_TEXTS:
        return all_texts(v);
    default:
        return true;
    }
}

static bool in_list(const char *text, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(text, *list) == 0)
            return true;
    return false;
}

/* Words whose value has a meaning of its own. */
static int lint_value(const char *keyword, const json_t *v, const char *where, struct err *e)
{
    static const char *const types[] = {"object", "string", "integer", "number", "null", NULL};
    static const char *const formats[] = {"date-time", NULL};

    if ((strcmp(keyword, "type") == 0 && !in_list(json_string_value(v), types)) ||
        (strcmp(keyword, "format") == 0 && !in_list(json_string_value(v), formats)))
        return err_set(e, ERR_FORMAT, "%s \"%s\" of \"%s\" in the schema is not understood",
                       keyword, json_string_value(v), where);
    return 0;
}

static int lint_keyword(const json_t *root, const struct keyword *k, const json_t *v,
                        const char *where, int depth, struct err *e)
{
    if (!has_form(v, k->form))
        return err_set(e, ERR_FORMAT, "keyword \"%s\" of \"%s\" in the schema has the wrong form",
                       k->name, where);
    switch (k->form) {
    case FORM_PROPS:
        return lint_properties(root, v, depth, e);
    case FORM_NODE_MAP:
        return lint_node_map(root, v, depth, e);
    case FORM_NODES:
        return lint_nodes(root, v, where, depth, e);
    default:
        return lint_value(k->name, v, where, e);
    }
}

static int lint_node(const json_t *root, const json_t *node, const char *where, int depth,
                     struct err *e)
{
    const char *key;
    json_t *v;

    if (!json_is_object(node) || depth > SCHEMA_DEPTH_MAX)
        return err_set(e, ERR_FORMAT, "\"%s\" of the schema is not an object, or nested too deep",
                       where);
    json_object_foreach ((json_t *)(uintptr_t)node, key, v) {
        const struct keyword *k = find_keyword(key);

        if (!k)
            return err_set(e, ERR_FORMAT,
                           "keyword \"%s\" of \"%s\" in the schema is not understood", key, where);
        if (lint_keyword(root, k, v, where, depth, e) < 0)
            return -1;
    }
    if (!schema_follow(root, node))
        return err_set(e, ERR_FORMAT, "$ref of \"%s\" in the schema leads nowhere", where);
    return 0;
}

int schema_lint(const json_t *root, struct err *e)
{
    if (lint_node(root, root, "$", 0, e) < 0)
        return -1;
    if (!json_is_object(json_object_get(schema_follow(root, root), "properties")))
        return err_set(e, ERR_FORMAT, "the schema describes no properties");
    return 0;
}

/* A copy without explanations. `props`: the keys are names of properties, not keywords. */
static json_t *facts_of(const json_t *v, bool props)
{
    json_t *copy, *member;
    const char *key;
    size_t i;

    if (json_is_array(v)) {
        copy = json_array();
        json_array_foreach (v, i, member)
            json_array_append_new(copy, facts_of(member, false));
        return copy;
    }
    if (!json_is_object(v))
        return json_deep_copy(v);
    copy = json_object();
    json_object_foreach ((json_t *)(uintptr_t)v, key, member) {
        const struct keyword *k = props ? NULL : find_keyword(key);

        if (!k || !k->explains)
            json_object_set_new(
                copy, key,
                facts_of(member, k && (k->form == FORM_PROPS || k->form == FORM_NODE_MAP)));
    }
    return copy;
}

bool schema_same_facts(const json_t *a, const json_t *b)
{
    json_t *fa = facts_of(a, false);
    json_t *fb = facts_of(b, false);
    bool same = fa && fb && json_equal(fa, fb);

    json_decref(fa);
    json_decref(fb);
    return same;
}
