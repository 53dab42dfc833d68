/* api/millm/leases.c - lease, lock and cancel of a model. What a route means and refuses:
 * service/models.h. */
#include "api/envelope.h"
#include "api/millm/routes.h"
#include "http/request.h"
#include "service/models.h"
#include "service/refusal.h"

static const char *lease_of(const struct api_call *call)
{
    return http_req_header(call->req, "X-miLLM-Lease");
}

void millm_take_lease(struct api_call *call)
{
    json_t *body = NULL, *errors = NULL, *data = NULL;
    struct refusal r = {0};
    int rc = millm_permitted(call, &r);

    api_body_object(call, 0, &body, &errors);
    if (rc == 0)
        rc = models_lease_take(call->api->service, call->id, body, errors, false, &data, &r);
    json_decref(body);
    json_decref(errors);
    millm_answer(call, 201, rc, data, &r);
}

void millm_get_lease(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = models_lease_get(call->api->service, call->id, &data, &r);

    millm_answer(call, 200, rc, data, &r);
}

void millm_renew_lease(struct api_call *call)
{
    json_t *body = NULL, *errors = NULL, *data = NULL;
    struct refusal r = {0};
    int rc = millm_permitted(call, &r);

    api_body_object(call, 1, &body, &errors);
    if (rc == 0)
        rc = models_lease_renew(call->api->service, call->id, lease_of(call), body, errors, &data,
                                &r);
    json_decref(body);
    json_decref(errors);
    millm_answer(call, 200, rc, data, &r);
}

void millm_end_lease(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = millm_permitted(call, &r);

    if (rc == 0)
        rc = models_lease_end(call->api->service, call->id, lease_of(call), &data, &r);
    millm_answer(call, 200, rc, data, &r);
}

/* ---- lock, unlock, cancel: no body is looked at ---- */

typedef int model_change_fn(struct service *s, int64_t id, json_t **data, struct refusal *r);

static void change(struct api_call *call, model_change_fn *fn)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = millm_permitted(call, &r);

    if (rc == 0)
        rc = fn(call->api->service, call->id, &data, &r);
    millm_answer(call, 200, rc, data, &r);
}

void millm_lock_model(struct api_call *call)
{
    change(call, models_lock);
}

void millm_unlock_model(struct api_call *call)
{
    change(call, models_unlock);
}

void millm_cancel_model(struct api_call *call)
{
    change(call, models_cancel);
}
