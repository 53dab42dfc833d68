/* http/exchange.c - what the library calls, in the epoll thread, as a request comes in. */
#include <malloc.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/err.h"
#include "http/call.h"

enum { DEFAULT_LIMIT = 1 << 20, BYTES_PER_SECOND = 64 << 10, LARGE_BODY = 4 << 20 };

static int64_t after_ms(int64_t ms)
{
    return clock_mono_ns() + ms * 1000000;
}

/* A deadline for n bytes to send: the fixed part and a second for each 64 KiB. */
static int64_t deadline_for(int fixed_ms, int64_t bytes)
{
    return after_ms(fixed_ms + (bytes > 0 ? bytes / BYTES_PER_SECOND : 0) * 1000);
}

/* While a body comes. Bytes that came buy time, not those that were promised: who promises much and
 * sends nothing holds a connection no longer than others. */
static void grant_time(struct http_call *call)
{
    int64_t ms = call->srv->c.body_timeout_ms + (int64_t)(call->body.len / BYTES_PER_SECOND) * 1000;

    conns_set_deadline(call->srv->conns, call->conn, call->req.arrived_ns + ms * 1000000);
}

static void run_handler(struct work *w)
{
    struct http_call *call = (void *)((char *)w - offsetof(struct http_call, work));
    struct http_server *s = call->srv;
    bool large = call->req.body_len >= LARGE_BODY;

    s->c.handler(s->c.arg, &call->req, &call->resp);
    if (!call->stream.begun) {
        call->resp.close |= atomic_load(&s->stopping);
        answer_build(call); /* without memory the connection just closes */
        answer_resume(call);
    }
    call_unref(call);
    if (large)
        malloc_trim(
            0); /* what was made of it took many times as much, and each thread keeps its own */
    atomic_fetch_sub(&s->running, 1);
}

static enum MHD_Result refuse_stopping(struct http_call *call)
{
    return refuse_now(call, HTTP_OVERLOADED, 0, "The server is being stopped.");
}

/* The whole request is there: the connection sleeps until a handler has answered. */
static enum MHD_Result dispatch(struct http_call *call)
{
    struct http_server *s = call->srv;
    struct err e = {0};

    if (atomic_load(&s->stopping))
        return refuse_stopping(call);
    if (body_finish(&call->body, &e) < 0)
        return refuse_now(call, HTTP_OVERLOADED, 0, "The request body could not be kept.");
    call->req.body = call->body.data;
    call->req.body_len = call->body.len;
    call->phase = CALL_RUNNING;
    call->work.fn = run_handler;
    call_ref(call);
    atomic_fetch_add(&s->running, 1);
    atomic_fetch_add(&s->requests_total, 1);
    conns_set_deadline(s->conns, call->conn, 0);
    conns_set_call(s->conns, call->conn, call, call->http_1_1);
    MHD_suspend_connection(call->mhd);
    if (workers_push(s->workers, &call->work) == 0)
        return MHD_YES;
    call_unref(call);
    atomic_fetch_sub(&s->running, 1);
    MHD_resume_connection(call->mhd);
    return refuse_now(call, HTTP_OVERLOADED, 0, "No thread is left to answer.");
}

static bool is_preflight(const struct http_req *req)
{
    return strcmp(req->method, "OPTIONS") == 0 && http_req_header(req, "Origin") &&
           http_req_header(req, "Access-Control-Request-Method");
}

static enum MHD_Result check_length(struct http_call *call)
{
    const struct http_config *c = &call->srv->c;
    int64_t length = framing_length(&call->req);

    call->body_limit =
        c->limit ? c->limit(c->arg, call->req.method, call->req.raw_path) : DEFAULT_LIMIT;
    if (length > 0 && (uint64_t)length > call->body_limit)
        return refuse_now(call, HTTP_TOO_LARGE, (size_t)length, "The request body is too large.");
    call->phase = CALL_READING;
    grant_time(call);
    return MHD_YES;
}

/* The header is complete: everything that can be refused without the body is refused now. */
static enum MHD_Result on_head(struct http_call *call, const char *method, const char *version)
{
    const struct http_config *c = &call->srv->c;
    const char *host, *origin, *fault;

    call->http_1_1 = strcmp(version, "HTTP/1.1") == 0;
    if (call_read_head(call, method) < 0)
        return MHD_NO;
    fault =
        !framing_line_whole(method, call->uri, call->uri_end, version)
            ? "The request line must be a method, an address and a version, with one space each."
        : call->broken_lines ? "A header line is folded or holds a NUL byte."
                             : framing_fault(&call->req, version);
    if (fault)
        return refuse_now(call, HTTP_BAD_REQUEST, 0, fault);
    host = http_req_header(&call->req, "Host");
    origin = http_req_header(&call->req, "Origin");
    if (!guard_host_ok(c, host))
        return refuse_now(call, HTTP_BAD_HOST, 0,
                          "The Host header names neither this machine nor a listed host.");
    if (!guard_origin_ok(c, origin, host))
        return refuse_now(call, HTTP_BAD_ORIGIN, 0, "Requests of this Origin are not allowed.");
    if (atomic_load(&call->srv->stopping))
        return refuse_stopping(call);
    return is_preflight(&call->req) ? answer_preflight(call) : check_length(call);
}

static enum MHD_Result on_body(struct http_call *call, const char *bytes, size_t n)
{
    struct err e = {0};

    if (n > call->body_limit - call->body.len)
        return refuse_midway(call, HTTP_TOO_LARGE, call->body.len + n,
                             "The request body is too large.");
    if (body_add(&call->body, bytes, n, &e) < 0)
        return refuse_midway(call, HTTP_OVERLOADED, 0,
                             "Too many request bodies are being received at once.");
    grant_time(call);
    return MHD_YES;
}

static enum MHD_Result send_answer(struct http_call *call)
{
    const struct http_config *c = &call->srv->c;

    if (!call->stream.begun)
        conns_set_deadline(call->srv->conns, call->conn,
                           deadline_for(c->send_timeout_ms, (int64_t)call->answer_bytes));
    return answer_queue(call);
}

enum MHD_Result exchange_on_request(void *cls, struct MHD_Connection *c, const char *url,
                                    const char *method, const char *version, const char *upload,
                                    size_t *upload_len, void **state)
{
    struct http_call *call = *state;
    size_t n = *upload_len;

    (void)cls, (void)c, (void)url;
    if (!call)
        return MHD_NO;
    *upload_len = 0;
    switch (call->phase) {
    case CALL_NEW:
        *upload_len = n;
        return on_head(call, method, version);
    case CALL_READING:
        if (n)
            return on_body(call, upload, n);
        call->phase = CALL_COMPLETE;
        break; /* called again at once; see call.h */
    case CALL_COMPLETE:
        return dispatch(call);
    case CALL_READY:
        return send_answer(call);
    case CALL_RUNNING:
    case CALL_SENT:
        break;
    }
    return MHD_YES;
}

void *exchange_on_uri(void *cls, const char *uri, struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_call *call = call_new(cls, uri);

    if (!call)
        return NULL;
    call->mhd = c;
    call->uri = uri;
    call->uri_end = uri + strlen(uri);
    call->conn = info ? info->socket_context : NULL;
    conn_set_reading(call->conn, call);
    return call;
}

void exchange_on_completed(void *cls, struct MHD_Connection *c, void **state,
                           enum MHD_RequestTerminationCode why)
{
    struct http_server *s = cls;
    struct http_call *call = *state;

    if (!call)
        return;
    *state = NULL;
    conn_set_reading(call->conn, NULL);
    conns_set_call(s->conns, call->conn, NULL, false);
    conns_set_idle(s->conns, call->conn, after_ms(s->c.head_timeout_ms));
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK) {
        call_set_gone(call);
    } else if (call->linger) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        if (info)
            conns_linger(s->conns, info->connect_fd);
    }
    answer_forget(call); /* when the client left before it went out */
    call_unref(call);
}
