#include "text/normalize.h"

#include <stdint.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/utf8.h"

/* Ranges of characters that NFC keeps, whatever stands before them, and that have combining class
 * 0: a text may be cut before any of them. (Below U+0300 all are such; the tests ask utf8proc about
 * each.) */
static const struct {
    uint32_t first, last;
} inert[] = {
    {0x0000, 0x02ff}, {0x0400, 0x0482}, {0x048a, 0x052f}, {0x2010, 0x2027},   {0x3041, 0x3096},
    {0x30a1, 0x30fa}, {0x4e00, 0x9fff}, {0xac00, 0xd7a3}, {0x1f300, 0x1f64f},
};

static bool is_inert(uint32_t cp)
{
    if (cp < 0x300)
        return true;
    for (size_t i = 1; i < sizeof inert / sizeof *inert; i++)
        if (cp <= inert[i].last)
            return cp >= inert[i].first;
    return false;
}

static bool is_ascii_until(const unsigned char *p, const unsigned char *end,
                           const unsigned char **stop)
{
    while (p < end && *p < 0x80)
        p++;
    *stop = p;
    return p == end;
}

/* The first character from p on that is not inert; *before is where the inert one in front of it
 * starts (p when there is none). */
static const unsigned char *first_active(const unsigned char *p, const unsigned char *end,
                                         const unsigned char **before)
{
    const unsigned char *prev = p;

    while (p < end) {
        unsigned n;

        if (!is_inert(utf8_decode(p, &n)))
            break;
        prev = p;
        p += n;
    }
    *before = prev;
    return p;
}

static const unsigned char *first_inert(const unsigned char *p, const unsigned char *end)
{
    unsigned n;

    while (p < end && !is_inert(utf8_decode(p, &n)))
        p += n;
    return p;
}

bool normal_is_plain(enum normal_form form, const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + len, *before;

    if (form == NORMAL_NONE || is_ascii_until(p, end, &p))
        return true;
    return form == NORMAL_NFC && first_active(p, end, &before) == end;
}

static int append_mapped(enum normal_form form, const unsigned char *p, size_t len, struct buf *out,
                         struct err *e)
{
    static const int options[] = {
        [NORMAL_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [NORMAL_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [NORMAL_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NORMAL_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t n =
        utf8proc_map(p, (utf8proc_ssize_t)len, &mapped, (utf8proc_option_t)options[form]);

    if (n < 0)
        return n == UTF8PROC_ERROR_NOMEM
                   ? err_nomem(e)
                   : err_set(e, ERR_ARG, "text cannot be normalised: %s", utf8proc_errmsg(n));
    buf_add(out, mapped, (size_t)n);
    free(mapped);
    return out->failed ? err_nomem(e) : 0;
}

int normal_append(enum normal_form form, const char *text, size_t len, struct buf *out,
                  struct err *e)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + len;

    if (form == NORMAL_NONE) {
        buf_add(out, text, len);
        return out->failed ? err_nomem(e) : 0;
    }
    if (form != NORMAL_NFC)
        return append_mapped(form, p, len, out, e);
    while (p < end) {
        const unsigned char *from, *to, *active = first_active(p, end, &from);

        if (active == end)
            from = end;
        to = first_inert(active, end);
        buf_add(out, p, (size_t)(from - p));
        if (to > from && append_mapped(form, from, (size_t)(to - from), out, e) < 0)
            return -1;
        p = to;
    }
    return out->failed ? err_nomem(e) : 0;
}
