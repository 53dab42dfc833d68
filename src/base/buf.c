#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nomem.h"

enum { PRINTF_FIRST = 32 }; /* room made before it is known how long the text is */

char *buf_reserve(struct buf *b, size_t n)
{
    size_t need, cap = b->cap ? b->cap : 64;
    char *grown;

    if (b->failed || __builtin_add_overflow(b->len, n, &need) ||
        __builtin_add_overflow(need, 1, &need))
        goto fail;
    if (need > b->cap) {
        while (cap < need)
            if (__builtin_mul_overflow(cap, 2, &cap))
                goto fail;
        grown = nomem_realloc(b->data, cap);
        if (!grown)
            goto fail;
        b->data = grown;
        b->cap = cap;
        b->data[b->len] = 0;
    }
    return b->data + b->len;

fail:
    b->failed = true;
    nomem_note();
    return NULL;
}

void buf_add(struct buf *b, const void *bytes, size_t n)
{
    char *to = buf_reserve(b, n);

    if (!to)
        return;
    if (n)
        memcpy(to, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void buf_add_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_add_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    char *to = buf_reserve(b, PRINTF_FIRST);
    size_t room = to ? b->cap - b->len : 0;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(to, room, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n >= room) {
        to = buf_reserve(b, (size_t)n);
        if (!to)
            return;
        va_start(ap, fmt);
        vsnprintf(to, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    if (n < 0)
        b->failed = true;
    else
        b->len += (size_t)n;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

char *buf_take(struct buf *b)
{
    char *s = NULL;

    if (!b->failed && buf_reserve(b, 0))
        s = b->data;
    if (!s)
        free(b->data);
    *b = (struct buf){0};
    return s;
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

void buf_release(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}
