/* api/millm/weights.c - /api/weights. What a route means and refuses: service/weights.h. */
#include "service/weights.h"

#include <string.h>

#include "api/envelope.h"
#include "api/millm/routes.h"
#include "base/buf.h"
#include "http/request.h"
#include "http/response.h"
#include "http/server.h"
#include "service/adapters.h"
#include "service/refusal.h"

void millm_answer(struct api_call *call, int status, int rc, json_t *data, struct refusal *r)
{
    if (rc == 0)
        api_ok(call, status, data);
    else
        api_fail(call, r);
    refusal_clear(r);
}

static void protected_route(struct api_call *call, weights_route_fn *route, int status)
{
    json_t *body = NULL, *errors = NULL, *data = NULL;
    struct refusal r = {0};
    int rc;

    api_body_object(call, 1, &body, &errors);
    struct weights_req req = {
        .authorization = http_req_header(call->req, "Authorization"),
        .attachment = http_req_header(call->req, "X-miLLM-Attachment"),
        .lease = http_req_header(call->req, "X-miLLM-Lease"),
        .request_id = call->req->request_id,
        .client_addr = call->req->client,
        .body = body,
        .body_errors = errors,
        .gone = http_req_gone(call->req),
    };
    rc = route(call->api->service, &req, &data, &r);
    json_decref(body);
    json_decref(errors);
    millm_answer(call, status, rc, data, &r);
}

void millm_attach(struct api_call *call)
{
    protected_route(call, weights_attach, 201);
}

void millm_detach(struct api_call *call)
{
    protected_route(call, weights_detach, 200);
}

void millm_heartbeat(struct api_call *call)
{
    protected_route(call, weights_heartbeat, 200);
}

void millm_quiesce(struct api_call *call)
{
    protected_route(call, weights_quiesce, 200);
}

void millm_resume(struct api_call *call)
{
    protected_route(call, weights_resume, 200);
}

void millm_commit_begin(struct api_call *call)
{
    protected_route(call, weights_commit_begin, 200);
}

void millm_commit_end(struct api_call *call)
{
    protected_route(call, weights_commit_end, 200);
}

void millm_save(struct api_call *call)
{
    protected_route(call, weights_save, 201);
}

void millm_promote(struct api_call *call)
{
    protected_route(call, weights_promote, 201);
}

void millm_load(struct api_call *call)
{
    protected_route(call, weights_load, 200);
}

void millm_plan_save(struct api_call *call)
{
    protected_route(call, weights_plan_save, 200);
}

void millm_plan_load(struct api_call *call)
{
    protected_route(call, weights_plan_load, 200);
}

void millm_apply_adapter(struct api_call *call)
{
    protected_route(call, adapters_apply, 200);
}

void millm_remove_adapter(struct api_call *call)
{
    protected_route(call, adapters_remove, 200);
}

void millm_list_adapters(struct api_call *call)
{
    json_t *data = NULL;
    struct refusal r = {0};
    int rc = adapters_list(call->api->service, &data, &r);

    millm_answer(call, 200, rc, data, &r);
}

void millm_lineage(struct api_call *call)
{
    struct buf text = {0};
    struct refusal r = {0};

    api_text_begin(&text);
    if (weights_lineage(call->api->service, &text, &r) == 0)
        api_text_end(call, 200, &text);
    else
        api_fail(call, &r);
    refusal_clear(&r);
    buf_release(&text);
}

void millm_status(struct api_call *call)
{
    api_ok(call, 200, weights_status(call->api->service));
}

void millm_judge_too_large(struct api *api, const struct http_refusal_facts *f, struct refusal *r)
{
    struct weights_req req = {
        .authorization = http_req_header(f->req, "Authorization"),
        .attachment = http_req_header(f->req, "X-miLLM-Attachment"),
        .request_id = f->req->request_id,
        .client_addr = f->req->client,
    };

    if (strcmp(f->req->method, "POST") == 0)
        weights_judge_too_large(api->service, &req, f->req->raw_path, r);
}
