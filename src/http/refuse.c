/* http/refuse.c - answers that the server makes itself, in the epoll thread. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "http/call.h"

static const int status_of[] = {
    [HTTP_BAD_REQUEST] = 400, [HTTP_TOO_LARGE] = 413,   [HTTP_BAD_HOST] = 403,
    [HTTP_BAD_ORIGIN] = 403,  [HTTP_OVERLOADED] = 503,  [HTTP_LONG_ADDRESS] = 414,
    [HTTP_LONG_HEADER] = 431, [HTTP_BAD_VERSION] = 505,
};

static const char *plain_body(const struct http_refusal_facts *f, struct buf *body)
{
    buf_add_str(body, "{\"detail\":");
    json_write_str(body, f->message, strlen(f->message));
    buf_add_str(body, "}");
    return "application/json";
}

/* Fills call->resp. */
static void fill(struct http_call *call, enum http_refusal kind, size_t measured,
                 const char *message)
{
    const struct http_config *c = &call->srv->c;
    struct http_refusal_facts f = {.kind = kind,
                                   .status = status_of[kind],
                                   .message = message,
                                   .limit_bytes = call->body_limit,
                                   .measured_bytes = measured,
                                   .req = &call->req};
    struct buf body = {0};
    const char *type =
        c->refuse ? c->refuse(c->arg, call->req.raw_path, &f, &body) : plain_body(&f, &body);

    call->resp.status = f.status;
    call->resp.close = true;
    http_resp_body(&call->resp, type, &body);
    if (f.challenge)
        http_resp_header(&call->resp, "WWW-Authenticate", f.challenge);
    if (f.status == 503)
        http_resp_headerf(&call->resp, "Retry-After", "%d", c->retry_after_s);
    log_ev(LOG_INFO, "http.refused", "id=%s client=%s status=%d why=\"%s\"", call->req.request_id,
           call->req.client, f.status, message);
}

static enum MHD_Result queue(struct http_call *call)
{
    return answer_build(call) < 0 ? MHD_NO : answer_queue(call);
}

enum MHD_Result refuse_now(struct http_call *call, enum http_refusal kind, size_t measured,
                           const char *message)
{
    call->linger = true;
    fill(call, kind, measured, message);
    return queue(call);
}

/* The library takes no response while a body is being read, and sends its own ones wrongly where it
 * stumbled over a length: so the bytes are written here. Nothing else is on its way on this
 * connection. */
enum MHD_Result refuse_midway(struct http_call *call, enum http_refusal kind, size_t measured,
                              const char *message)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(call->mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct buf out = {0};

    fill(call, kind, measured, message);
    answer_write(call, &out);
    if (info && !out.failed) {
        send(info->connect_fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        conns_linger(call->srv->conns, info->connect_fd);
    }
    buf_release(&out);
    return MHD_NO;
}

/* Only names that a header may have; the browser compares them in lower case. */
static bool is_header_list(const char *s)
{
    return s && *s && strlen(s) < 1024 &&
           s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ")] == 0;
}

enum MHD_Result answer_preflight(struct http_call *call)
{
    const char *asked = http_req_header(&call->req, "Access-Control-Request-Headers");
    struct http_resp *r = &call->resp;

    r->status = 204;
    http_resp_header(r, "Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, OPTIONS");
    if (is_header_list(asked))
        http_resp_header(r, "Access-Control-Allow-Headers", asked);
    http_resp_header(r, "Access-Control-Max-Age", "600");
    return queue(call);
}
