#include "api/weaver/face.h"

#include <stdlib.h>
#include <string.h>

#include "api/no_memory.h"
#include "api/router.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/nomem.h"
#include "http/request.h"
#include "http/response.h"
#include "service/metrics.h"
#include "service/refusal.h"
#include "service/service.h"
#include "service/tokens.h"
#include "service/weaver/answers.h"

enum { RETRY_S = 1 };

/* ---- answers ---- */

static json_t *error_object(const struct refusal *r, const char *request_id)
{
    json_t *o =
        json_pack("{s:s, s:s, s:b, s:s}", "error", refusal_wire_code(r->code), "message",
                  r->message, "retryable", refusal_retryable(r->code), "request_id", request_id);

    if (o)
        json_object_set_new(o, "details", r->details ? json_copy(r->details) : json_object());
    return o;
}

/* Status and JSON text of a refusal. */
static int refused(struct api_call *call, const struct refusal *r, struct buf *text)
{
    int status = api_refusal_status(r);
    json_t *o = error_object(r, call->req->request_id);

    metrics_refused(call->api->service->metrics, r->code);
    if (status >= 500)
        log_ev(status == 500 ? LOG_ERROR : LOG_INFO, "weaver.failed",
               "id=%s code=%s message=\"%s\"", call->req->request_id, refusal_wire_code(r->code),
               r->message);
    if (o)
        json_write(text, o);
    text->failed |= !o;
    json_decref(o);
    return status;
}

static void send(struct api_call *call, int status, struct buf *text)
{
    if (text->failed) {
        api_no_memory(call);
        return;
    }
    http_resp_status(call->resp, status);
    if (status == 503 || status == 429)
        http_resp_headerf(call->resp, "Retry-After", "%d", RETRY_S);
    http_resp_body(call->resp, "application/json", text);
}

static void send_refusal(struct api_call *call, const struct refusal *r)
{
    struct buf text = {0};
    int status = refused(call, r, &text);

    send(call, status, &text);
}

static void send_file(struct api_call *call, struct weaver_call *c)
{
    http_resp_status(call->resp, c->status);
    http_resp_header(call->resp, "Accept-Ranges", "bytes");
    if (c->status == 206)
        http_resp_headerf(call->resp, "Content-Range", "bytes %lld-%lld/%lld",
                          (long long)c->file_from, (long long)(c->file_from + c->file_bytes - 1),
                          (long long)c->file_size);
    http_resp_file_part(call->resp, "application/octet-stream", c->file, (size_t)c->file_from,
                        (size_t)c->file_bytes);
}

/* ---- finding the row ---- */

const struct weaver_route *weaver_match(const char *method, const char *raw_path, char key[65],
                                        const char **rest, char allow[64])
{
    size_t n;
    const struct weaver_route *rows = weaver_routes(&n);
    struct api_match m;

    *allow = *key = '\0';
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < n; i++) {
        if (!api_pattern_fits(rows[i].pattern, raw_path, &m, rest))
            continue;
        if (strcmp(rows[i].method, method) == 0) {
            memcpy(key, m.key, sizeof m.key);
            return &rows[i];
        }
        if (*allow)
            strncat(allow, ", ", 63 - strlen(allow));
        strncat(allow, rows[i].method, 63 - strlen(allow));
    }
    return NULL;
}

static int no_route(struct api_call *call, const char *allow, struct refusal *r)
{
    if (!*allow)
        return refuse(r, REFUSAL_W_ROUTE_NOT_FOUND, "There is no route %.200s.",
                      call->req->raw_path);
    http_resp_header(call->resp, "Allow", allow);
    return refuse(r, REFUSAL_W_METHOD_NOT_ALLOWED, "This route takes %s.", allow);
}

/* ---- who asks ---- */

static int check_key(struct api_call *call, const struct weaver_route *route, const char **owner,
                     struct refusal *r)
{
    const struct service *s = call->api->service;
    const char *key = http_req_header(call->req, "X-WEAVER-API-KEY");
    const struct token_owner *found;

    *owner = "";
    if (route && route->by_address)
        return 0;
    if (!s->weaver || !s->keys || tokens_empty(s->keys))
        return refuse(
            r, REFUSAL_W_UNAUTHORIZED,
            "The training API is off: start the server with WEAVER_API_KEYS, a comma list "
            "of identity:key, and send one of the keys as X-WEAVER-API-KEY.");
    found = tokens_find_key(s->keys, key);
    if (!found)
        return refuse(r, REFUSAL_W_UNAUTHORIZED,
                      key ? "The key in X-WEAVER-API-KEY is not known."
                          : "Send a key as X-WEAVER-API-KEY (the client reads WEAVER_API_KEY).");
    *owner = found->identity;
    return 0;
}

/* ---- the call ---- */

/* What the address and the key say. */
struct asked {
    const struct weaver_route *route;
    const char *owner;
    char key[65];
    const char *rest; /* or NULL */
};

static json_t *query_object(const struct http_req *req)
{
    static const char *const names[] = {"limit",   "offset",       "model_id", "status",
                                        "project", "organization", "expires",  "signature"};
    json_t *o = json_object();

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *v = *req->query ? http_req_query(req, names[i]) : NULL;

        if (v)
            json_object_set_new(o, names[i], json_string(v));
        free(v);
    }
    return o;
}

/* What links in answers begin with. The server has checked Host. */
static void origin_of(const struct api_call *call, struct buf *out)
{
    const char *public = call->api->service->settings->public_url;
    const char *proto = http_req_header(call->req, "X-Forwarded-Proto");
    const char *host = http_req_header(call->req, "Host");

    if (public)
        buf_printf(out, "%.*s", (int)(strlen(public) - (public[strlen(public) - 1] == '/')),
                   public);
    else
        buf_printf(out, "%s://%s", proto && strcmp(proto, "https") == 0 ? "https" : "http",
                   host ? host : "localhost");
}

/* Runs the use case: a status and a JSON text, or a file in c (then text is empty). */
static int run(struct api_call *call, const struct weaver_route *route, struct weaver_call *c,
               struct buf *text)
{
    struct refusal r = {0};
    json_t *body = NULL;
    int status;

    if (weaver_read_body(call, route, &body, c, &r) < 0 ||
        route->fn(call->api->service->weaver, c, &r) < 0) {
        status = refused(call, &r, text);
        buf_release(&c->text);
    } else {
        status = c->status;
        if (c->text.len || c->text.failed) {
            *text = c->text;
            c->text = (struct buf){0};
        } else if (c->data) {
            json_write(text, c->data);
        }
    }
    json_decref(c->data);
    json_decref(body);
    refusal_clear(&r);
    return status;
}

static struct weaver_call new_call(struct api_call *call, const struct asked *a)
{
    return (struct weaver_call){.owner = a->owner,
                                .key = a->key,
                                .rest = a->rest ? a->rest : "",
                                .range = http_req_header(call->req, "Range"),
                                .gone = http_req_gone(call->req),
                                .status = a->route->status,
                                .file = -1};
}

/* `ended` may be NULL; see weaver_call.ended. */
static void answer(struct api_call *call, const struct asked *a, struct buf *text, int *status,
                   char ended[UUID_TEXT])
{
    struct weaver_call c = new_call(call, a);
    struct buf origin = {0};
    json_t *query = query_object(call->req);

    origin_of(call, &origin);
    c.query = query;
    c.origin = buf_str(&origin);
    *status = run(call, a->route, &c, text);
    text->failed |= c.file < 0 && nomem_noted();
    if (text->failed)
        *status = 500;
    if (ended)
        memcpy(ended, c.ended, UUID_TEXT);
    if (*status == 416)
        http_resp_headerf(call->resp, "Content-Range", "bytes */%lld", (long long)c.file_size);
    if (c.file >= 0)
        send_file(call, &c);
    json_decref(query);
    buf_release(&origin);
}

static size_t hex_run(const char *s, bool *zero)
{
    size_t n = strspn(s, "0123456789abcdef");

    *zero = strspn(s, "0") >= n;
    return n;
}

/* As W3C has it: "00-<32 hex>-<16 hex>-<2 hex>", ids that are not all zeros. Another text tells no
 * call from the next: a client that traces nothing sends the same one each time. */
static bool is_trace(const char *s)
{
    static const size_t lengths[] = {2, 32, 16, 2};
    bool zero;

    for (int i = 0; s && i < 4; i++) {
        if (hex_run(s, &zero) != lengths[i] || (zero && (i == 1 || i == 2)))
            return false;
        s += lengths[i];
        if (i < 3 && *s++ != '-')
            return false;
    }
    return s != NULL;
}

/* A request that changes something, with a trace: its answer is kept. */
static void answer_once(struct api_call *call, const struct asked *a, const char *trace,
                        struct buf *text, int *status)
{
    struct weaver *w = call->api->service->weaver;
    struct buf name = {0};
    struct w_answer *first;
    char ended[UUID_TEXT] = "";
    struct refusal r = {0};

    buf_printf(&name, "%s %s %s %s", call->req->method, call->req->raw_path, trace, a->owner);
    first = w_answer_take(w, buf_str(&name), status, text);
    if (first) {
        answer(call, a, text, status, ended);
        w_answer_keep(w, first, *status, text, ended);
    } else if (*status == 0) {
        refuse(&r, REFUSAL_W_BUSY, "The same request is still being worked on.");
        *status = refused(call, &r, text);
        refusal_clear(&r);
    }
    buf_release(&name);
}

void weaver_face(struct api_call *call)
{
    const char *trace = http_req_header(call->req, "traceparent");
    struct asked a = {0};
    char allow[64];
    struct refusal r = {0};
    struct buf text = {0};
    int status = 0;

    a.route = weaver_match(call->req->method, call->req->raw_path, a.key, &a.rest, allow);
    if (check_key(call, a.route, &a.owner, &r) < 0 || (!a.route && no_route(call, allow, &r) < 0)) {
        send_refusal(call, &r);
        refusal_clear(&r);
        return;
    }
    if (is_trace(trace) && strcmp(a.route->method, "GET") != 0)
        answer_once(call, &a, trace, &text, &status);
    else
        answer(call, &a, &text, &status, NULL);
    if (text.len || text.failed)
        send(call, status, &text);
    else
        http_resp_status(call->resp, status);
    buf_release(&text);
}

/* ---- the server's own refusals ---- */

size_t weaver_body_limit(const struct api *api, const char *method, const char *raw_path)
{
    char key[65], allow[64];
    const char *rest;
    const struct weaver_route *route = weaver_match(method, raw_path, key, &rest, allow);
    const size_t form = 32 << 20; /* manifest and boundaries around the pack */

    if (!route || route->body != WEAVER_TENSORS)
        return api_body_limit(route && route->body == WEAVER_JSON ? BODY_LARGE : BODY_NONE);
    return ((size_t)api->service->settings->max_pack_mb << 20) + form;
}

void weaver_refuse(const struct http_refusal_facts *f, struct buf *body)
{
    bool overloaded = f->kind == HTTP_OVERLOADED;
    const char *code = f->kind == HTTP_TOO_LARGE ? "request_too_large"
                       : overloaded              ? "busy"
                                                 : "invalid_request";
    json_t *o =
        json_pack("{s:s, s:s, s:b, s:{s:I}}", "error", code, "message", f->message, "retryable",
                  overloaded, "details", "limit_bytes", (json_int_t)f->limit_bytes);

    if (o)
        json_write(body, o);
    json_decref(o);
}
