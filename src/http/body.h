/* http/body.h - the bytes of one request body: in memory, or in an unlinked file when it is large.
 *
 * Filled by the epoll thread, then read by the handler. All bodies of a server share one budget. */
#ifndef HTTP_BODY_H
#define HTTP_BODY_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/buf.h"

struct err;

struct body_budget {
    size_t limit;       /* bytes of all bodies together */
    size_t spool_bytes; /* a body beyond this goes to a file */
    const char *spool_dir;
    atomic_size_t used;
};

struct body {
    struct body_budget *budget;
    struct buf memory;
    int fd;           /* -1: in memory */
    size_t len;       /* bytes taken from the budget */
    const char *data; /* after body_finish; one NUL behind the last byte */
    size_t mapped;
};

void body_init(struct body *b, struct body_budget *budget);
/* -1: ERR_SPACE (budget or disk), ERR_NOMEM, ERR_IO. */
int body_add(struct body *b, const void *bytes, size_t n, struct err *e);
int body_finish(struct body *b, struct err *e); /* sets data */
void body_release(struct body *b);
#endif
