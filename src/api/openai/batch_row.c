/* api/openai/batch_row.c - the row becomes a request without a socket, in strict mode, and takes
 * the way of all requests: route table, handler, answer. */
#include "api/openai/batch_row.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/api.h"
#include "api/router.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "http/local.h"

struct row {
    struct api *api;
    const struct batch_call *call;
};

static void handle(void *arg, struct http_req *req, struct http_resp *resp)
{
    const struct row *row = arg;
    struct api_call call = {
        .api = row->api, .req = req, .resp = resp, .rest = "", .key = "", .row = row->call};
    struct api_match m;
    size_t n;
    const struct api_route *table = api_routes(&n);

    api_match_route(table, n, req->method, req->raw_path, &m);
    if (m.route)
        m.route->fn(&call);
    free(m.rest);
}

static void cancel(void *local)
{
    http_local_cancel(local);
}

static json_t *own_headers(const struct http_local *l)
{
    static const char prefix[] = "X-miLLM-";
    json_t *out = json_object();
    int n;
    const struct http_field *fields = http_local_headers(l, &n);

    for (int i = 0; i < n; i++)
        if (strncasecmp(fields[i].name, prefix, sizeof prefix - 1) == 0)
            json_object_set_new(out, fields[i].name, json_string(fields[i].value));
    return out;
}

static void take_answer(const struct http_local *l, struct batch_answer *out)
{
    const struct buf *body = http_local_body(l);
    struct err e = {0};

    out->body = body->failed ? NULL : json_parse(buf_str(body), body->len, &e);
    out->headers = own_headers(l);
    if (!out->body || !out->headers)
        return;
    out->status = http_local_status(l);
    str_copy(out->request_id, sizeof out->request_id, http_local_request_id(l));
}

void openai_batch_row(void *api, const struct batch_call *call, struct batch_answer *out)
{
    static const struct http_field headers[] = {
        {"Content-Type", "application/json"},
        {"X-miLLM-Strict", "true"},
        {"X-miLLM-Load-Policy", "refuse"},
    };
    const struct http_local_spec spec = {.method = "POST",
                                         .path = call->endpoint,
                                         .headers = headers,
                                         .n_headers = sizeof headers / sizeof *headers,
                                         .body = call->body,
                                         .body_len = call->body_len};
    struct row row = {.api = api, .call = call};
    struct err e = {0};
    struct http_local *l = http_local_new(&spec, &e);

    *out = (struct batch_answer){0};
    if (!l)
        return;
    if (call->watch)
        call->watch(call->watch_arg, cancel, l);
    http_local_run(l, handle, &row);
    if (call->watch)
        call->watch(call->watch_arg, NULL, NULL);
    take_answer(l, out);
    http_local_free(l);
}
