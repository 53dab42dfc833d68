#include "api/envelope.h"

#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "api/body.h"
#include "api/no_memory.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/nomem.h"
#include "http/request.h"
#include "http/response.h"
#include "service/metrics.h"
#include "service/refusal.h"
#include "service/service.h"

const char api_challenge[] = "Bearer realm=\"weights\"";

/* Consumes text. */
void api_text(struct api_call *call, int status, struct buf *text)
{
    if (text->failed || nomem_noted()) {
        buf_release(text);
        api_no_memory(call);
        return;
    }
    http_resp_status(call->resp, status);
    http_resp_body(call->resp, "application/json", text);
}

void api_json(struct api_call *call, int status, json_t *body)
{
    struct buf text = {0};

    if (body)
        json_write(&text, body);
    text.failed |= !body;
    json_decref(body);
    api_text(call, status, &text);
}

void api_bare(struct api_call *call, int status, const char *detail)
{
    api_json(call, status, json_pack("{s:s}", "detail", detail));
}

void api_ok(struct api_call *call, int status, json_t *data)
{
    api_json(
        call, status,
        json_pack("{s:b, s:o, s:n}", "success", 1, "data", data ? data : json_null(), "error"));
}

void api_text_begin(struct buf *text)
{
    buf_add_str(text, "{\"success\":true,\"data\":");
}

void api_text_end(struct api_call *call, int status, struct buf *text)
{
    buf_add_str(text, ",\"error\":null}");
    api_text(call, status, text);
}

/* ENV-03: both sentences stand in the details too. */
static json_t *error_object(const struct refusal *r)
{
    json_t *details = r->details ? json_copy(r->details) : json_object();

    if (!details)
        return NULL;
    json_object_set_new(details, "user_message", json_string(r->message));
    json_object_set_new(details, "technical_message", json_string(r->message));
    return json_pack("{s:s, s:s, s:o}", "code", refusal_wire_code(r->code), "message", r->message,
                     "details", details);
}

json_t *api_failure(const struct refusal *r)
{
    return json_pack("{s:b, s:n, s:o}", "success", 0, "data", "error", error_object(r));
}

static void add_failure_headers(struct api_call *call, const struct refusal *r, int status)
{
    if (status == 401)
        http_resp_header(call->resp, "WWW-Authenticate", api_challenge);
    if (status == 503)
        http_resp_headerf(call->resp, "Retry-After", "%d",
                          r->retry_after_s > 0 ? r->retry_after_s
                                               : call->api->service->settings->retry_fallback_s);
}

void api_fail(struct api_call *call, const struct refusal *r)
{
    int status = api_refusal_status(r);

    if (status == 500)
        log_ev(LOG_ERROR, "api.failed", "id=%s code=%s message=\"%s\"", call->req->request_id,
               refusal_wire_code(r->code), r->message);
    metrics_refused(call->api->service->metrics, r->code);
    add_failure_headers(call, r, status);
    api_json(call, status, api_failure(r));
}

void api_body_object(struct api_call *call, int may_be_empty, json_t **object, json_t **errors)
{
    struct err e = {0};

    *errors = NULL;
    *object =
        may_be_empty && call->req->body_len == 0 ? json_object() : api_body_read(call->req, &e);
    if (!*object)
        *errors = json_pack("[{s:s, s:s, s:s}]", "path", "$", "message", e.msg, "type",
                            e.code == ERR_ARG ? "missing" : "json_invalid");
}

int api_take_body(struct api_call *call, int may_be_empty, json_t **object)
{
    struct refusal r = {0};
    json_t *errors;

    api_body_object(call, may_be_empty, object, &errors);
    if (*object)
        return 0;
    refuse_with(&r, REFUSAL_VALIDATION_ERROR, json_pack("{s:o}", "errors", errors),
                "The request body is not valid.");
    api_fail(call, &r);
    refusal_clear(&r);
    return -1;
}

json_t *api_time(int64_t wall_ms)
{
    char text[32];

    if (wall_ms < 0)
        return json_null();
    clock_iso8601(wall_ms, text);
    return json_string(text);
}
