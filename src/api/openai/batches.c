/* api/openai/batches.c
 * POST /v1/batches              {"input_file_id", "endpoint", "completion_window", "metadata"?,
 *                               "output_expires_after"?, "pack"?}; 200 batch
 * GET  /v1/batches              ?limit&after; 200 a page of batches
 * GET  /v1/batches/{id}         200 batch
 * POST /v1/batches/{id}/cancel  200 batch
 * POST /v1/batches/{id}/lease   X-miLLM-Lease; 200 batch
 * Refusals: docs/api/batches.md. What a batch is: service/batches.h. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/body.h"
#include "api/envelope.h"
#include "api/openai/ask.h"
#include "api/openai/errors.h"
#include "api/openai/pages.h"
#include "api/openai/routes.h"
#include "base/err.h"
#include "http/request.h"
#include "service/batches.h"
#include "service/identity.h"
#include "service/refusal.h"
#include "service/service.h"

enum { PAGE_MOST = 100, PAGE_DEFAULT = 20 };

/* ---- create ---- */

static bool is_known(const char *name)
{
    static const char *const names[] = {"input_file_id",        "endpoint",
                                        "completion_window",    "metadata",
                                        "output_expires_after", "pack"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static int read_body(struct ask *a, struct refusal *r)
{
    struct err e = {0};
    const char *name;
    json_t *v;

    a->body = api_body_read(a->call->req, &e);
    if (!a->body)
        return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "", "%s", e.msg);
    json_object_foreach (a->body, name, v)
        if (!is_known(name) && !json_is_null(v))
            ask_ignore(a, "%s", name);
    return ask_verdict(a, r);
}

void openai_create_batch(struct api_call *call)
{
    struct service *s = call->api->service;
    struct refusal r = {0};
    json_t *data = NULL;
    struct ask a;
    int rc;

    ask_init(&a, call);
    rc = identity_refuse_torn(s, &r);
    if (rc == 0)
        rc = read_body(&a, &r);
    if (rc == 0)
        rc = batches_create(s, a.body, http_req_header(call->req, "X-miLLM-Lease"), &data, &r);
    if (rc == 0)
        ask_add_ignored(&a);
    openai_end(call, rc, data, &r);
    ask_release(&a);
}

/* ---- look ---- */

void openai_get_batch(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = identity_refuse_torn(call->api->service, &r);

    if (rc == 0)
        rc = batches_get(call->api->service, call->key, &data, &r);
    openai_end(call, rc, data, &r);
}

void openai_list_batches(struct api_call *call)
{
    char *after = http_req_query(call->req, "after");
    struct service *s = call->api->service;
    struct refusal r = {0};
    json_t *data = NULL;
    bool more = false;
    int limit;

    if (identity_refuse_torn(s, &r) < 0 ||
        page_limit(call, PAGE_MOST, PAGE_DEFAULT, &limit, &r) < 0 ||
        batches_list(s, after, limit, &data, &more, &r) < 0)
        openai_fail(call, &r);
    else
        page_answer(call, data, more);
    refusal_clear(&r);
    free(after);
}

/* ---- change ---- */

void openai_cancel_batch(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = identity_refuse_torn(call->api->service, &r);

    if (rc == 0)
        rc = batches_cancel(call->api->service, call->key, &data, &r);
    openai_end(call, rc, data, &r);
}

void openai_lend_batch(struct api_call *call)
{
    struct refusal r = {0};
    json_t *data = NULL;
    int rc = identity_refuse_torn(call->api->service, &r);

    if (rc == 0)
        rc = batches_lend(call->api->service, call->key,
                          http_req_header(call->req, "X-miLLM-Lease"), &data, &r);
    openai_end(call, rc, data, &r);
}
