#include "http/sse.h"

#include "base/buf.h"
#include "http/response.h"

struct http_stream *sse_begin(struct http_resp *r)
{
    struct http_stream *s;

    http_resp_header(r, "Cache-Control", "no-cache");
    s = http_stream_begin(r, "text/event-stream");
    http_stream_keep_alive(s, ": keep-alive\n\n");
    return s;
}

int sse_send(struct http_stream *s, const char *data, size_t len)
{
    struct buf frame = {0};
    int rc = -1;

    buf_add_str(&frame, "data: ");
    buf_add(&frame, data, len);
    buf_add_str(&frame, "\n\n");
    if (!frame.failed)
        rc = http_stream_write(s, frame.data, frame.len);
    buf_release(&frame);
    return rc;
}

void sse_end(struct http_stream *s)
{
    http_stream_end(s);
}
