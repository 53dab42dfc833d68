/* What a model directory says about its chat format: templates by name, and the special tokens that
 * they print. */
#include "text/chat_source.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/tokenizer_text.h"
#include "text/utf8.h"

static const char default_name[] = "default";

static int add_template(struct chat_source *s, const char *name, const char *text, size_t len,
                        struct err *e)
{
    struct chat_text *t = &s->templates[s->n];

    if (len > CHAT_TEMPLATE_MAX)
        return err_set(e, ERR_FORMAT, "the chat template \"%.40s\" has %zu bytes, of at most %d",
                       name, len, CHAT_TEMPLATE_MAX);
    if (s->n == CHAT_TEMPLATES_MAX)
        return err_set(e, ERR_FORMAT, "more than %d chat templates", CHAT_TEMPLATES_MAX);
    if (utf8_check(text, len) != len)
        return err_set(e, ERR_FORMAT, "the chat template \"%.40s\" is not UTF-8", name);
    *t = (struct chat_text){.name = strdup(name), .text = malloc(len + 1), .len = len};
    s->n++;
    if (!t->name || !t->text)
        return err_nomem(e);
    memcpy(t->text, text, len);
    t->text[len] = '\0';
    sha256_of(text, len, t->key);
    return 0;
}

/* "chat_template": "...", or [{"name": "default", "template": "..."}, ...]. */
static int add_from_config(struct chat_source *s, const json_t *v, struct err *e)
{
    const json_t *item;
    size_t i;

    if (!v || json_is_null(v))
        return 0;
    if (json_is_string(v))
        return add_template(s, default_name, json_string_value(v), json_string_length(v), e);
    if (!json_is_array(v))
        return err_set(e, ERR_FORMAT, "chat_template is neither a string nor a list");
    json_array_foreach (v, i, item) {
        const char *name, *text;

        if (json_get_str(item, "name", &name, e) < 0 ||
            json_get_str(item, "template", &text, e) < 0)
            return err_wrap(e, "chat_template[%zu]", i);
        if (add_template(s, name, text, strlen(text), e) < 0)
            return -1;
    }
    return 0;
}

/* Names that templates know: "bos_token": "<s>" or {"content": "<s>"}. */
static void note_special(struct chat_source *s, const json_t *config)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = json_object_get(config, names[i]);

        if (json_is_object(v))
            v = json_object_get(v, "content");
        if (!json_is_string(v))
            continue;
        buf_printf(&s->special, "\"%s\":", names[i]);
        json_write_str(&s->special, json_string_value(v), json_string_length(v));
        buf_add_char(&s->special, ',');
    }
}

struct chat_source *chat_source_new(const json_t *config, const char *jinja, struct err *e)
{
    struct chat_source *s = calloc(1, sizeof *s);
    int rc;

    if (!s) {
        err_nomem(e);
        return NULL;
    }
    atomic_init(&s->refs, 1);
    note_special(s, config);
    rc = jinja ? add_template(s, default_name, jinja, strlen(jinja), e)
               : add_from_config(s, json_object_get(config, "chat_template"), e);
    if (rc == 0 && s->special.failed)
        rc = err_nomem(e);
    if (rc < 0) {
        if (e->code == ERR_ARG) /* a file is wrong, not the caller */
            e->code = ERR_FORMAT;
        chat_source_unref(s);
        return NULL;
    }
    return s;
}

/* 0 or -1; a file that is not there is no error and leaves *out alone. */
static int read_jinja(int dir_fd, struct buf *out, struct err *e)
{
    struct err why = {0};

    if (text_read_file(dir_fd, "chat_template.jinja", CHAT_TEMPLATE_MAX, out, &why) == 0 ||
        why.code == ERR_NOT_FOUND)
        return 0;
    *e = why;
    return -1;
}

struct chat_source *chat_source_open(int dir_fd, struct err *e)
{
    struct err missing = {0};
    json_t *config = json_parse_file(dir_fd, "tokenizer_config.json", 16 << 20, &missing);
    struct chat_source *s = NULL;
    struct buf jinja = {0};

    if (!config && missing.code != ERR_NOT_FOUND) {
        *e = missing;
        return NULL;
    }
    if (read_jinja(dir_fd, &jinja, e) == 0)
        s = chat_source_new(config, jinja.data, e);
    buf_release(&jinja);
    json_decref(config);
    return s;
}

struct chat_source *chat_source_ref(struct chat_source *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void chat_source_unref(struct chat_source *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->templates[i].name);
        free(s->templates[i].text);
    }
    buf_release(&s->special);
    free(s);
}

const struct chat_text *chat_source_find(const struct chat_source *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->templates[i].name, name) == 0)
            return &s->templates[i];
    return NULL;
}

bool chat_source_has(const struct chat_source *s, const char *name)
{
    return chat_source_find(s, name ? name : default_name) != NULL;
}

static const struct chat_text *tools_template(const struct chat_source *s)
{
    const struct chat_text *t = chat_source_find(s, "tool_use");

    return t ? t : chat_source_find(s, default_name);
}

bool chat_source_prints(const struct chat_source *s, const char *text)
{
    const struct chat_text *t = tools_template(s);

    return t && strstr(t->text, text);
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Behind the quote that begins at p; or the end of the text. */
static const char *skip_string(const char *p)
{
    char quote = *p++;

    while (*p && *p != quote)
        p += *p == '\\' && p[1] ? 2 : 1;
    return *p ? p + 1 : p;
}

/* Looks through one {{ }} or {% %} part, from behind its opening; *end: behind its closing. */
static bool part_uses(const char *p, const char *variable, const char **end)
{
    size_t n = strlen(variable);
    bool found = false;

    while (*p && !((p[0] == '}' || p[0] == '%') && p[1] == '}')) {
        const char *name = p;

        if (*p == '\'' || *p == '"') {
            p = skip_string(p);
            continue;
        }
        while (is_name_char(*p))
            p++;
        found = found || ((size_t)(p - name) == n && memcmp(name, variable, n) == 0);
        p += p == name;
    }
    *end = p;
    return found;
}

bool chat_source_uses(const struct chat_source *s, const char *variable)
{
    const struct chat_text *t = tools_template(s);
    const char *p = t ? t->text : "";

    while ((p = strchr(p, '{'))) {
        if (p[1] != '{' && p[1] != '%')
            p++;
        else if (part_uses(p + 2, variable, &p))
            return true;
    }
    return false;
}
