/* api/millm/health.c - /api/health: not enveloped, open to everybody. */
#include "service/health.h"
#include "api/envelope.h"
#include "api/millm/routes.h"
#include "http/response.h"

void millm_health(struct api_call *call)
{
    api_json(call, 200, health_object(call->api->service, call->api->version));
}

void millm_version(struct api_call *call)
{
    api_json(call, 200, health_object(call->api->service, call->api->version));
}

void millm_ready(struct api_call *call)
{
    int retry_after_s = 0;
    json_t *o = health_ready(call->api->service, call->api->version, &retry_after_s);

    if (retry_after_s)
        http_resp_headerf(call->resp, "Retry-After", "%d", retry_after_s);
    api_json(call, retry_after_s ? 503 : 200, o);
}

void millm_health_detailed(struct api_call *call)
{
    api_json(call, 200, health_detailed(call->api->service, call->api->version));
}
