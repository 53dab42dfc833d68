#include "api/no_memory.h"

#include <string.h>

#include "api/api.h"
#include "base/log.h"
#include "base/nomem.h"
#include "http/request.h"
#include "http/response.h"
#include "service/refusal.h"

#define SENTENCE "There is not enough memory."

static const struct {
    const char *prefix, *text; /* the first prefix that fits */
} faces[] = {
    {"/api/v1/", "{\"error\":\"internal_error\",\"message\":\"" SENTENCE "\",\"retryable\":true,"
                 "\"request_id\":\"\",\"details\":{}}"},
    {"/v1/", "{\"error\":{\"message\":\"" SENTENCE "\",\"type\":\"server_error\",\"param\":null,"
             "\"code\":\"server_error\"}}"},
    {"", "{\"success\":false,\"data\":null,\"error\":{\"code\":\"INTERNAL_ERROR\",\"message\":"
         "\"" SENTENCE "\",\"details\":{\"user_message\":\"" SENTENCE "\",\"technical_message\":"
         "\"" SENTENCE "\"}}}"},
};

void api_no_memory(struct api_call *call)
{
    int face = 0;

    while (strncmp(call->req->raw_path, faces[face].prefix, strlen(faces[face].prefix)) != 0)
        face++;
    log_ev(LOG_ERROR, "api.failed", "id=%s cause=\"out of memory\"", call->req->request_id);
    http_resp_status(call->resp, 500);
    http_resp_text(call->resp, "application/json", faces[face].text);
}

int api_refusal_status(const struct refusal *r)
{
    int status = refusal_status(r->code);

    if (status >= 500)
        nomem_forget();
    return status;
}
