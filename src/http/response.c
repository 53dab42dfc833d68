#include "http/response.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "http/call.h"

enum { HEADERS_MAX = 32, COMPACT_BYTES = 65536 };

void http_resp_status(struct http_resp *r, int status)
{
    r->status = status;
}

void http_resp_header(struct http_resp *r, const char *name, const char *value)
{
    struct http_call *call = call_of_resp(r);
    struct http_field f;

    if (strpbrk(name, "\r\n") || strpbrk(value, "\r\n") || r->n_headers == HEADERS_MAX)
        return;
    if (!r->headers)
        r->headers = arena_alloc(&call->arena, HEADERS_MAX * sizeof *r->headers);
    f.name = arena_strdup(&call->arena, name, strlen(name));
    f.value = arena_strdup(&call->arena, value, strlen(value));
    if (r->headers && f.name && f.value)
        r->headers[r->n_headers++] = f;
}

void http_resp_headerf(struct http_resp *r, const char *name, const char *fmt, ...)
{
    struct buf value = {0};
    va_list ap;
    char small[512];
    int n;

    va_start(ap, fmt);
    n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof small) {
        http_resp_header(r, name, small);
    } else if (n > 0 && buf_reserve(&value, (size_t)n)) {
        va_start(ap, fmt);
        vsnprintf(value.data, (size_t)n + 1, fmt, ap);
        va_end(ap);
        http_resp_header(r, name, value.data);
    }
    buf_release(&value);
}

void http_resp_body(struct http_resp *r, const char *content_type, struct buf *body)
{
    r->content_type = arena_strdup(&call_of_resp(r)->arena, content_type, strlen(content_type));
    buf_release(&r->body);
    r->body = *body;
    *body = (struct buf){0};
}

void http_resp_text(struct http_resp *r, const char *content_type, const char *text)
{
    struct buf b = {0};

    buf_add_str(&b, text);
    http_resp_body(r, content_type, &b);
}

void http_resp_file_part(struct http_resp *r, const char *content_type, int fd, size_t from,
                         size_t bytes)
{
    r->content_type = arena_strdup(&call_of_resp(r)->arena, content_type, strlen(content_type));
    if (r->file >= 0)
        close(r->file);
    r->file = fd;
    r->file_from = from;
    r->file_bytes = bytes;
}

void http_resp_file(struct http_resp *r, const char *content_type, int fd, size_t bytes)
{
    http_resp_file_part(r, content_type, fd, 0, bytes);
}

/* ---- streams ---- */

struct http_stream *http_stream_begin(struct http_resp *r, const char *content_type)
{
    struct http_call *call = call_of_resp(r);
    struct http_stream *s = &call->stream;

    r->content_type = arena_strdup(&call->arena, content_type, strlen(content_type));
    call_ref(call);
    if (!call->srv) {
        s->begun = s->dropped = true;
        return s;
    }
    atomic_fetch_add(&call->srv->running, 1);
    pthread_mutex_lock(&call->lock);
    s->begun = true;
    s->progress_ns = clock_mono_ns();
    s->dropped = atomic_load(&call->gone);
    pthread_mutex_unlock(&call->lock);
    if (answer_build_stream(call) < 0)
        call_set_gone(call);
    answer_resume(call);
    return s;
}

static void unpark(struct http_call *call)
{
    if (!call->stream.parked)
        return;
    call->stream.parked = false;
    MHD_resume_connection(call->mhd);
}

int http_stream_write(struct http_stream *s, const void *data, size_t len)
{
    struct http_call *call = call_of_stream(s);
    bool overflow = false, ok;

    pthread_mutex_lock(&call->lock);
    if (!s->dropped && s->waiting.len - s->sent + len > call->srv->c.stream_bytes)
        overflow = true;
    ok = !s->dropped && !overflow;
    if (ok) {
        if (s->waiting.len == s->sent)
            s->progress_ns = clock_mono_ns();
        buf_add(&s->waiting, data, len);
        overflow = s->waiting.failed;
        unpark(call);
    }
    pthread_mutex_unlock(&call->lock);
    if (overflow)
        call_set_gone(call);
    return ok && !overflow ? 0 : -1;
}

void http_stream_end(struct http_stream *s)
{
    struct http_call *call = call_of_stream(s);
    struct http_server *srv = call->srv;

    pthread_mutex_lock(&call->lock);
    s->ended = true;
    unpark(call);
    pthread_mutex_unlock(&call->lock);
    call_unref(call);
    if (srv)
        atomic_fetch_sub(&srv->running, 1);
}

void stream_drop(struct http_call *call)
{
    call->stream.dropped = true;
    unpark(call);
}

static size_t take(struct http_stream *s, char *to, size_t max)
{
    size_t n = s->waiting.len - s->sent;

    if (n > max)
        n = max;
    memcpy(to, s->waiting.data + s->sent, n);
    s->sent += n;
    if (s->sent == s->waiting.len) {
        buf_reset(&s->waiting);
        s->sent = 0;
    } else if (s->sent > COMPACT_BYTES && s->sent > s->waiting.len / 2) {
        s->waiting.len -= s->sent;
        memmove(s->waiting.data, s->waiting.data + s->sent, s->waiting.len + 1);
        s->sent = 0;
    }
    s->progress_ns = clock_mono_ns();
    return n;
}

/* A stream that is dropped ends in a failed write. To end it with an error from the reader would be
 * the plain way, but the library then forgets to free a connection that was parked before (0.9.75).
 */
static ssize_t cut_off(struct http_call *call)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(call->mhd, MHD_CONNECTION_INFO_CONNECTION_FD);

    if (info)
        shutdown(info->connect_fd, SHUT_RDWR);
    return MHD_CONTENT_READER_END_OF_STREAM;
}

ssize_t stream_read(void *cls, uint64_t pos, char *to, size_t max)
{
    struct http_call *call = cls;
    struct http_stream *s = &call->stream;
    ssize_t n = 0;

    (void)pos;
    pthread_mutex_lock(&call->lock);
    if (s->dropped) {
        n = cut_off(call);
    } else if (s->waiting.len > s->sent) {
        n = (ssize_t)take(s, to, max);
    } else if (s->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        s->parked = true;
        MHD_suspend_connection(call->mhd);
    }
    pthread_mutex_unlock(&call->lock);
    return n;
}

void http_stream_keep_alive(struct http_stream *s, const char *text)
{
    struct http_call *call = call_of_stream(s);

    pthread_mutex_lock(&call->lock);
    s->keep_alive = text;
    pthread_mutex_unlock(&call->lock);
}

/* call->lock held. Nothing waits, so it stands between two writes of the handler. */
static void break_silence(struct http_call *call, int64_t now_ns)
{
    struct http_stream *s = &call->stream;

    if (!s->keep_alive || s->ended || s->dropped || s->waiting.len > s->sent ||
        now_ns - s->progress_ns < (int64_t)call->srv->c.keep_alive_ms * 1000000)
        return;
    s->progress_ns = now_ns;
    buf_add_str(&s->waiting, s->keep_alive);
    unpark(call);
}

bool stream_stuck(struct http_call *call, int64_t now_ns)
{
    const struct http_stream *s = &call->stream;
    bool stuck;

    pthread_mutex_lock(&call->lock);
    break_silence(call, now_ns);
    stuck =
        s->begun &&
        (s->dropped || (s->waiting.len > s->sent &&
                        now_ns - s->progress_ns > (int64_t)call->srv->c.send_timeout_ms * 1000000));
    pthread_mutex_unlock(&call->lock);
    return stuck;
}
