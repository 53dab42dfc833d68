/* http/sse.h - server-sent events on a stream: "data: <one line>\n\n". (WHATWG HTML, section 9.2)
 *
 * Calling order: sse_begin, sse_send..., sse_end; one thread at a time. */
#ifndef HTTP_SSE_H
#define HTTP_SSE_H

#include <stddef.h>

struct http_resp;
struct http_stream;

/* Content-Type text/event-stream, no caching; a comment is sent when nothing else is for a while.
 */
struct http_stream *sse_begin(struct http_resp *r);
/* One event. data holds no newline (JSON text, or [DONE]). -1: the client has left, or there is no
 * memory for the event. */
int sse_send(struct http_stream *s, const char *data, size_t len);
void sse_end(struct http_stream *s); /* the end of the stream, without an event */
#endif
