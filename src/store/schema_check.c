/* The walk of a value along the schema, gathering every error in document order. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "store/name.h"
#include "store/schema.h"
#include "store/schema_impl.h"
#include "store/schema_node.h"

enum { PARENT_MAX_CHARS = 512 };

struct check {
    enum schema_form form;
    struct buf path; /* "$.optimizer.state" */
    json_t *errors;
    bool truncated;
    bool failed; /* out of memory */
};

/* ---- gathering ---- */

static void append(struct check *c, json_t *error)
{
    if (!error || json_array_append_new(c->errors, error) < 0)
        c->failed = true;
}

__attribute__((format(printf, 4, 5))) static void report(struct check *c, const char *keyword,
                                                         const char *key, const char *fmt, ...)
{
    char text[256];
    json_t *error;
    va_list ap;

    if (c->truncated)
        return;
    if (json_array_size(c->errors) == SCHEMA_MAX_ERRORS) {
        c->truncated = true;
        append(c, json_pack("{s:s, s:s, s:s}", "path", "$", "message",
                            "there are more errors than these", "keyword", "truncated"));
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    error = json_pack("{s:s, s:s, s:s}", "path", buf_str(&c->path), "message", text, "keyword",
                      keyword);
    if (!error) /* the cut of vsnprintf may have split a character */
        error = json_pack("{s:s, s:s, s:s}", "path", buf_str(&c->path), "message",
                          "this value is not allowed here", "keyword", keyword);
    if (error && key && json_object_set_new(error, "key", json_string(key)) < 0)
        c->failed = true;
    append(c, error);
}

static size_t enter(struct check *c, const char *key)
{
    size_t before = c->path.len;

    buf_add_char(&c->path, '.');
    buf_add_str(&c->path, key);
    return before;
}

static void leave(struct check *c, size_t before)
{
    if (c->path.failed)
        return;
    c->path.len = before;
    c->path.data[before] = 0;
}

/* ---- single keywords ---- */

static const struct {
    const char *type;
    const char *article;
} articles[] = {
    {"object", "an object"}, {"string", "a string"}, {"integer", "an integer"},
    {"number", "a number"},  {"null", "null"},
};

static const char *with_article(const char *type)
{
    for (size_t i = 0; i < sizeof articles / sizeof articles[0]; i++)
        if (strcmp(articles[i].type, type) == 0)
            return articles[i].article;
    return type;
}

/* A number without fraction, however it is written and however large: 500.0 and 1e300 too. */
static bool is_integer(const json_t *v)
{
    return json_is_integer(v) ||
           (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
}

static bool has_type(const json_t *v, const char *type)
{
    switch (type[0]) {
    case 'o':
        return json_is_object(v);
    case 's':
        return json_is_string(v);
    case 'i':
        return is_integer(v);
    case 'n':
        return type[2] == 'l' ? json_is_null(v) : json_is_number(v);
    default:
        return false;
    }
}

static void check_enum(struct check *c, const json_t *allowed, const json_t *v)
{
    struct buf list = {0};
    json_t *item;
    size_t i;

    json_array_foreach (allowed, i, item)
        if (json_equal(item, v))
            return;
    json_array_foreach (allowed, i, item)
        buf_printf(&list, "%s%s", i ? ", " : "", json_string_value(item));
    report(c, "enum", NULL, "must be one of: %s", buf_str(&list));
    buf_release(&list);
}

static void check_text(struct check *c, const struct schema_node *n, const json_t *v)
{
    int matches = n->pattern ? schema_matches(n->regex, v) : 1;

    c->failed |= matches < 0;
    if (matches == 0)
        report(c, "pattern", NULL, "must match %s", n->pattern);
    if (n->date_time && !schema_is_date_time(json_string_value(v), json_string_length(v)))
        report(c, "format", NULL, "must be an RFC 3339 date-time");
}

static void check_bounds(struct check *c, const struct schema_node *n, const json_t *v)
{
    double x = json_number_value(v);

    if (n->low && x < json_number_value(n->low))
        report(c, "minimum", NULL, "must be at least %g", json_number_value(n->low));
    if (n->high && x > json_number_value(n->high))
        report(c, "maximum", NULL, "must be at most %g", json_number_value(n->high));
}

/* ---- rules of this document type that the keywords cannot say ---- */

static bool has_control(const json_t *v)
{
    const char *s = json_string_value(v);

    for (size_t i = 0; i < json_string_length(v); i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f ||
            /* U+0080 .. U+009F in UTF-8 */
            ((unsigned char)s[i] == 0xc2 && (unsigned char)s[i + 1] < 0xa0))
            return true;
    return false;
}

static void check_parent(struct check *c, const json_t *parent)
{
    if (!json_is_string(parent))
        return;
    if (has_control(parent))
        report(c, "pattern", NULL, "must not hold control characters");
    else if (ckpt_name_chars(json_string_value(parent)) > PARENT_MAX_CHARS)
        report(c, "maxLength", NULL, "must have at most %d characters", PARENT_MAX_CHARS);
}

static void check_step(struct check *c, const json_t *step)
{
    if (is_integer(step) && json_number_value(step) > (double)CKPT_STEP_MAX)
        report(c, "maximum", NULL, "must be at most %" PRId64, (int64_t)CKPT_STEP_MAX);
}

/* A NUL would cut these where they become C strings. */
static void check_nul(struct check *c, const json_t *v)
{
    if (json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v))
        report(c, "pattern", NULL, "must not hold a NUL character");
}

/* With the path at a top-level member; here, so that its errors stand in document order. */
static void check_top_member(struct check *c, const char *key, const json_t *v)
{
    if (strcmp(key, "step") == 0)
        check_step(c, v);
    else if (strcmp(key, "parent") == 0 && c->form == SCHEMA_CALLER)
        check_parent(c, v);
    else if (c->form == SCHEMA_FILE &&
             (strcmp(key, "name") == 0 || strcmp(key, "base_model") == 0 ||
              strcmp(key, "run_id") == 0 || strcmp(key, "parent") == 0))
        check_nul(c, v);
}

/* ---- objects ---- */

static void check_node(struct check *c, const struct schema_node *n, const json_t *v);

static bool caller_skips(const struct check *c, const struct schema_member *m)
{
    return c->form == SCHEMA_CALLER && m && m->writer == SCHEMA_BY_SERVER;
}

static void check_members(struct check *c, const struct schema_node *n, const json_t *v)
{
    const char *key;
    json_t *member;

    json_object_foreach ((json_t *)(uintptr_t)v, key, member) {
        const struct schema_member *of = schema_member_find(n, key);
        size_t before;

        if (!of && n->closed) {
            report(c, "additionalProperties", key, "unknown key \"%s\"", key);
            continue;
        }
        if (!of || caller_skips(c, of))
            continue;
        before = enter(c, key);
        check_node(c, &of->node, member);
        if (before == 1)
            check_top_member(c, key, member);
        leave(c, before);
    }
}

static void check_required(struct check *c, const struct schema_node *n, const json_t *v)
{
    json_t *key;
    size_t i;

    json_array_foreach (n->required, i, key) {
        const char *name = json_string_value(key);

        if (!json_object_get(v, name) && !caller_skips(c, schema_member_find(n, name)))
            report(c, "required", name, "\"%s\" is missing", name);
    }
}

/* ---- one value ---- */

/* The branch whose type fits gives the errors, so that a wrong score is told as a wrong score. */
static void check_any_of(struct check *c, const struct schema_node *n, const json_t *v)
{
    struct buf types = {0};

    for (size_t i = 0; i < n->n_branches; i++)
        if (has_type(v, n->branches[i].type)) {
            check_node(c, &n->branches[i], v);
            return;
        }
    for (size_t i = 0; i < n->n_branches; i++)
        buf_printf(&types, "%s%s", i ? " or " : "", with_article(n->branches[i].type));
    report(c, "anyOf", NULL, "must be %s", buf_str(&types));
    buf_release(&types);
}

static void check_node(struct check *c, const struct schema_node *n, const json_t *v)
{
    if (n->n_branches > 0) {
        check_any_of(c, n, v);
        return;
    }
    if (*n->type && !has_type(v, n->type)) {
        report(c, "type", NULL, "must be %s", with_article(n->type));
        return;
    }
    if (n->constant && !json_equal(n->constant, v))
        report(c, "const", NULL, "must be \"%s\"", json_string_value(n->constant));
    if (n->allowed)
        check_enum(c, n->allowed, v);
    if (json_is_string(v))
        check_text(c, n, v);
    else if (json_is_number(v))
        check_bounds(c, n, v);
    else if (json_is_object(v)) {
        check_members(c, n, v);
        check_required(c, n, v);
    }
}

json_t *schema_check(const struct schema *s, const json_t *value, enum schema_form form,
                     struct err *e)
{
    struct check c = {.form = form};

    if (schema_problem(s)) {
        err_set(e, ERR_FORMAT, "the manifest schema cannot be used: %s", schema_problem(s));
        return NULL;
    }
    c.errors = json_array();
    c.failed = !c.errors;
    buf_add_char(&c.path, '$');
    check_node(&c, s->node, value);
    if (c.failed || c.path.failed) {
        err_nomem(e);
        json_decref(c.errors);
        c.errors = NULL;
    }
    buf_release(&c.path);
    return c.errors;
}
