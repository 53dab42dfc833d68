#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"

/* What stands for the escape \c, inside a [class] or outside; NULL: as it is. */
static const char *rewritten(char c, bool in_class)
{
    switch (c) {
    case 's':
        return "\\p{White_Space}";
    case 'S':
        return "\\P{White_Space}";
    case 'w':
        return in_class ? "\\p{L}\\p{M}\\p{N}\\p{Pc}" : "[\\p{L}\\p{M}\\p{N}\\p{Pc}]";
    case 'W':
        return in_class ? NULL : "[^\\p{L}\\p{M}\\p{N}\\p{Pc}]";
    default:
        return NULL;
    }
}

/* Escapes that mean something else here than in Oniguruma. */
static bool is_foreign(char c, bool in_class)
{
    return c == 'h' || c == 'H' || c == 'O' || c == 'y' || c == 'Y' || (c == 'W' && in_class);
}

static int translate_escape(struct buf *out, char c, bool in_class, struct err *e)
{
    const char *to = rewritten(c, in_class);

    if (is_foreign(c, in_class))
        return err_set(e, ERR_FORMAT, "the pattern uses \\%c%s, which is not supported", c,
                       in_class ? " inside [...]" : "");
    if (to) {
        buf_add_str(out, to);
    } else {
        buf_add_char(out, '\\');
        buf_add_char(out, c);
    }
    return 0;
}

/* "&&" inside a class is an intersection in Oniguruma, and nested classes are unions. */
static int check_class_char(const char *p, struct err *e)
{
    if (p[0] == '&' && p[1] == '&')
        return err_set(e, ERR_FORMAT, "the pattern uses && inside [...], which is not supported");
    if (p[0] == '[' && p[1] != ':')
        return err_set(e, ERR_FORMAT, "the pattern nests [...] in [...], which is not supported");
    return 0;
}

/* Copies "[:name:]", returns its last character. */
static const char *copy_posix_class(struct buf *out, const char *p)
{
    const char *end = strstr(p, ":]");
    size_t n = end ? (size_t)(end + 2 - p) : strlen(p);

    buf_add(out, p, n);
    return p + n - 1;
}

static int translate(struct buf *out, const char *p, struct err *e)
{
    bool in_class = false;

    for (; *p; p++) {
        if (*p == '\\' && p[1]) {
            if (translate_escape(out, *++p, in_class, e) < 0)
                return -1;
            continue;
        }
        if (in_class && check_class_char(p, e) < 0)
            return -1;
        if (in_class && *p == '[') { /* [:alpha:] */
            p = copy_posix_class(out, p);
            continue;
        }
        if (!in_class && *p == '[') {
            in_class = true;
            buf_add_char(out, *p);
            if (p[1] == '^')
                buf_add_char(out, *++p);
            if (p[1] == ']') /* a first ] is a member */
                buf_add_str(out, "\\]"), p++;
            continue;
        }
        if (in_class && *p == ']')
            in_class = false;
        buf_add_char(out, *p);
    }
    return out->failed ? err_nomem(e) : 0;
}

static pcre2_code *compile(const char *text, uint32_t options, struct err *e)
{
    int code;
    PCRE2_SIZE where;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, options, &code, &where, NULL);
    PCRE2_UCHAR why[120];

    if (!re) {
        pcre2_get_error_message(code, why, sizeof why);
        err_set(e, ERR_FORMAT, "the pattern is not valid: %s", (const char *)why);
        err_detail(e, "at byte %zu", (size_t)where);
        return NULL;
    }
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* where there is no JIT it is interpreted */
    return re;
}

void *pattern_compile(const char *pattern, bool literal, struct err *e)
{
    struct buf text = {0};
    pcre2_code *re = NULL;

    if (strlen(pattern) > PATTERN_MAX) {
        err_set(e, ERR_FORMAT, "the pattern is longer than %d bytes", PATTERN_MAX);
        return NULL;
    }
    if (literal)
        return compile(pattern, PCRE2_UTF | PCRE2_LITERAL, e);
    if (translate(&text, pattern, e) == 0)
        re = compile(buf_str(&text),
                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, e);
    buf_release(&text);
    return re;
}
