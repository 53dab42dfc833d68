#include "api/openai/pages.h"

#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/envelope.h"
#include "api/openai/errors.h"
#include "http/request.h"
#include "service/refusal.h"

int page_limit(struct api_call *call, int most, int fallback, int *out, struct refusal *r)
{
    char *text = http_req_query(call->req, "limit");
    size_t digits = text ? strspn(text, "0123456789") : 0;
    int rc = 0;

    *out = text && digits >= 1 && digits <= 6 && !text[digits] ? (int)strtol(text, NULL, 10)
           : text                                              ? 0
                                                               : fallback;
    if (*out < 1 || *out > most)
        rc = refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "limit",
                          "limit must be a whole number from 1 to %d.", most);
    free(text);
    return rc;
}

void openai_end(struct api_call *call, int rc, json_t *answer, struct refusal *r)
{
    if (rc < 0)
        openai_fail(call, r);
    else
        api_json(call, 200, answer);
    refusal_clear(r);
}

static json_t *id_at(const json_t *data, size_t i)
{
    json_t *id = json_object_get(json_array_get(data, i), "id");

    return id ? json_incref(id) : json_null();
}

void page_answer(struct api_call *call, json_t *data, bool more)
{
    size_t n = json_array_size(data);

    api_json(call, 200,
             json_pack("{s:s, s:o, s:o, s:o, s:b}", "object", "list", "first_id", id_at(data, 0),
                       "last_id", id_at(data, n ? n - 1 : 0), "data", data, "has_more", more));
}
