/* http/answer.c - from a filled http_resp to the library's response. */
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "http/call.h"

enum { STREAM_BLOCK = 16384 };

/* Takes one header of an answer; value NULL: there is none of this name. */
typedef void header_fn(void *to, const char *name, const char *value);

static void to_library(void *answer, const char *name, const char *value)
{
    if (value)
        MHD_add_response_header(answer, name, value);
}

static void to_bytes(void *out, const char *name, const char *value)
{
    if (value)
        buf_printf(out, "%s: %s\r\n", name, value);
}

static void add_cors(struct http_call *call, header_fn *add, void *to)
{
    const struct http_config *c = &call->srv->c;
    const char *origin = http_req_header(&call->req, "Origin");

    if (!origin || !guard_origin_listed(c->cors_origins, origin))
        return;
    if (guard_origin_listed(c->cors_origins, "*")) {
        add(to, "Access-Control-Allow-Origin", "*");
    } else {
        add(to, "Access-Control-Allow-Origin", origin);
        add(to, "Vary", "Origin");
    }
    add(to, "Access-Control-Expose-Headers", c->cors_expose);
}

static void add_headers(struct http_call *call, header_fn *add, void *to)
{
    const struct http_resp *r = &call->resp;

    add(to, "Content-Type", r->content_type);
    for (int i = 0; i < r->n_headers; i++)
        add(to, r->headers[i].name, r->headers[i].value);
    add(to, "X-Request-ID", call->req.request_id[0] ? call->req.request_id : NULL);
    add_cors(call, add, to);
    if (r->close)
        add(to, "Connection", "close");
}

/* The date of an answer (RFC 9110, 5.6.7), whatever the locale. */
static void add_date(struct buf *out)
{
    static const char days[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t now = time(NULL);
    struct tm t = {0};

    gmtime_r(&now, &t);
    buf_printf(out, "Date: %s, %02d %s %d %02d:%02d:%02d GMT\r\n", days[t.tm_wday], t.tm_mday,
               months[t.tm_mon], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

void answer_write(struct http_call *call, struct buf *out)
{
    const struct buf *body = &call->resp.body;

    buf_printf(out, "HTTP/1.1 %d %s\r\n", call->resp.status,
               MHD_get_reason_phrase_for((unsigned)call->resp.status));
    add_date(out);
    buf_printf(out, "Content-Length: %zu\r\n", body->len);
    add_headers(call, to_bytes, out);
    buf_add_str(out, "\r\n");
    buf_add(out, buf_str(body), body->len);
}

static int build_from_file(struct http_call *call)
{
    struct http_resp *r = &call->resp;

    call->answer = MHD_create_response_from_fd_at_offset64(r->file_bytes, r->file, r->file_from);
    if (!call->answer)
        return -1;
    call->answer_bytes = r->file_bytes;
    r->file = -1; /* the response closes it */
    add_headers(call, to_library, call->answer);
    return 0;
}

int answer_build(struct http_call *call)
{
    struct buf *body = &call->resp.body;
    size_t len = body->len;
    char *bytes;

    if (call->resp.file >= 0)
        return build_from_file(call);
    if (body->failed)
        return -1;
    bytes = buf_take(body);
    call->answer = MHD_create_response_from_buffer(len, bytes, MHD_RESPMEM_MUST_FREE);
    if (!call->answer) {
        free(bytes);
        return -1;
    }
    call->answer_bytes = len;
    add_headers(call, to_library, call->answer);
    return 0;
}

static void release_stream(void *cls)
{
    call_unref(cls);
}

int answer_build_stream(struct http_call *call)
{
    call->answer = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, stream_read,
                                                     call, release_stream);
    if (!call->answer)
        return -1;
    call_ref(call);
    add_headers(call, to_library, call->answer);
    return 0;
}

void answer_resume(struct http_call *call)
{
    conns_answer_begins(call->srv->conns, call->conn);
    log_ev(LOG_DEBUG, "http.answer", "id=%s client=%s method=%s path=%s status=%d took_ms=%.3f",
           call->req.request_id, call->req.client, call->req.method, call->req.raw_path,
           call->resp.status, clock_ms_since(call->req.arrived_ns));
    call->phase = CALL_READY;
    MHD_resume_connection(call->mhd);
}

void answer_forget(struct http_call *call)
{
    struct MHD_Response *answer = call->answer;

    call->answer = NULL;
    if (answer)
        MHD_destroy_response(answer);
}

/* A stream's response holds a reference of the call, so the call must not hold the response. */
enum MHD_Result answer_queue(struct http_call *call)
{
    enum MHD_Result rc;

    if (!call->answer)
        return MHD_NO;
    call->phase = CALL_SENT;
    rc = call->srv->queue_response(call->mhd, (unsigned)call->resp.status, call->answer);
    answer_forget(call);
    return rc;
}
