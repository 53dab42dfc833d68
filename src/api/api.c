#include "api/api.h"

#include <stdlib.h>
#include <string.h>

#include "api/envelope.h"
#include "api/millm/routes.h"
#include "api/no_memory.h"
#include "api/router.h"
#include "api/weaver/face.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/nomem.h"
#include "http/request.h"
#include "http/response.h"
#include "service/refusal.h"
#include "service/service.h"

static void refuse_id(struct api_call *call)
{
    struct refusal r = {0};

    refuse_with(&r, REFUSAL_VALIDATION_ERROR,
                json_pack("{s:[{s:s, s:s, s:s}]}", "errors", "path", "id", "message",
                          "must be a whole number of at least 1", "type", "int_parsing"),
                "The id in the address must be a whole number of at least 1.");
    api_fail(call, &r);
    refusal_clear(&r);
}

static bool is_weaver(const char *raw_path)
{
    return strncmp(raw_path, "/api/v1/", 8) == 0;
}

static void answer_unknown(struct api_call *call, const struct api_match *m)
{
    if (is_weaver(call->req->raw_path)) { /* its table knows the methods of each address */
        weaver_face(call);
        return;
    }
    if (!*m->allow) {
        api_bare(call, 404, "Not Found");
        return;
    }
    http_resp_header(call->resp, "Allow", m->allow);
    api_bare(call, 405, "Method Not Allowed");
}

/* What this request changes can be told: memory for its answer is set aside. An answer may repeat a
 * part of the request. */
static bool is_answerable(const struct http_req *req)
{
    enum { REPEATED_MOST = 1 << 20, COPIES = 4 }; /* values, and a text that grows */
    size_t repeated = req->body_len < REPEATED_MOST ? req->body_len : REPEATED_MOST;

    if (strcmp(req->method, "GET") == 0 || strcmp(req->method, "HEAD") == 0)
        return true;
    return nomem_set_aside(NOMEM_ANSWER + COPIES * repeated);
}

void api_handle(void *arg, struct http_req *req, struct http_resp *resp)
{
    struct api_match m;
    struct api_call call = {.api = arg, .req = req, .resp = resp, .rest = "", .key = m.key};
    size_t n;
    const struct api_route *table = api_routes(&n);

    nomem_forget();
    api_match_route(table, n, req->method, req->raw_path, &m);
    call.id = m.id;
    if (m.rest)
        call.rest = m.rest;
    if (!is_answerable(req))
        api_no_memory(&call);
    else if (!m.route)
        answer_unknown(&call, &m);
    else if (m.id < 0)
        refuse_id(&call);
    else
        m.route->fn(&call);
    nomem_let_go();
    free(m.rest);
}

/* The file, and what a form wraps around it. */
static size_t upload_limit(const struct settings *set)
{
    return (size_t)set->batch_max_file_bytes + api_body_limit(BODY_NONE);
}

size_t api_limit(void *arg, const char *method, const char *raw_path)
{
    struct api_match m;
    size_t n;
    const struct api_route *table = api_routes(&n);

    if (is_weaver(raw_path))
        return weaver_body_limit(arg, method, raw_path);
    api_match_route(table, n, method, raw_path, &m);
    free(m.rest);
    if (m.route && m.route->body == BODY_UPLOAD)
        return upload_limit(((const struct api *)arg)->service->settings);
    return api_body_limit(m.route ? m.route->body : BODY_SMALL);
}

/* ---- refusals of the server itself, in the form of the face ---- */

static json_t *v1_body(const struct http_refusal_facts *f)
{
    bool overloaded = f->kind == HTTP_OVERLOADED;
    const char *code = f->kind == HTTP_TOO_LARGE ? "payload_too_large"
                       : overloaded              ? "server_error"
                                                 : "invalid_parameter";

    return json_pack("{s:{s:s, s:s, s:n, s:s}}", "error", "message", f->message, "type",
                     overloaded ? "server_error" : "invalid_request_error", "param", "code", code);
}

/* A token is judged before the size of the body. */
static json_t *management_body(struct api *api, struct http_refusal_facts *f)
{
    struct refusal r = {0};
    json_t *o;

    if (f->kind != HTTP_TOO_LARGE)
        return json_pack("{s:s}", "detail", f->message);
    refuse_with(&r, REFUSAL_PAYLOAD_TOO_LARGE,
                json_pack("{s:I, s:I}", "limit_bytes", (json_int_t)f->limit_bytes, "measured_bytes",
                          (json_int_t)f->measured_bytes),
                "%s", f->message);
    millm_judge_too_large(api, f, &r);
    f->status = refusal_status(r.code);
    f->challenge = f->status == 401 ? api_challenge : NULL;
    o = api_failure(&r);
    refusal_clear(&r);
    return o;
}

const char *api_refuse(void *arg, const char *raw_path, struct http_refusal_facts *f,
                       struct buf *body)
{
    if (is_weaver(raw_path)) {
        weaver_refuse(f, body);
        return "application/json";
    }
    json_t *o = strncmp(raw_path, "/v1/", 4) == 0 ? v1_body(f) : management_body(arg, f);

    if (o)
        json_write(body, o);
    json_decref(o);
    return "application/json";
}
