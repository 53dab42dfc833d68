#include "text/json_scan.h"

#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/utf8.h"

void json_scan_init(struct json_scan *s, const char *text, size_t len)
{
    *s = (struct json_scan){text, text, text + len};
}

char json_scan_peek(struct json_scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t'))
        s->p++;
    return s->p < s->end ? *s->p : '\0';
}

int json_scan_take(struct json_scan *s, char c)
{
    if (json_scan_peek(s) != c || s->p == s->end)
        return -1;
    s->p++;
    return 0;
}

int json_scan_next(struct json_scan *s, char close)
{
    if (json_scan_take(s, ',') == 0)
        return 1;
    return json_scan_take(s, close);
}

/* ---- strings ---- */

static int hex4(struct json_scan *s, uint32_t *out)
{
    *out = 0;
    if (s->end - s->p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = *s->p++;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;

        if (digit < 0)
            return -1;
        *out = *out << 4 | (uint32_t)digit;
    }
    return 0;
}

/* After "\u": one unit, or a pair of surrogates; a lone one is refused. */
static int unicode_escape(struct json_scan *s, struct buf *out)
{
    uint32_t cp, low;
    char bytes[4];

    if (hex4(s, &cp) < 0)
        return -1;
    if (cp >= 0xd800 && cp < 0xdc00) {
        if (s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u')
            return -1;
        s->p += 2;
        if (hex4(s, &low) < 0 || low < 0xdc00 || low >= 0xe000)
            return -1;
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    } else if (cp >= 0xdc00 && cp < 0xe000) {
        return -1;
    }
    buf_add(out, bytes, utf8_put(bytes, cp));
    return 0;
}

/* After the backslash. */
static int escape(struct json_scan *s, struct buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at;

    if (s->p == s->end)
        return -1;
    if (*s->p == 'u') {
        s->p++;
        return unicode_escape(s, out);
    }
    at = memchr(from, *s->p, sizeof from - 1);
    if (!at)
        return -1;
    buf_add_char(out, to[at - from]);
    s->p++;
    return 0;
}

int json_scan_string(struct json_scan *s, struct buf *out)
{
    buf_reset(out);
    if (json_scan_take(s, '"') < 0)
        return -1;
    while (s->p < s->end) {
        const char *from = s->p;

        while (s->p < s->end && *s->p != '"' && *s->p != '\\' && (unsigned char)*s->p >= 0x20)
            s->p++;
        buf_add(out, from, (size_t)(s->p - from));
        if (s->p == s->end || (unsigned char)*s->p < 0x20)
            return -1;
        if (*s->p++ == '"')
            return 0;
        if (escape(s, out) < 0)
            return -1;
    }
    return -1;
}

/* ---- numbers, and what is passed over ---- */

static bool is_digit(const struct json_scan *s)
{
    return s->p < s->end && *s->p >= '0' && *s->p <= '9';
}

int json_scan_int(struct json_scan *s, int64_t *out)
{
    bool negative = json_scan_peek(s) == '-';
    const char *first;

    *out = 0;
    s->p += negative;
    first = s->p;
    for (; is_digit(s); s->p++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_sub_overflow(*out, *s->p - '0', out))
            return -1;
    if (s->p == first || (*first == '0' && s->p - first > 1))
        return -1;
    if (s->p < s->end && (*s->p == '.' || *s->p == 'e' || *s->p == 'E'))
        return -1;
    return negative ? 0 : -__builtin_sub_overflow((int64_t)0, *out, out);
}

static int skip_string(struct json_scan *s)
{
    for (s->p++; s->p < s->end; s->p++) {
        if (*s->p == '\\')
            s->p++;
        else if (*s->p == '"')
            break;
    }
    if (s->p >= s->end) {
        s->p = s->end;
        return -1;
    }
    s->p++;
    return 0;
}

int json_scan_skip(struct json_scan *s)
{
    size_t depth = 0;

    if (json_scan_peek(s) == '\0')
        return -1;
    while (s->p < s->end) {
        char c = *s->p;

        if (c == '"') {
            if (skip_string(s) < 0)
                return -1;
            if (depth == 0)
                return 0;
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            return 0; /* behind a number or a word */
        s->p++;
        if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0)
            return 0;
    }
    return depth == 0 ? 0 : -1;
}

int json_scan_member(struct json_scan *s, const char *key)
{
    struct buf name = {0};
    int rc = json_scan_take(s, '{');

    if (rc == 0 && json_scan_peek(s) == '}')
        return 0;
    while (rc == 0) {
        if (json_scan_string(s, &name) < 0 || json_scan_take(s, ':') < 0) {
            rc = -1;
        } else if (name.len == strlen(key) && memcmp(buf_str(&name), key, name.len) == 0) {
            rc = 1;
        } else {
            int more = json_scan_skip(s) < 0 ? -1 : json_scan_next(s, '}');

            if (more <= 0) {
                rc = more;
                break;
            }
        }
    }
    buf_release(&name);
    return rc;
}

int json_scan_fail(const struct json_scan *s, const char *what, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: malformed JSON at byte %zu", what, (size_t)(s->p - s->text));
}
