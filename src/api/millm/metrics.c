/* api/millm/metrics.c - GET /metrics: not enveloped, open to everybody. What is in it:
 * service/metrics.h. */
#include "service/metrics.h"
#include "api/api.h"
#include "api/millm/routes.h"
#include "api/no_memory.h"
#include "base/buf.h"
#include "http/request.h"
#include "http/response.h"

void millm_metrics(struct api_call *call)
{
    struct http_stats http;
    struct buf page = {0};

    http_req_server_stats(call->req, &http);
    metrics_write(call->api->service, call->api->version, &http, &page);
    if (page.failed) {
        buf_release(&page);
        api_no_memory(call);
        return;
    }
    http_resp_body(call->resp, "text/plain; version=0.0.4; charset=utf-8", &page);
}
