/* generate/grammar_object.c - objects and arrays of a schema.
 *
 * Members come in the schema's order, those that are not required may be left out. For each
 * position i there are three nodes: first[i] where nothing has been written yet, after[i] where a
 * comma or the end comes, next[i] behind a comma. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/grammar_graph.h"
#include "generate/grammar_schema.h"

enum { ITEMS_MAX = 2000, MEMBERS_MAX = 1000 };

struct member {
    const char *name;
    int32_t rule;
    bool required;
};

struct object {
    struct schema_reader *s;
    bool keywords;
    struct member *members;
    size_t n;
    size_t optional_from; /* no member from here on is required */
    json_t *names;        /* owned object: the members' names */
    int32_t other;        /* rule of members with another name, or NO_RULE */
    int32_t *key;         /* [n + 1]: where a member's name begins; [n]: that of another one */
    int32_t *after;       /* [n + 1] */
};

/* ---- what the schema says ---- */

static bool is_required(const json_t *required, const char *name)
{
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *one = json_string_value(json_array_get(required, i));

        if (one && strcmp(one, name) == 0)
            return true;
    }
    return false;
}

/* Behind "additionalProperties": with properties and nothing said, only those. */
static int read_other(struct object *o, const json_t *schema, struct err *e)
{
    const json_t *v = json_object_get(schema, "additionalProperties");

    o->other = NO_RULE;
    if (json_is_false(v) || (!v && json_object_get(schema, "properties")) || o->keywords)
        return 0;
    if (!v || json_is_true(v)) {
        o->other = rule_value(o->s->g);
        return 0;
    }
    o->other = schema_part(o->s, v, "additionalProperties", e);
    return o->other < 0 ? -1 : 0;
}

/* Every name that has a place: the properties, then what is required beside them. Owned. */
static json_t *list_names(struct object *o, const json_t *schema, struct err *e)
{
    const json_t *required = json_object_get(schema, "required");
    json_t *names = json_object();

    json_object_update(names, json_object_get(schema, "properties"));
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));

        if (name && !json_object_get(names, name))
            json_object_set_new(names, name, json_null());
    }
    if (!names)
        err_nomem(e);
    else if (json_object_size(names) > MEMBERS_MAX)
        schema_refuse(o->s, e, "properties", "there are more than %d properties", MEMBERS_MAX);
    else
        return names;
    json_decref(names);
    return NULL;
}

/* A required name without a schema of its own is of the other kind. */
static int read_member(struct object *o, const json_t *schema, const char *name, struct err *e)
{
    const json_t *own = json_object_get(json_object_get(schema, "properties"), name);
    struct member *m = &o->members[o->n];
    struct buf key = {0};

    *m = (struct member){.name = name,
                         .rule = o->other,
                         .required = is_required(json_object_get(schema, "required"), name)};
    if (own) {
        buf_printf(&key, "properties.%s", name);
        m->rule = schema_part(o->s, own, buf_str(&key), e);
        buf_release(&key);
        if (m->rule < 0)
            return -1;
    }
    if (m->rule < 0)
        return schema_refuse(o->s, e, "required", "\"%.60s\" is required and is no property", name);
    o->n++;
    if (m->required)
        o->optional_from = o->n;
    return 0;
}

static int check_shape(struct object *o, const json_t *schema, struct err *e)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    bool names = !required || json_is_array(required);

    for (size_t i = 0; i < json_array_size(required); i++)
        names = names && json_is_string(json_array_get(required, i));
    if (properties && !json_is_object(properties))
        return schema_refuse(o->s, e, "properties", "properties must be an object");
    if (!names)
        return schema_refuse(o->s, e, "required", "required must be a list of names");
    return 0;
}

static int read_members(struct object *o, const json_t *schema, struct err *e)
{
    const char *name;
    json_t *ignored;
    size_t n;

    if (check_shape(o, schema, e) < 0 || read_other(o, schema, e) < 0)
        return -1;
    o->names = list_names(o, schema, e);
    if (!o->names)
        return -1;
    n = json_object_size(o->names);
    o->members = calloc(n + 1, sizeof *o->members);
    o->key = calloc(n + 1, sizeof *o->key);
    o->after = calloc(n + 1, sizeof *o->after);
    if (!o->members || !o->key || !o->after)
        return err_nomem(e);
    json_object_foreach (o->names, name, ignored)
        if (read_member(o, schema, name, e) < 0)
            return -1;
    return 0;
}

/* ---- the rule ---- */

/* Behind a name: a colon, one space or none, the value. */
static void add_value(struct graph *g, int32_t from, int32_t rule, int32_t to)
{
    int32_t colon = graph_node(g), spaced = graph_node(g);

    graph_bytes(g, from, ':', ':', colon);
    graph_bytes(g, colon, ' ', ' ', spaced);
    graph_free_arc(g, colon, spaced);
    graph_call_inside(g, spaced, rule, to);
}

static bool is_identifier(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");

    return n > 0 && !name[n] && !(name[0] >= '0' && name[0] <= '9');
}

static int add_member(struct object *o, size_t i, struct err *e)
{
    struct graph *g = o->s->g;
    const struct member *m = &o->members[i];

    if (!o->keywords) {
        add_value(g, graph_fixed_string(g, o->key[i], m->name, strlen(m->name)), m->rule,
                  o->after[i + 1]);
        return 0;
    }
    if (!is_identifier(m->name))
        return schema_refuse(o->s, e, "properties",
                             "the model writes arguments as name=value, and \"%.60s\" is no name",
                             m->name);
    int32_t equals = graph_text(g, graph_text(g, o->key[i], m->name, strlen(m->name)), "=", 1);

    graph_call_inside(g, equals, m->rule, o->after[i + 1]);
    return 0;
}

/* Members from i on, then another one: the node from which all names that may come now begin. */
static int32_t add_choice(struct object *o, int32_t *behind)
{
    struct graph *g = o->s->g;

    for (size_t i = o->n + 1; i-- > 0;) {
        int32_t node = graph_node(g);

        graph_free_arc(g, node, o->key[i]);
        if (i < o->n && !o->members[i].required)
            graph_free_arc(g, node, behind[i + 1]);
        behind[i] = node;
    }
    return behind[0];
}

/* after[i]: a comma and what may come then, or the end. */
static int add_rest(struct object *o, int32_t close, struct err *e)
{
    struct graph *g = o->s->g;
    int32_t *next = calloc(o->n + 1, sizeof *next);

    if (!next)
        return err_nomem(e);
    add_choice(o, next);
    for (size_t i = 0; i <= o->n; i++) {
        int32_t comma = graph_node(g);

        graph_bytes(g, o->after[i], ',', ',', comma);
        graph_call(g, comma, rule_space(g), next[i]);
        if (i < o->optional_from)
            continue;
        if (o->keywords)
            graph_free_arc(g, o->after[i], close);
        else
            graph_call(g, o->after[i], rule_space(g), close);
    }
    free(next);
    return 0;
}

static int add_object(struct object *o, int32_t node, int32_t end, struct err *e)
{
    struct graph *g = o->s->g;
    int32_t open = graph_node(g), inside = graph_node(g), close = graph_node(g);
    int32_t *first = calloc(o->n + 1, sizeof *first);

    if (!first)
        return err_nomem(e);
    for (size_t i = 0; i <= o->n; i++) {
        o->key[i] = graph_node(g);
        o->after[i] = graph_node(g);
    }
    graph_free_arc(g, inside, add_choice(o, first));
    free(first);
    if (o->optional_from == 0)
        graph_free_arc(g, inside, close);
    if (o->keywords) {
        graph_free_arc(g, node, inside);
        graph_free_arc(g, close, end);
    } else {
        graph_bytes(g, node, '{', '{', open);
        graph_call_inside(g, open, rule_space(g), inside);
        graph_bytes(g, close, '}', '}', end);
    }
    for (size_t i = 0; i < o->n; i++)
        if (add_member(o, i, e) < 0)
            return -1;
    if (o->other >= 0) {
        int32_t named = graph_node(g);

        graph_other_string(g, o->key[o->n], o->names, named);
        add_value(g, named, o->other, o->after[o->n]);
    }
    return add_rest(o, close, e);
}

int schema_object(struct schema_reader *s, const json_t *schema, bool keywords, int32_t node,
                  int32_t end, struct err *e)
{
    struct object o = {.s = s, .keywords = keywords};
    int rc = read_members(&o, schema, e);

    if (rc == 0)
        rc = add_object(&o, node, end, e);
    json_decref(o.names);
    free(o.members);
    free(o.key);
    free(o.after);
    return rc;
}

/* ---- arrays ---- */

/* Items one behind the other; the last node loops where there is no most. */
static void add_items(struct graph *g, int32_t item, int32_t inside, int32_t close, uint32_t min,
                      uint32_t max)
{
    uint32_t n = max == UINT32_MAX ? (min > 0 ? min : 1) : max;
    int32_t from = inside;

    if (min == 0)
        graph_free_arc(g, inside, close);
    for (uint32_t i = 1; i <= n; i++) {
        int32_t after = graph_node(g), comma = graph_node(g), next = graph_node(g);
        bool last = i == n;

        graph_call_inside(g, from, item, after);
        if (i >= min)
            graph_call(g, after, rule_space(g), close);
        if (!last || max == UINT32_MAX) {
            graph_bytes(g, after, ',', ',', comma);
            graph_call(g, comma, rule_space(g), next);
        }
        if (last && max == UINT32_MAX)
            graph_call_inside(g, next, item, after);
        from = next;
    }
}

int schema_array(struct schema_reader *s, const json_t *schema, int32_t node, int32_t end,
                 struct err *e)
{
    const json_t *items = json_object_get(schema, "items");
    struct graph *g = s->g;
    int32_t item, open = graph_node(g), inside = graph_node(g), close = graph_node(g);
    uint32_t min = 0, max = UINT32_MAX;

    if (schema_count(s, schema, "minItems", &min, e) < 0 ||
        schema_count(s, schema, "maxItems", &max, e) < 0)
        return -1;
    if (min > max)
        return schema_refuse(s, e, "maxItems", "maxItems is below minItems");
    if (min > ITEMS_MAX || (max != UINT32_MAX && max > ITEMS_MAX))
        return schema_refuse(s, e, min > ITEMS_MAX ? "minItems" : "maxItems",
                             "more than %d items are not counted", ITEMS_MAX);
    item = items ? schema_part(s, items, "items", e) : rule_value(g);
    if (item < 0)
        return -1;
    graph_bytes(g, node, '[', '[', open);
    graph_call_inside(g, open, rule_space(g), inside);
    add_items(g, item, inside, close, min, max);
    graph_bytes(g, close, ']', ']', end);
    return 0;
}
