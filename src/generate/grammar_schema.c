/* generate/grammar_schema.c - keywords, references, alternatives: which rule a schema asks for.
 * Source: JSON Schema, draft 2020-12 (and "definitions" of draft 7). */
#include "generate/grammar_schema.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "generate/grammar.h"
#include "generate/grammar_graph.h"

enum { SCHEMA_DEPTH_MAX = 200, ALTERNATIVES_MAX = 64 };

enum { INTEGER = 1 << JSON_INTEGER, NUMBER = 1 << JSON_REAL, BOOLEAN = 1 << JSON_TRUE };
enum { STRING = 1 << JSON_STRING, OBJECT = 1 << JSON_OBJECT, ARRAY = 1 << JSON_ARRAY };
enum { NONE = 1 << JSON_NULL };

/* ---- places and errors ---- */

int schema_refuse(struct schema_reader *s, struct err *e, const char *key, const char *fmt, ...)
{
    char message[sizeof e->msg];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    err_set(e, ERR_ARG, "%s", message);
    return err_detail(e, "%s%s%s", buf_str(&s->path), key ? "." : "", key ? key : "");
}

int schema_count(struct schema_reader *s, const json_t *schema, const char *key, uint32_t *out,
                 struct err *e)
{
    const json_t *v = json_object_get(schema, key);
    int64_t n;

    if (!v)
        return 0;
    if (!json_is_number(v) || !json_is_whole(v, &n) || n < 0 || n > INT32_MAX)
        return schema_refuse(s, e, key, "%s must be a whole number of 0 or more", key);
    *out = (uint32_t)n;
    return 0;
}

void schema_reader_release(struct schema_reader *s)
{
    free(s->rules);
    buf_release(&s->path);
}

/* ---- keywords ---- */

static const struct {
    const char *name;
    unsigned types; /* whose values it limits; 0: of any */
    bool plain;     /* says nothing about the value */
} known[] = {
    {"type", 0, false},
    {"enum", 0, false},
    {"const", 0, false},
    {"anyOf", 0, false},
    {"$ref", 0, false},
    {"properties", OBJECT, false},
    {"required", OBJECT, false},
    {"additionalProperties", OBJECT, false},
    {"items", ARRAY, false},
    {"minItems", ARRAY, false},
    {"maxItems", ARRAY, false},
    {"minLength", STRING, false},
    {"maxLength", STRING, false},
    {"pattern", STRING, false},
    {"minimum", NUMBER, false},
    {"maximum", NUMBER, false},
    {"exclusiveMinimum", NUMBER, false},
    {"exclusiveMaximum", NUMBER, false},
    {"title", 0, true},
    {"description", 0, true},
    {"default", 0, true},
    {"examples", 0, true},
    {"deprecated", 0, true},
    {"readOnly", 0, true},
    {"writeOnly", 0, true},
    {"$comment", 0, true},
    {"$schema", 0, true},
    {"$id", 0, true},
    {"$defs", 0, true},
    {"definitions", 0, true},
    {"strict", 0, true}, /* some programs put it here */
};

enum { N_KEYWORDS = sizeof known / sizeof *known };

static int find_keyword(const char *name)
{
    for (int i = 0; i < N_KEYWORDS; i++)
        if (strcmp(known[i].name, name) == 0)
            return i;
    return -1;
}

/* Every keyword is one of ours; *types: those whose values the present ones limit. */
static int check_keywords(struct schema_reader *s, const json_t *schema, unsigned *types,
                          struct err *e)
{
    const char *name;
    json_t *value;

    *types = 0;
    json_object_foreach ((json_t *)(uintptr_t)schema, name, value) {
        int k = find_keyword(name);

        if (k < 0)
            return schema_refuse(s, e, name, "the keyword \"%.60s\" is not supported", name);
        *types |= known[k].types;
    }
    return 0;
}

/* A keyword that decides alone: beside it only `also` and what says nothing may stand. */
static int check_alone(struct schema_reader *s, const json_t *schema, const char *key,
                       const char *also, struct err *e)
{
    const char *name;
    json_t *value;

    json_object_foreach ((json_t *)(uintptr_t)schema, name, value)
        if (strcmp(name, key) != 0 && strcmp(name, also) != 0 &&
            !known[find_keyword(name)].plain)
            return schema_refuse(s, e, name, "\"%s\" beside \"%s\" is not supported", name, key);
    return 0;
}

/* ---- types ---- */

static unsigned type_bit(const char *name)
{
    static const struct {
        const char *name;
        unsigned bit;
    } types[] = {{"object", OBJECT},   {"array", ARRAY},     {"string", STRING}, {"number", NUMBER},
                 {"integer", INTEGER}, {"boolean", BOOLEAN}, {"null", NONE}};

    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].bit;
    return 0;
}

/* "type": a name or a list of names; absent: *types stays. */
static int read_types(struct schema_reader *s, const json_t *schema, unsigned *types, struct err *e)
{
    const json_t *v = json_object_get(schema, "type");
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (!v)
        return 0;
    *types = 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_is_array(v) ? json_array_get(v, i) : v);
        unsigned bit = type_bit(name);

        if (!bit)
            return schema_refuse(s, e, "type", "the type %.40s is not known", name ? name : "here");
        *types |= bit;
    }
    return n ? 0 : schema_refuse(s, e, "type", "type must name at least one type");
}

static int string_rule(struct schema_reader *s, const json_t *schema, int32_t node, int32_t end,
                       struct err *e)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    uint32_t min = 0, max = UINT32_MAX;
    struct err why = {0};

    if (schema_count(s, schema, "minLength", &min, e) < 0 ||
        schema_count(s, schema, "maxLength", &max, e) < 0)
        return -1;
    if (min > max)
        return schema_refuse(s, e, "maxLength", "maxLength is below minLength");
    if (!pattern) {
        bool any = min == 0 && max == UINT32_MAX;

        graph_call(s->g, node, any ? rule_string(s->g) : rule_string_of_length(s->g, min, max),
                   end);
        return 0;
    }
    if (!json_is_string(pattern))
        return schema_refuse(s, e, "pattern", "pattern must be a string");
    if (graph_pattern(s->g, node, json_string_value(pattern), json_string_length(pattern), min, max,
                      end, &why) == 0)
        return 0;
    if (why.code == ERR_ARG)
        return schema_refuse(s, e, "pattern", "%s", why.msg);
    *e = why;
    return -1;
}

static int add_types(struct schema_reader *s, const json_t *schema, unsigned types, int32_t node,
                     int32_t end, struct err *e)
{
    struct graph *g = s->g;

    if (types & BOOLEAN) {
        graph_text_to(g, node, rule_word(g, JSON_TRUE), strlen(rule_word(g, JSON_TRUE)), end);
        graph_text_to(g, node, rule_word(g, JSON_FALSE), strlen(rule_word(g, JSON_FALSE)), end);
    }
    if (types & NONE)
        graph_text_to(g, node, rule_word(g, JSON_NULL), strlen(rule_word(g, JSON_NULL)), end);
    if ((types & STRING) && string_rule(s, schema, node, end, e) < 0)
        return -1;
    if ((types & (NUMBER | INTEGER)) &&
        schema_number(s, schema, !(types & NUMBER), node, end, e) < 0)
        return -1;
    if ((types & OBJECT) && schema_object(s, schema, false, node, end, e) < 0)
        return -1;
    return types & ARRAY ? schema_array(s, schema, node, end, e) : 0;
}

/* ---- references ---- */

/* One step of a JSON pointer (RFC 6901); *p moves behind it. */
static const json_t *pointer_step(const json_t *at, const char **p)
{
    char name[256];
    size_t n = 0;
    const json_t *next;
    char *end;
    long index;

    for (; **p && **p != '/'; ++*p) {
        char c = **p;

        if (c == '~' && ((*p)[1] == '0' || (*p)[1] == '1'))
            c = *++*p == '0' ? '~' : '/';
        if (n + 1 == sizeof name)
            return NULL;
        name[n++] = c;
    }
    name[n] = '\0';
    if (!json_is_array(at))
        return json_object_get(at, name);
    index = strtol(name, &end, 10);
    next = *end || end == name || index < 0 ? NULL : json_array_get(at, (size_t)index);
    return next;
}

static const json_t *find_ref(const json_t *root, const char *ref)
{
    if (*ref++ != '#')
        return NULL;
    while (root && *ref == '/') {
        ref++;
        root = pointer_step(root, &ref);
    }
    return *ref ? NULL : root;
}

static int ref_rule(struct schema_reader *s, const json_t *schema, int32_t node, int32_t end,
                    struct err *e)
{
    const json_t *v = json_object_get(schema, "$ref");
    const json_t *target = json_is_string(v) ? find_ref(s->root, json_string_value(v)) : NULL;
    int32_t rule;

    if (check_alone(s, schema, "$ref", "", e) < 0)
        return -1;
    if (!target)
        return schema_refuse(s, e, "$ref",
                             "the reference leads nowhere; only \"#/...\" inside the schema is "
                             "supported");
    rule = schema_part(s, target, "$ref", e);
    graph_call(s->g, node, rule, end);
    return rule < 0 ? -1 : 0;
}

static int any_of_rule(struct schema_reader *s, const json_t *schema, int32_t node, int32_t end,
                       struct err *e)
{
    const json_t *list = json_object_get(schema, "anyOf");
    size_t n = json_array_size(list);

    if (check_alone(s, schema, "anyOf", "", e) < 0)
        return -1;
    if (n == 0 || n > ALTERNATIVES_MAX)
        return schema_refuse(s, e, "anyOf", "anyOf must be a list of 1 to %d schemas",
                             ALTERNATIVES_MAX);
    for (size_t i = 0; i < n; i++) {
        char key[32];
        int32_t rule;

        snprintf(key, sizeof key, "anyOf[%zu]", i);
        rule = schema_part(s, json_array_get(list, i), key, e);
        if (rule < 0)
            return -1;
        graph_call(s->g, node, rule, end);
    }
    return 0;
}

/* ---- one schema ---- */

static int const_rule(struct schema_reader *s, const json_t *schema, unsigned types, int32_t node,
                      int32_t end, struct err *e)
{
    json_t *one = json_pack("[O]", json_object_get(schema, "const"));
    int rc = one ? check_alone(s, schema, "const", "type", e) : err_nomem(e);

    if (rc == 0)
        rc = schema_enum(s, one, types, node, end, e);
    json_decref(one);
    return rc;
}

static int object_schema(struct schema_reader *s, const json_t *schema, int32_t node, int32_t end,
                         struct err *e)
{
    const json_t *list = json_object_get(schema, "enum");
    unsigned limited, types = 0;

    if (check_keywords(s, schema, &limited, e) < 0 || read_types(s, schema, &types, e) < 0)
        return -1;
    if (json_object_get(schema, "$ref"))
        return ref_rule(s, schema, node, end, e);
    if (json_object_get(schema, "anyOf"))
        return any_of_rule(s, schema, node, end, e);
    if (json_object_get(schema, "const"))
        return const_rule(s, schema, types, node, end, e);
    if (list)
        return check_alone(s, schema, "enum", "type", e) < 0
                   ? -1
                   : schema_enum(s, list, types, node, end, e);
    if (types || limited)
        return add_types(s, schema, types ? types : limited, node, end, e);
    graph_call(s->g, node, rule_value(s->g), end);
    return 0;
}

static int any_schema(struct schema_reader *s, const json_t *schema, int32_t node, int32_t end,
                      struct err *e)
{
    if (s->depth > SCHEMA_DEPTH_MAX)
        return schema_refuse(s, e, NULL, "it is nested deeper than %d levels", SCHEMA_DEPTH_MAX);
    if (json_is_object(schema))
        return object_schema(s, schema, node, end, e);
    if (json_is_true(schema)) {
        graph_call(s->g, node, rule_value(s->g), end);
        return 0;
    }
    return json_is_false(schema) ? schema_refuse(s, e, NULL, "no value fits the schema false")
                                 : schema_refuse(s, e, NULL, "a schema must be an object or true");
}

static int remember(struct schema_reader *s, const json_t *schema, int32_t rule, struct err *e)
{
    if (s->n_rules == s->cap_rules) {
        size_t cap = s->cap_rules ? 2 * s->cap_rules : 64;
        struct schema_rule *rules = realloc(s->rules, cap * sizeof *rules);

        if (!rules)
            return err_nomem(e);
        s->rules = rules;
        s->cap_rules = cap;
    }
    s->rules[s->n_rules++] = (struct schema_rule){schema, rule};
    return 0;
}

int32_t schema_rule(struct schema_reader *s, const json_t *schema, struct err *e)
{
    int32_t node, end;

    for (size_t i = 0; i < s->n_rules; i++)
        if (s->rules[i].schema == schema && json_is_object(schema))
            return s->rules[i].rule;
    node = graph_node(s->g);
    end = graph_node(s->g);
    graph_final(s->g, end);
    if (remember(s, schema, node, e) < 0)
        return NO_RULE;
    s->depth++;
    if (any_schema(s, schema, node, end, e) < 0)
        return NO_RULE;
    s->depth--;
    return node;
}

int32_t schema_part(struct schema_reader *s, const json_t *schema, const char *key, struct err *e)
{
    size_t before = s->path.len;
    int32_t rule;

    if (key)
        buf_printf(&s->path, ".%s", key);
    rule = schema_rule(s, schema, e);
    s->path.len = before;
    if (s->path.data)
        s->path.data[before] = '\0';
    return rule;
}

int schema_arguments(struct schema_reader *s, const json_t *schema, bool keywords, int32_t node,
                     int32_t end, struct err *e)
{
    unsigned limited, types = OBJECT;

    if (!json_is_object(schema))
        return schema_refuse(s, e, NULL, "a schema must be an object");
    if (check_keywords(s, schema, &limited, e) < 0 || read_types(s, schema, &types, e) < 0)
        return -1;
    if (!(types & OBJECT))
        return schema_refuse(s, e, "type", "arguments are an object");
    if (json_object_get(schema, "$ref") && !keywords)
        return ref_rule(s, schema, node, end, e);
    if (json_object_get(schema, "$ref") || json_object_get(schema, "anyOf") ||
        json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return schema_refuse(s, e, NULL, "arguments must be told by their properties");
    return schema_object(s, schema, keywords, node, end, e);
}

struct grammar *grammar_schema(const json_t *schema, struct err *e)
{
    struct graph g;
    struct schema_reader s = {.g = &g, .root = schema};
    int32_t rule;
    struct grammar *out = NULL;

    graph_init(&g);
    rule = schema_rule(&s, schema, e);
    if (rule >= 0)
        out = graph_finish(&g, rule, e);
    else
        graph_release(&g);
    schema_reader_release(&s);
    return out;
}
