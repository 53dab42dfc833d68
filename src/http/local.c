#include "http/local.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "http/call.h"

/* struct http_local is the call itself, under a name that promises no socket. */
static struct http_call *call_of(struct http_local *l)
{
    return (struct http_call *)(void *)l;
}

static const struct http_call *call_of_const(const struct http_local *l)
{
    return (const struct http_call *)(const void *)l;
}

static int copy_fields(struct http_call *call, const struct http_field *from, int n)
{
    struct http_field *to = arena_alloc(&call->arena, (size_t)(n ? n : 1) * sizeof *to);

    if (!to)
        return -1;
    for (int i = 0; i < n; i++) {
        to[i].name = arena_strdup(&call->arena, from[i].name, strlen(from[i].name));
        to[i].value = arena_strdup(&call->arena, from[i].value, strlen(from[i].value));
        if (!to[i].name || !to[i].value)
            return -1;
    }
    call->req.headers = to;
    call->req.n_headers = n;
    return 0;
}

struct http_local *http_local_new(const struct http_local_spec *spec, struct err *e)
{
    struct http_call *call = call_new(NULL, spec->path);

    if (!call)
        goto fail;
    call->req.method = arena_strdup(&call->arena, spec->method, strlen(spec->method));
    if (!call->req.method || copy_fields(call, spec->headers, spec->n_headers) < 0)
        goto fail;
    call->req.body = spec->body;
    call->req.body_len = spec->body_len;
    call->req.arrived_ns = clock_mono_ns();
    call_choose_id(call);
    return (struct http_local *)call;

fail:
    if (call)
        call_unref(call);
    err_nomem(e);
    return NULL;
}

void http_local_run(struct http_local *l, http_handler_fn *handler, void *arg)
{
    handler(arg, &call_of(l)->req, &call_of(l)->resp);
}

void http_local_cancel(struct http_local *l)
{
    call_set_gone(call_of(l));
}

int http_local_status(const struct http_local *l)
{
    return call_of_const(l)->resp.status;
}

const struct buf *http_local_body(const struct http_local *l)
{
    return &call_of_const(l)->resp.body;
}

const struct http_field *http_local_headers(const struct http_local *l, int *n)
{
    *n = call_of_const(l)->resp.n_headers;
    return call_of_const(l)->resp.headers;
}

const char *http_local_request_id(const struct http_local *l)
{
    return call_of_const(l)->req.request_id;
}

void http_local_free(struct http_local *l)
{
    if (l)
        call_unref(call_of(l));
}
