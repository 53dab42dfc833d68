/* http/local.h - a request that no socket sent: a handler answers it on the caller's thread.
 *
 * For work that must take the same way as a request over the network. Order: http_local_new,
 * http_local_run once, read, http_local_free. http_local_cancel, from any thread, is the client
 * that leaves. A handler that begins a stream finds its client gone. */
#ifndef HTTP_LOCAL_H
#define HTTP_LOCAL_H

#include <stddef.h>

#include "http/request.h"
#include "http/server.h"

struct buf;
struct err;
struct http_local;

struct http_local_spec {
    const char *method, *path;        /* copied */
    const struct http_field *headers; /* copied */
    int n_headers;
    const char *body; /* borrowed until http_local_free; a NUL stands behind the last byte */
    size_t body_len;
};

/* Owned; NULL with ERR_NOMEM. */
struct http_local *http_local_new(const struct http_local_spec *spec, struct err *e);
void http_local_run(struct http_local *l, http_handler_fn *handler, void *arg);
void http_local_cancel(struct http_local *l);

/* After the run; borrowed. */
int http_local_status(const struct http_local *l);
const struct buf *http_local_body(const struct http_local *l);
const struct http_field *http_local_headers(const struct http_local *l, int *n);
const char *http_local_request_id(const struct http_local *l); /* req_ and 24 hex digits */

void http_local_free(struct http_local *l); /* NULL is allowed */
#endif
