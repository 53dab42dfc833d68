/* base/buf.h - a growing byte buffer that is always NUL-terminated.
 *
 * A zeroed struct is an empty buffer. An allocation that fails sets `failed` and later calls do
 * nothing, so a caller checks once, at the end. Not safe to share between threads. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data; /* owned; NULL while empty */
    size_t len; /* bytes without the NUL */
    size_t cap;
    bool failed;
};

void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_add_str(struct buf *b, const char *s);
void buf_add_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Room for n more bytes; the caller writes them at the returned place and adds n to len. NULL: failed. */
char *buf_reserve(struct buf *b, size_t n);
const char *buf_str(const struct buf *b); /* borrowed; "" while empty */
char *buf_take(struct buf *b);            /* owned string (free it), b is empty after; NULL when failed */
void buf_reset(struct buf *b);            /* keeps the memory */
void buf_release(struct buf *b);
#endif
