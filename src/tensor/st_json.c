#include "tensor/st_json.h"

#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/utf8.h"

int st_json_fail(struct st_json *j, const char *expected)
{
    size_t at = (size_t)(j->p - j->start);

    if (j->p == j->end)
        return err_set(j->e, ERR_FORMAT, "the header ends at byte %zu where %s should be", at,
                       expected);
    return err_set(j->e, ERR_FORMAT, "byte %zu of the header is 0x%02x where %s should be", at,
                   *j->p, expected);
}

static void skip_space(struct st_json *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\t' || *j->p == '\r'))
        j->p++;
}

bool st_json_accept(struct st_json *j, char c)
{
    skip_space(j);
    if (j->p == j->end || *j->p != (unsigned char)c)
        return false;
    j->p++;
    return true;
}

int st_json_expect(struct st_json *j, char c)
{
    char text[4] = {'\'', c, '\'', 0};

    return st_json_accept(j, c) ? 0 : st_json_fail(j, text);
}

int st_json_end(struct st_json *j)
{
    skip_space(j);
    return j->p == j->end ? 0 : st_json_fail(j, "the end");
}

static int hex4(struct st_json *j, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, j->p++) {
        unsigned char c = j->p < j->end ? *j->p : 0;
        unsigned char lower = c | 0x20;

        if (c >= '0' && c <= '9')
            *out = *out * 16 + c - '0';
        else if (lower >= 'a' && lower <= 'f')
            *out = *out * 16 + lower - 'a' + 10;
        else
            return st_json_fail(j, "a hexadecimal digit");
    }
    return 0;
}

/* After "\u": one escape, or two that make a surrogate pair. */
static int unicode_escape(struct st_json *j, uint32_t *out)
{
    uint32_t low = 0;

    if (hex4(j, out) < 0)
        return -1;
    if (*out < 0xd800 || *out > 0xdfff)
        return 0;
    if (*out > 0xdbff || j->end - j->p < 6 || j->p[0] != '\\' || j->p[1] != 'u')
        return st_json_fail(j, "the other half of a surrogate pair");
    j->p += 2;
    if (hex4(j, &low) < 0)
        return -1;
    if (low < 0xdc00 || low > 0xdfff)
        return st_json_fail(j, "the low half of a surrogate pair");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return 0;
}

static int escape(struct st_json *j, char *out, size_t *n)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *at = j->p < j->end && *j->p ? strchr(names, *j->p) : NULL;
    uint32_t c = 0;

    if (at) {
        out[(*n)++] = values[at - names];
        j->p++;
        return 0;
    }
    if (j->p == j->end || *j->p != 'u')
        return st_json_fail(j, "an escape");
    j->p++;
    if (unicode_escape(j, &c) < 0)
        return -1;
    *n += utf8_encode(c, out + *n);
    return 0;
}

/* Bytes up to the closing quote; a decoded string is never longer than its escaped form. */
static size_t raw_length(const struct st_json *j)
{
    const unsigned char *p = j->p;

    while (p < j->end && *p != '"')
        p += *p == '\\' && j->end - p > 1 ? 2 : 1;
    return (size_t)(p - j->p);
}

int st_json_string(struct st_json *j, struct arena *mem, const char **out, size_t *len)
{
    size_t n = 0;
    char *text;

    if (st_json_expect(j, '"') < 0)
        return -1;
    text = arena_alloc(mem, raw_length(j) + 1);
    if (!text)
        return err_nomem(j->e);
    while (j->p < j->end && *j->p != '"') {
        size_t k = utf8_sequence(j->p, j->end);

        if (*j->p < 0x20)
            return st_json_fail(j, "an escaped control character");
        if (k == 0)
            return st_json_fail(j, "valid UTF-8");
        if (*j->p == '\\') {
            j->p++;
            if (escape(j, text, &n) < 0)
                return -1;
            continue;
        }
        memcpy(text + n, j->p, k);
        n += k;
        j->p += k;
    }
    if (j->p == j->end)
        return st_json_fail(j, "a closing quote");
    j->p++;
    text[n] = 0;
    *out = text;
    *len = n;
    return 0;
}

int st_json_int(struct st_json *j, int64_t *out)
{
    int64_t v = 0;

    skip_space(j);
    if (j->p == j->end || *j->p < '0' || *j->p > '9')
        return st_json_fail(j, "a whole number that is not negative");
    if (*j->p == '0' && j->end - j->p > 1 && j->p[1] >= '0' && j->p[1] <= '9')
        return st_json_fail(j, "a number without leading zeros");
    for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *j->p - '0', &v))
            return st_json_fail(j, "a number below 2^63");
    if (j->p < j->end && (*j->p == '.' || (*j->p | 0x20) == 'e'))
        return st_json_fail(j, "a whole number without fraction or exponent");
    *out = v;
    return 0;
}

static int digits(struct st_json *j)
{
    const unsigned char *first = j->p;

    while (j->p < j->end && *j->p >= '0' && *j->p <= '9')
        j->p++;
    return j->p > first ? 0 : st_json_fail(j, "a digit");
}

static int skip_number(struct st_json *j)
{
    if (*j->p == '-')
        j->p++;
    if (j->end - j->p > 1 && *j->p == '0' && j->p[1] >= '0' && j->p[1] <= '9')
        return st_json_fail(j, "a number without leading zeros");
    if (digits(j) < 0)
        return -1;
    if (j->p < j->end && *j->p == '.') {
        j->p++;
        if (digits(j) < 0)
            return -1;
    }
    if (j->p < j->end && (*j->p | 0x20) == 'e') {
        j->p++;
        if (j->p < j->end && (*j->p == '+' || *j->p == '-'))
            j->p++;
        return digits(j);
    }
    return 0;
}

static int skip_word(struct st_json *j)
{
    static const char *const words[] = {"true", "false", "null"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);

        if ((size_t)(j->end - j->p) >= n && memcmp(j->p, words[i], n) == 0) {
            j->p += n;
            return 0;
        }
    }
    return st_json_fail(j, "a JSON value");
}

static int skip_string(struct st_json *j)
{
    struct arena scratch = {0};
    const char *text;
    size_t len;
    int rc = st_json_string(j, &scratch, &text, &len);

    arena_release(&scratch);
    return rc;
}

static int skip_scalar(struct st_json *j)
{
    skip_space(j);
    if (j->p == j->end)
        return st_json_fail(j, "a JSON value");
    if (*j->p == '"')
        return skip_string(j);
    if (*j->p == '-' || (*j->p >= '0' && *j->p <= '9'))
        return skip_number(j);
    return skip_word(j);
}

/* The brackets that are open stand in a small stack instead of in nested calls. */
int st_json_skip(struct st_json *j)
{
    char closing[ST_JSON_DEPTH];
    int depth = 0;

    for (;;) {
        char close;

        if (depth && closing[depth - 1] == '}' &&
            (skip_string(j) < 0 || st_json_expect(j, ':') < 0))
            return -1;
        close = st_json_accept(j, '{') ? '}' : st_json_accept(j, '[') ? ']' : 0;
        if (close && !st_json_accept(j, close)) { /* its first item comes next */
            if (depth == ST_JSON_DEPTH)
                return st_json_fail(j, "a value that is not nested so deep");
            closing[depth++] = close;
            continue;
        }
        if (!close && skip_scalar(j) < 0)
            return -1;
        while (depth && st_json_accept(j, closing[depth - 1]))
            depth--;
        if (!depth)
            return 0;
        if (st_json_expect(j, ',') < 0)
            return -1;
    }
}
