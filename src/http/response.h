/* http/response.h - the answer to one request: a whole body, or a stream.
 *
 * Whole: set status, headers and body in any order; it goes out when the handler returns. Stream:
 * set the headers, http_stream_begin, then any thread may write; whoever began it ends it once. */
#ifndef HTTP_RESPONSE_H
#define HTTP_RESPONSE_H

#include <stddef.h>

struct buf;
struct http_resp;
struct http_stream;

void http_resp_status(struct http_resp *r, int status); /* 200 unless set */

/* Adds a header (both copied); a CR, LF or NUL in it drops it. Server, Date, Content-Length,
 * X-Request-ID and the CORS headers are not the handler's. */
void http_resp_header(struct http_resp *r, const char *name, const char *value);
void http_resp_headerf(struct http_resp *r, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The body; the buffer is emptied (consumed). Replaces an earlier one. content_type is copied. */
void http_resp_body(struct http_resp *r, const char *content_type, struct buf *body);
void http_resp_text(struct http_resp *r, const char *content_type, const char *text); /* copied */

/* The first `bytes` of an open regular file are the body, sent as the client takes them. fd is
 * consumed. */
void http_resp_file(struct http_resp *r, const char *content_type, int fd, size_t bytes);
/* The same for the part that begins at `from`. */
void http_resp_file_part(struct http_resp *r, const char *content_type, int fd, size_t from,
                         size_t bytes);

/* Status and headers leave now, the body is what is written until http_stream_end. Never NULL; when
 * memory is short the stream is one whose client has left. */
struct http_stream *http_stream_begin(struct http_resp *r, const char *content_type);

/* Queues bytes and returns at once. -1: the client has left or takes nothing; the bytes are
 * dropped, and so will be later ones. */
int http_stream_write(struct http_stream *s, const void *data, size_t len);
void http_stream_end(struct http_stream *s);

/* From now on, `text` (static) is written whenever nothing was for keep_alive_ms of the server's
 * configuration, give or take a second: proxies and clients end connections that are silent. */
void http_stream_keep_alive(struct http_stream *s, const char *text);
#endif
