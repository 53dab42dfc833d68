/* http/request.h - one request as a handler sees it: everything is read, bounded and stays put.
 *
 * The fields are valid until the handler returns, or until http_stream_end where it began a stream.
 * Only the handler's thread reads them; http_req_gone may be read from any thread. */
#ifndef HTTP_REQUEST_H
#define HTTP_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum { HTTP_REQUEST_ID_MAX = 128 };

struct http_field {
    const char *name;
    const char *value;
};

struct http_req {
    const char *method;
    const char *raw_path; /* as sent, without the query */
    const char *path;     /* percent-decoded once; "" when it cannot be (bad escape or %00) */
    const char *query;    /* as sent, after "?"; "" when absent */
    const char *body;     /* NUL-terminated for safety; may hold NULs; never NULL */
    size_t body_len;
    const struct http_field *headers; /* in the order sent */
    int n_headers;
    char client[64]; /* "127.0.0.1:51234" */
    char request_id[HTTP_REQUEST_ID_MAX +
                    1]; /* the caller's X-Request-ID when well-formed, else req_... */
    int64_t arrived_ns; /* monotonic: the header was complete */
};

/* The first header of that name in any case, or NULL. */
const char *http_req_header(const struct http_req *req, const char *name);

/* The decoded value of a query parameter ("+" is a space), owned; NULL when absent, malformed or
 * out of memory. */
char *http_req_query(const struct http_req *req, const char *name);

/* true from the moment the client has left (reset, closed, dropped) or the server gives up on it. A
 * client that only closed its sending side has not left. Any thread, as long as the request is
 * valid. */
const atomic_bool *http_req_gone(const struct http_req *req);

/* Calls fn(arg) once when the client leaves, at once when it has left already; from another thread,
 * so fn must not block. NULL takes it back: after the return fn is not running and will not run. */
typedef void http_gone_fn(void *arg);
void http_req_on_gone(struct http_req *req, http_gone_fn *fn, void *arg);

/* What the server that took the request is doing; zeros for a request without one. Any thread, as
 * long as the request is valid. */
struct http_stats;
void http_req_server_stats(const struct http_req *req, struct http_stats *out);

/* Decodes %XX once into an owned string. NULL with ERR_ARG for a broken escape or a NUL, or
 * ERR_NOMEM. */
char *http_percent_decode(const char *s, size_t len, bool plus_is_space, struct err *e);
#endif
