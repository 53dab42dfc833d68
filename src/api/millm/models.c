/* api/millm/models.c - /api/models. What a route means and refuses: service/models.h. */
#include "service/models.h"

#include "api/envelope.h"
#include "api/millm/routes.h"
#include "http/request.h"
#include "service/refusal.h"

int millm_permitted(struct api_call *call, struct refusal *r)
{
    return models_permit(call->api->service, http_req_header(call->req, "Authorization"), r);
}

void millm_list_models(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = models_list(call->api->service, &data, &r);

    millm_answer(call, 200, rc, data, &r);
}

void millm_register_model(struct api_call *call)
{
    json_t *body = NULL, *errors = NULL, *data = NULL;
    struct refusal r = {0};
    int rc = millm_permitted(call, &r);

    api_body_object(call, 0, &body, &errors);
    if (rc == 0)
        rc = models_register(call->api->service, body, errors, &data, &r);
    json_decref(body);
    json_decref(errors);
    millm_answer(call, 202, rc, data, &r);
}

void millm_preview_model(struct api_call *call)
{
    json_t *body = NULL, *errors = NULL, *data = NULL;
    struct refusal r = {0};
    int rc = millm_permitted(call, &r); /* it tells what lies on this machine */

    api_body_object(call, 0, &body, &errors);
    if (rc == 0)
        rc = models_preview(call->api->service, body, errors, &data, &r);
    json_decref(body);
    json_decref(errors);
    millm_answer(call, 200, rc, data, &r);
}

void millm_get_model(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = models_get(call->api->service, call->id, &data, &r);

    millm_answer(call, 200, rc, data, &r);
}

void millm_delete_model(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = millm_permitted(call, &r);

    if (rc == 0)
        rc = models_delete(call->api->service, call->id, &data, &r);
    millm_answer(call, 200, rc, data, &r);
}

void millm_load_model(struct api_call *call)
{
    json_t *body = NULL, *errors = NULL, *data = NULL;
    struct refusal r = {0};
    int rc = millm_permitted(call, &r);

    api_body_object(call, 1, &body, &errors);
    if (rc == 0)
        rc = models_load(call->api->service, call->id, http_req_header(call->req, "X-miLLM-Lease"),
                         body, errors, &data, &r);
    json_decref(body);
    json_decref(errors);
    millm_answer(call, 202, rc, data, &r);
}

void millm_unload_model(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = millm_permitted(call, &r);

    if (rc == 0)
        rc = models_unload(call->api->service, call->id,
                           http_req_header(call->req, "X-miLLM-Lease"), &data, &r);
    millm_answer(call, 200, rc, data, &r);
}
