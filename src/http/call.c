#include "http/call.h"

#include <arpa/inet.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/ids.h"

struct http_call *call_of_req(struct http_req *req)
{
    return (struct http_call *)req;
}

struct http_call *call_of_resp(struct http_resp *r)
{
    return (struct http_call *)(void *)((char *)r - offsetof(struct http_call, resp));
}

struct http_call *call_of_stream(struct http_stream *s)
{
    return (struct http_call *)(void *)((char *)s - offsetof(struct http_call, stream));
}

/* "/a/b?x=1" into raw_path, query and path. */
static int split_uri(struct http_call *call, const char *uri)
{
    struct err ignored = {0};
    size_t len = strcspn(uri, "?");
    char *decoded = http_percent_decode(uri, len, false, &ignored);

    call->req.raw_path = arena_strdup(&call->arena, uri, len);
    call->req.query = arena_strdup(&call->arena, uri + len + (uri[len] == '?'),
                                   strlen(uri + len + (uri[len] == '?')));
    call->req.path =
        decoded ? arena_strdup(&call->arena, decoded, strlen(decoded)) : (const char *)"";
    free(decoded);
    return call->req.raw_path && call->req.query && call->req.path ? 0 : -1;
}

struct http_call *call_new(struct http_server *s, const char *uri)
{
    struct http_call *call = calloc(1, sizeof *call);

    if (!call)
        return NULL;
    pthread_mutex_init(&call->lock, NULL);
    atomic_init(&call->refs, 1);
    call->srv = s;
    call->resp.status = 200;
    call->resp.file = -1;
    call->req.method = call->req.body = "";
    body_init(&call->body, s ? &s->budget : NULL);
    if (split_uri(call, uri) < 0) {
        call_unref(call);
        return NULL;
    }
    return call;
}

void call_ref(struct http_call *call)
{
    atomic_fetch_add(&call->refs, 1);
}

void call_unref(struct http_call *call)
{
    if (atomic_fetch_sub(&call->refs, 1) != 1)
        return;
    body_release(&call->body);
    if (call->resp.file >= 0)
        close(call->resp.file);
    buf_release(&call->resp.body);
    buf_release(&call->stream.waiting);
    arena_release(&call->arena);
    pthread_mutex_destroy(&call->lock);
    free(call);
}

void call_set_gone(struct http_call *call)
{
    if (atomic_exchange(&call->gone, true))
        return;
    pthread_mutex_lock(&call->lock);
    if (call->gone_fn)
        call->gone_fn(call->gone_arg);
    call->gone_fn = NULL;
    stream_drop(call);
    pthread_mutex_unlock(&call->lock);
}

/* ---- the header ---- */

static enum MHD_Result count_field(void *arg, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    (void)kind, (void)name, (void)value;
    ++*(int *)arg;
    return MHD_YES;
}

static enum MHD_Result copy_field(void *arg, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct http_call *call = arg;
    struct http_field *f = (struct http_field *)&call->req.headers[call->req.n_headers];

    (void)kind;
    f->name = arena_strdup(&call->arena, name, strlen(name));
    f->value = arena_strdup(&call->arena, value ? value : "", value ? strlen(value) : 0);
    if (!f->name || !f->value)
        return MHD_NO;
    call->req.n_headers++;
    return MHD_YES;
}

static enum MHD_Result look_at_line(void *arg, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    (void)kind;
    framing_see_line(arg, name, value);
    return MHD_YES;
}

static int copy_headers(struct http_call *call)
{
    struct line_order order = {0};
    int n = 0;

    MHD_get_connection_values(call->mhd, MHD_HEADER_KIND, count_field, &n);
    call->req.headers = arena_alloc(&call->arena, (size_t)(n ? n : 1) * sizeof *call->req.headers);
    if (!call->req.headers)
        return -1;
    MHD_get_connection_values(call->mhd, MHD_HEADER_KIND, look_at_line, &order);
    framing_see_end(&order);
    call->broken_lines = order.broken;
    MHD_get_connection_values(call->mhd, MHD_HEADER_KIND, copy_field, call);
    return call->req.n_headers == n ? 0 : -1;
}

static void format_client(struct http_call *call)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(call->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char host[INET6_ADDRSTRLEN] = "?";
    int port = 0;

    if (info && info->client_addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)info->client_addr;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        port = ntohs(in->sin_port);
    } else if (info && info->client_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)info->client_addr;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
        port = ntohs(in6->sin6_port);
    }
    snprintf(call->req.client, sizeof call->req.client, strchr(host, ':') ? "[%s]:%d" : "%s:%d",
             host, port);
}

/* ENV-11: the caller's id when it is well-formed, else one of ours. */
void call_choose_id(struct http_call *call)
{
    static const char ok[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const char *given = http_req_header(&call->req, "X-Request-ID");
    size_t len = given ? strlen(given) : 0;

    if (len >= 1 && len <= HTTP_REQUEST_ID_MAX && strspn(given, ok) == len)
        memcpy(call->req.request_id, given, len + 1);
    else
        new_id("req_", call->req.request_id, sizeof call->req.request_id);
}

void call_identify(struct http_call *call)
{
    format_client(call);
    call_choose_id(call);
}

int call_read_head(struct http_call *call, const char *method)
{
    call->req.arrived_ns = clock_mono_ns();
    call->req.method = arena_strdup(&call->arena, method, strlen(method));
    if (!call->req.method || copy_headers(call) < 0)
        return -1;
    call_identify(call);
    return 0;
}
