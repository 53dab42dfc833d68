#include "api/openai/errors.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "api/envelope.h"
#include "api/no_memory.h"
#include "base/log.h"
#include "http/request.h"
#include "http/response.h"
#include "service/metrics.h"
#include "service/refusal.h"
#include "service/service.h"

/* What a 503 says when the refusal itself knows no better (section 7.8). */
static int retry_after(const struct service *s, const struct refusal *r)
{
    const struct settings *set = s->settings;

    if (r->retry_after_s > 0)
        return r->retry_after_s;
    switch (r->code) {
    case REFUSAL_V1_QUEUE_FULL:
        return set->retry_queue_default_s;
    case REFUSAL_V1_MODEL_BUSY:
    case REFUSAL_V1_MODEL_LOADING:
        return set->retry_load_s;
    case REFUSAL_V1_MODEL_NOT_LOADED:
        return set->retry_not_loaded_s;
    case REFUSAL_V1_INSUFFICIENT_MEMORY:
        return set->retry_memory_s;
    case REFUSAL_V1_WEIGHTS_TORN:
        return set->retry_torn_s;
    default:
        log_ev(LOG_WARNING, "retry_after_defaulted", "code=%s", refusal_wire_code(r->code));
        return set->retry_fallback_s;
    }
}

static json_t *code_of(const struct refusal *r)
{
    char code[64];
    size_t i;

    snprintf(code, sizeof code, "%s", refusal_wire_code(r->code));
    for (i = 0; code[i]; i++)
        code[i] = (char)tolower((unsigned char)code[i]);
    return json_string(strcmp(code, "internal_error") == 0 ? "server_error" : code);
}

/* An internal fault is told without its insides (ENV-08); the log has them. */
static const char *message_of(const struct refusal *r)
{
    return r->code == REFUSAL_INTERNAL_ERROR ? "The server could not answer this request."
                                             : r->message;
}

json_t *openai_error(const struct service *s, const struct refusal *r, int in_stream)
{
    json_t *error =
        json_pack("{s:s, s:s, s:o, s:o}", "message", message_of(r), "type", refusal_type(r->code),
                  "param", r->param[0] ? json_string(r->param) : json_null(), "code", code_of(r));

    metrics_refused(s->metrics, r->code);
    if (in_stream && refusal_status(r->code) == 503)
        json_object_set_new(error, "retry_after", json_integer(retry_after(s, r)));
    return json_pack("{s:o}", "error", error);
}

void openai_fail(struct api_call *call, const struct refusal *r)
{
    int status = api_refusal_status(r);

    if (status >= 500)
        log_ev(status == 500 ? LOG_ERROR : LOG_INFO, "v1.failed", "id=%s code=%s message=\"%s\"",
               call->req->request_id, refusal_wire_code(r->code), r->message);
    if (status == 503)
        http_resp_headerf(call->resp, "Retry-After", "%d", retry_after(call->api->service, r));
    api_json(call, status, openai_error(call->api->service, r, 0));
}
