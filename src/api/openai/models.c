/* api/openai/models.c
 *
 * GET /v1/models         200 {"object": "list", "data": [model...]}; 503 weights_torn
 * GET /v1/models/{name}  200 model; 404 model_not_found; 503 weights_torn
 *
 * While a model is locked, it is the only one of the catalogue that is listed. */
#include <string.h>

#include "api/envelope.h"
#include "api/openai/errors.h"
#include "api/openai/routes.h"
#include "service/identity.h"
#include "service/refusal.h"
#include "service/weaver/names.h"

static json_t *model_object(const struct identity_entry *entry)
{
    return json_pack("{s:s, s:s, s:I, s:s}", "id", entry->id, "object", "model", "created",
                     (json_int_t)entry->created, "owned_by", entry->owned_by);
}

static void add_to_list(void *arg, const struct identity_entry *entry)
{
    if (!entry->locked_out)
        json_array_append_new(arg, model_object(entry));
}

struct search {
    const char *name;
    json_t *found;
};

static void keep_named(void *arg, const struct identity_entry *entry)
{
    struct search *s = arg;

    if (!s->found && strcmp(entry->id, s->name) == 0)
        s->found = model_object(entry);
}

void openai_list_models(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = json_array();

    if (identity_refuse_torn(call->api->service, &r) < 0 ||
        identity_list(call->api->service, add_to_list, data, &r) < 0) {
        json_decref(data);
        openai_fail(call, &r);
    } else {
        weaver_list_exports(call->api->service, add_to_list, data);
        api_json(call, 200, json_pack("{s:s, s:o}", "object", "list", "data", data));
    }
    refusal_clear(&r);
}

static int find_model(struct service *service, struct search *s, struct refusal *r)
{
    if (identity_refuse_torn(service, r) < 0)
        return -1;
    if (weaver_names(s->name))
        weaver_list_exports(service, keep_named, s);
    if (!s->found && identity_list(service, keep_named, s, r) < 0)
        return -1;
    if (s->found)
        return 0;
    return refuse_param(r, REFUSAL_V1_MODEL_NOT_FOUND, "model",
                        "The model '%.200s' does not exist. GET /v1/models lists those that do.",
                        s->name);
}

void openai_get_model(struct api_call *call)
{
    struct search s = {.name = call->rest};
    struct refusal r = {0};

    if (find_model(call->api->service, &s, &r) == 0)
        api_json(call, 200, s.found);
    else
        openai_fail(call, &r);
    refusal_clear(&r);
}
