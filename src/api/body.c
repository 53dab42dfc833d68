#include "api/body.h"

#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/json.h"
#include "http/request.h"

/* A page of another site can send a body without this type and without asking first; with it, it
 * must ask. It must also ask before it sends a token, so there a missing type does no harm. */
static int declared_as_json(const struct http_req *req)
{
    static const char json[] = "application/json";
    const char *type = http_req_header(req, "Content-Type");
    size_t n = sizeof json - 1;

    if (!type)
        return http_req_header(req, "Authorization") != NULL;
    return strncasecmp(type, json, n) == 0 && strchr("; \t", type[n]) != NULL;
}

json_t *api_body_read(const struct http_req *req, struct err *e)
{
    json_t *body;

    if (req->body_len == 0) {
        err_set(e, ERR_ARG, "The request has no body; a JSON object is expected.");
        return NULL;
    }
    if (!declared_as_json(req)) {
        err_set(e, ERR_ARG, "Content-Type must be application/json.");
        return NULL;
    }
    body = json_parse(req->body, req->body_len, e);
    if (body && !json_is_object(body)) {
        json_decref(body);
        err_set(e, ERR_FORMAT, "The body must be a JSON object.");
        return NULL;
    }
    return body;
}
