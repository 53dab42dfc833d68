/* http/multipart.h - the parts of a multipart/form-data body (RFC 7578, RFC 2046 section 5.1) that
 * lies in memory.
 *
 * Order: multipart_begin, then multipart_next until it returns 0. Nothing is copied but the two
 * names, nothing is allocated; `data` of a part points into the body. What stands before the first
 * boundary and behind the last one is skipped. A body that ends without its last boundary is
 * refused, so a part is never taken for whole when it was cut. */
#ifndef HTTP_MULTIPART_H
#define HTTP_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

struct err;

enum {
    MULTIPART_BOUNDARY_MAX = 70, /* RFC 2046 */
    MULTIPART_NAME_MAX = 128,    /* with NUL; a longer name is refused */
    MULTIPART_FILENAME_MAX = 256 /* with NUL; a longer one is cut at a character */
};

struct multipart {
    const char *at, *end;
    char delimiter[4 + MULTIPART_BOUNDARY_MAX + 1]; /* CR LF "--" boundary */
    size_t delimiter_len;
    bool last; /* the last boundary was seen */
};

struct multipart_part {
    char name[MULTIPART_NAME_MAX];
    bool has_filename;
    char filename[MULTIPART_FILENAME_MAX]; /* last component, without control characters */
    const char *data;                      /* borrowed from the body */
    size_t len;
};

/* content_type: the header's value, NULL when it was not sent. -1 with ERR_ARG: it is not
 * multipart/form-data with a boundary; ERR_FORMAT: the body holds no boundary. */
int multipart_begin(struct multipart *m, const char *content_type, const char *body, size_t len,
                    struct err *e);

/* 1 a part, 0 there are no more, -1 with ERR_FORMAT. */
int multipart_next(struct multipart *m, struct multipart_part *p, struct err *e);
#endif
