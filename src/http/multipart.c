#include "http/multipart.h"

#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/str.h"
#include "base/utf8.h"

enum { PART_HEADER_MAX = 8192 };

/* ---- parameters of a header: ; name=value or ; name="quoted" ---- */

static const char *skip_space(const char *s, const char *end)
{
    while (s < end && (*s == ' ' || *s == '\t'))
        s++;
    return s;
}

/* The value of a quoted string as the clients write it: \" and \\ (RFC 2616), %22 (browsers). */
static const char *read_quoted(const char *s, const char *end, char *to, size_t size)
{
    size_t n = 0;

    for (; s < end && *s != '"'; s++) {
        char c = *s;

        if (c == '\\' && end - s > 1 && (s[1] == '"' || s[1] == '\\'))
            c = *++s;
        else if (end - s > 2 && strncmp(s, "%22", 3) == 0) {
            c = '"';
            s += 2;
        }
        if (n + 1 < size)
            to[n++] = c;
    }
    to[n] = '\0';
    return s < end ? s + 1 : NULL;
}

static const char *read_plain(const char *s, const char *end, char *to, size_t size)
{
    size_t n = 0;

    for (; s < end && !strchr("; \t", *s); s++)
        if (n + 1 < size)
            to[n++] = *s;
    to[n] = '\0';
    return s;
}

/* One parameter behind `s`, which points at its ';'. NULL: malformed. */
static const char *read_param(const char *s, const char *end, char name[32], char *value,
                              size_t size)
{
    size_t n = 0;

    s = skip_space(s + 1, end);
    for (; s < end && *s != '=' && *s != ';'; s++)
        if (n < 31)
            name[n++] = *s;
    name[n] = '\0';
    *value = '\0';
    if (s >= end || *s != '=')
        return s;
    s = skip_space(s + 1, end);
    s = s < end && *s == '"' ? read_quoted(s + 1, end, value, size)
                             : read_plain(s, end, value, size);
    return s ? skip_space(s, end) : NULL;
}

/* ---- where parts begin and end ---- */

static bool is_boundary(const char *s)
{
    size_t n = strlen(s);

    if (n == 0 || n > MULTIPART_BOUNDARY_MAX || s[n - 1] == ' ')
        return false;
    for (; *s; s++)
        if (*s < 0x20 || *s > 0x7e)
            return false;
    return true;
}

static int read_boundary(struct multipart *m, const char *type, struct err *e)
{
    static const char form[] = "multipart/form-data";
    char name[32], value[MULTIPART_BOUNDARY_MAX + 2];
    const char *s, *end = type ? type + strlen(type) : NULL;

    if (!type || strncasecmp(type, form, sizeof form - 1) != 0)
        return err_set(e, ERR_ARG, "Content-Type must be multipart/form-data");
    s = skip_space(type + sizeof form - 1, end);
    while (s && s < end && *s == ';') {
        s = read_param(s, end, name, value, sizeof value);
        if (s && strcasecmp(name, "boundary") == 0 && is_boundary(value)) {
            m->delimiter_len = 4 + strlen(value);
            memcpy(m->delimiter, "\r\n--", 4);
            memcpy(m->delimiter + 4, value, strlen(value) + 1);
            return 0;
        }
    }
    return err_set(e, ERR_ARG, "Content-Type names no usable boundary");
}

/* What follows a boundary: "--" ends the body, a line end begins a part. NULL: the text only looks
 * like the boundary. */
static const char *behind_boundary(const char *s, const char *end, bool *last)
{
    *last = end - s >= 2 && s[0] == '-' && s[1] == '-';
    if (*last)
        return s + 2;
    s = skip_space(s, end);
    return end - s >= 2 && s[0] == '\r' && s[1] == '\n' ? s + 2 : NULL;
}

/* The end of what begins at m->at; m->at moves behind the boundary there. NULL: there is none. */
static const char *find_boundary(struct multipart *m)
{
    const char *from = m->at;

    for (;;) {
        const char *hit = memmem(from, (size_t)(m->end - from), m->delimiter, m->delimiter_len);
        const char *next;

        if (!hit)
            return NULL;
        next = behind_boundary(hit + m->delimiter_len, m->end, &m->last);
        if (next) {
            m->at = next;
            return hit;
        }
        from = hit + 1;
    }
}

int multipart_begin(struct multipart *m, const char *content_type, const char *body, size_t len,
                    struct err *e)
{
    *m = (struct multipart){.at = body, .end = body + len};
    if (read_boundary(m, content_type, e) < 0)
        return -1;
    /* The first boundary has no line end before it when nothing stands there. */
    if (len >= m->delimiter_len - 2 && memcmp(body, m->delimiter + 2, m->delimiter_len - 2) == 0) {
        const char *next = behind_boundary(body + m->delimiter_len - 2, m->end, &m->last);

        if (next) {
            m->at = next;
            return 0;
        }
    }
    if (!find_boundary(m))
        return err_set(e, ERR_FORMAT, "the body holds no boundary as Content-Type names it");
    return 0;
}

/* ---- one part ---- */

/* Clients may send a path; only its last component is a name. */
static void tidy_filename(char *name)
{
    size_t n = strlen(name);
    char *s = name;

    for (char *p = name; *p; p++)
        if (*p == '/' || *p == '\\')
            s = p + 1;
    memmove(name, s, n - (size_t)(s - name) + 1);
    for (s = name; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '_';
}

static int read_disposition(struct multipart_part *p, const char *s, const char *end, struct err *e)
{
    static const char form[] = "form-data";
    char param[32], value[4 * MULTIPART_FILENAME_MAX];

    s = skip_space(s, end);
    if (end - s < (ptrdiff_t)sizeof form - 1 || strncasecmp(s, form, sizeof form - 1) != 0)
        return err_set(e, ERR_FORMAT, "a part's Content-Disposition is not form-data");
    s = skip_space(s + sizeof form - 1, end);
    while (s < end && *s == ';') {
        s = read_param(s, end, param, value, sizeof value);
        if (!s || !utf8_valid(value, strlen(value)))
            return err_set(e, ERR_FORMAT, "a part's Content-Disposition is malformed");
        if (strcasecmp(param, "name") == 0) {
            if (strlen(value) >= sizeof p->name)
                return err_set(e, ERR_FORMAT, "a part's name is longer than %zu bytes",
                               sizeof p->name - 1);
            str_copy(p->name, sizeof p->name, value);
        } else if (strcasecmp(param, "filename") == 0) {
            tidy_filename(value);
            p->has_filename = true;
            str_copy(p->filename, sizeof p->filename, value);
        }
    }
    return 0;
}

static bool header_is(const char *line, size_t name_len, const char *name)
{
    return strlen(name) == name_len && strncasecmp(line, name, name_len) == 0;
}

static int read_line(struct multipart_part *p, const char *line, const char *end, struct err *e)
{
    const char *colon = memchr(line, ':', (size_t)(end - line));
    const char *value;

    if (!colon)
        return err_set(e, ERR_FORMAT, "a part's header line has no colon");
    value = skip_space(colon + 1, end);
    if (header_is(line, (size_t)(colon - line), "Content-Disposition"))
        return read_disposition(p, value, end, e);
    if (header_is(line, (size_t)(colon - line), "Content-Transfer-Encoding") &&
        !header_is(value, (size_t)(end - value), "binary") &&
        !header_is(value, (size_t)(end - value), "8bit") &&
        !header_is(value, (size_t)(end - value), "7bit"))
        return err_set(e, ERR_FORMAT, "a part's Content-Transfer-Encoding is not binary");
    return 0;
}

/* The lines up to the empty one; m->at moves behind it. */
static int read_headers(struct multipart *m, struct multipart_part *p, struct err *e)
{
    size_t room = (size_t)(m->end - m->at);
    const char *limit = m->at + (room < PART_HEADER_MAX ? room : PART_HEADER_MAX);

    for (;;) {
        const char *end = memmem(m->at, (size_t)(limit - m->at), "\r\n", 2);
        const char *line = m->at;

        if (!end)
            return err_set(e, ERR_FORMAT, "a part's header has no end within %d bytes",
                           PART_HEADER_MAX);
        m->at = end + 2;
        if (end == line)
            return 0;
        if (read_line(p, line, end, e) < 0)
            return -1;
    }
}

int multipart_next(struct multipart *m, struct multipart_part *p, struct err *e)
{
    const char *end;

    *p = (struct multipart_part){0};
    if (m->last)
        return 0;
    if (read_headers(m, p, e) < 0)
        return -1;
    if (!p->name[0])
        return err_set(e, ERR_FORMAT, "a part has no name");
    /* An empty part's boundary uses the empty line's own end. */
    p->data = m->at;
    m->at -= 2;
    end = find_boundary(m);
    if (!end)
        return err_set(e, ERR_FORMAT, "the body ends before its last boundary");
    p->len = end > p->data ? (size_t)(end - p->data) : 0;
    return 1;
}
