#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/utf8.h"

/* jansson's parser recurses (2048 levels at most); the limits are checked before it sees the text.
 */
int json_check_nesting(const char *text, size_t len, struct err *e)
{
    int depth = 0, nests = 0;
    bool in_string = false;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > JSON_DEPTH_MAX)
                return err_set(e, ERR_FORMAT, "JSON nested deeper than %d levels", JSON_DEPTH_MAX);
            if (++nests > JSON_NESTS_MAX)
                return err_set(e, ERR_FORMAT, "JSON of more than %d lists and objects",
                               JSON_NESTS_MAX);
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return 0;
}

json_t *json_parse(const char *text, size_t len, struct err *e)
{
    json_error_t at;

    if (json_check_nesting(text, len, e) < 0)
        return NULL;
    return json_load_text(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &at,
                          e);
}

static int read_whole(int fd, char *to, size_t n, struct err *e)
{
    size_t got = 0;

    while (got < n) {
        ssize_t r = pread(fd, to + got, n - got, (off_t)got);

        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_io(e, "read");
        if (r == 0)
            return err_set(e, ERR_FORMAT, "file became shorter while it was read");
        got += (size_t)r;
    }
    return 0;
}

json_t *json_parse_file(int dir_fd, const char *name, size_t max_bytes, struct err *e)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    json_t *v = NULL;
    char *text = NULL;
    struct stat st;

    if (fd < 0) {
        err_io(e, "open %s", name);
        return NULL;
    }
    if (fstat(fd, &st) < 0) {
        err_io(e, "stat %s", name);
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(e, ERR_FORMAT, "%s is not a regular file", name);
        goto done;
    }
    if ((uint64_t)st.st_size > max_bytes) {
        err_set(e, ERR_FORMAT, "%s has %lld bytes, of at most %zu", name, (long long)st.st_size,
                max_bytes);
        goto done;
    }
    text = malloc((size_t)st.st_size + 1);
    if (!text) {
        err_nomem(e);
        goto done;
    }
    if (read_whole(fd, text, (size_t)st.st_size, e) < 0)
        goto done;
    v = json_parse(text, (size_t)st.st_size, e);
    if (!v)
        err_wrap(e, "%s", name);

done:
    free(text);
    close(fd);
    return v;
}

static const json_t *present(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return v && !json_is_null(v) ? v : NULL;
}

int json_get_str(const json_t *o, const char *key, const char **out, struct err *e)
{
    if (!present(o, key))
        return err_set(e, ERR_ARG, "\"%s\" is missing", key);
    return json_opt_str(o, key, out, e);
}

int json_get_int(const json_t *o, const char *key, int64_t *out, struct err *e)
{
    if (!present(o, key))
        return err_set(e, ERR_ARG, "\"%s\" is missing", key);
    return json_opt_int(o, key, out, e);
}

const char *json_text_or(const json_t *o, const char *key, const char *absent)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : absent;
}

int json_opt_str(const json_t *o, const char *key, const char **out, struct err *e)
{
    const json_t *v = present(o, key);

    if (!v)
        return 0;
    if (!json_is_string(v))
        return err_set(e, ERR_ARG, "\"%s\" must be a string", key);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return err_set(e, ERR_ARG, "\"%s\" holds a NUL character", key);
    *out = json_string_value(v);
    return 0;
}

int json_opt_bool(const json_t *o, const char *key, bool *out, struct err *e)
{
    const json_t *v = present(o, key);

    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return err_set(e, ERR_ARG, "\"%s\" must be true or false", key);
    *out = json_is_true(v);
    return 0;
}

bool json_is_whole(const json_t *v, int64_t *out)
{
    double d;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v))
        return false;
    d = json_real_value(v);
    if (!(fabs(d) <= 9007199254740992.0) || d != floor(d))
        return false;
    *out = (int64_t)d;
    return true;
}

int json_opt_int(const json_t *o, const char *key, int64_t *out, struct err *e)
{
    const json_t *v = present(o, key);

    if (!v)
        return 0;
    if (!json_is_whole(v, out))
        return err_set(e, ERR_ARG, "\"%s\" must be an integer", key);
    return 0;
}

int json_opt_num(const json_t *o, const char *key, double *out, struct err *e)
{
    const json_t *v = present(o, key);

    if (!v)
        return 0;
    if (!json_is_number(v))
        return err_set(e, ERR_ARG, "\"%s\" must be a number", key);
    *out = json_number_value(v);
    return 0;
}

void json_write_str(struct buf *b, const char *s, size_t len)
{
    buf_add_char(b, '"');
    for (size_t i = 0; i < len; i++) {
        unsigned char c;
        size_t run = i;

        while (run < len && (unsigned char)s[run] >= 0x20 && s[run] != '"' && s[run] != '\\')
            run++;
        buf_add(b, s + i, run - i);
        i = run;
        if (i == len)
            break;
        c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            buf_printf(b, "\\%c", c);
        else if (c == '\n')
            buf_add_str(b, "\\n");
        else if (c == '\r')
            buf_add_str(b, "\\r");
        else if (c == '\t')
            buf_add_str(b, "\\t");
        else
            buf_printf(b, "\\u%04x", c);
    }
    buf_add_char(b, '"');
}

/* Shortest of %.1g .. %.17g that reads back to the same value. */
void json_write_real(struct buf *b, double v)
{
    char text[40];

    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    buf_add_str(b, text);
    if (!strpbrk(text, ".eEn"))
        buf_add_str(b, ".0");
}

static void indent_to(struct buf *b, int level)
{
    buf_add_char(b, '\n');
    for (int i = 0; i < level; i++)
        buf_add_str(b, "  ");
}

/* level < 0: compact. */
static void write_value(struct buf *b, const json_t *v, int level)
{
    int inner = level < 0 ? -1 : level + 1;
    const char *key;
    json_t *item;
    size_t i, n = 0;

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        buf_add_char(b, '{');
        json_object_foreach ((json_t *)(uintptr_t)v, key, item) {
            if (n++)
                buf_add_char(b, ',');
            if (level >= 0)
                indent_to(b, inner);
            json_write_str(b, key, strlen(key));
            buf_add_str(b, level < 0 ? ":" : ": ");
            write_value(b, item, inner);
        }
        if (n && level >= 0)
            indent_to(b, level);
        buf_add_char(b, '}');
        break;
    case JSON_ARRAY:
        buf_add_char(b, '[');
        json_array_foreach (v, i, item) {
            if (i)
                buf_add_char(b, ',');
            if (level >= 0)
                indent_to(b, inner);
            write_value(b, item, inner);
        }
        if (json_array_size(v) && level >= 0)
            indent_to(b, level);
        buf_add_char(b, ']');
        break;
    case JSON_STRING:
        json_write_str(b, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        buf_printf(b, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        break;
    case JSON_REAL:
        json_write_real(b, json_real_value(v));
        break;
    case JSON_TRUE:
        buf_add_str(b, "true");
        break;
    case JSON_FALSE:
        buf_add_str(b, "false");
        break;
    case JSON_NULL:
        buf_add_str(b, "null");
        break;
    }
}

void json_write(struct buf *b, const json_t *v)
{
    write_value(b, v, -1);
}

void json_write_pretty(struct buf *b, const json_t *v)
{
    write_value(b, v, 0);
}

bool json_holds_nul(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v);
}

json_t *json_repaired(const char *s)
{
    json_t *v = json_string(s);
    char *copy = v ? NULL : strdup(s);

    if (!copy)
        return v;
    utf8_repair(copy);
    v = json_string(copy);
    free(copy);
    return v;
}
