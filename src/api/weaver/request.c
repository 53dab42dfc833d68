/* api/weaver/request.c - bodies of /api/v1: JSON, or the form that carries a tensor pack. */
#include <string.h>
#include <strings.h>

#include "api/weaver/face.h"
#include "base/err.h"
#include "base/json.h"
#include "base/sha256.h"
#include "http/multipart.h"
#include "http/request.h"
#include "service/refusal.h"

static int bad(struct refusal *r, const struct err *e)
{
    return refuse(r, REFUSAL_W_INVALID_REQUEST, "%s", e->msg);
}

static int corrupt(struct refusal *r, const char *what)
{
    return refuse(r, REFUSAL_W_TENSOR_PACK_CORRUPT, "The tensor pack is damaged: %s.", what);
}

static int parse(const char *text, size_t n, json_t **out, struct refusal *r)
{
    struct err e = {0};

    *out = json_parse(text, n, &e);
    if (!*out)
        return bad(r, &e);
    if (!json_is_object(*out))
        return refuse(r, REFUSAL_W_INVALID_REQUEST, "The body must be a JSON object.");
    return 0;
}

/* What the manifest says of the bytes on the wire. */
static int check_pack(const json_t *facts, const struct multipart_part *pack, struct refusal *r)
{
    const char *claimed = json_string_value(json_object_get(facts, "sha256"));
    char sha[SHA256_HEX];

    if (json_integer_value(json_object_get(facts, "size_bytes")) != (json_int_t)pack->len)
        return corrupt(r, "size_bytes is not the number of bytes that came");
    sha256_hex_of(pack->data, pack->len, sha);
    if (!claimed || strcmp(claimed, sha) != 0)
        return corrupt(r, "its sha256 is not the one of the manifest");
    return 0;
}

static int find_parts(const struct http_req *req, struct multipart_part *manifest,
                      struct multipart_part *pack, struct refusal *r)
{
    struct multipart m;
    struct multipart_part p;
    struct err e = {0};
    int rc;

    if (multipart_begin(&m, http_req_header(req, "Content-Type"), req->body, req->body_len, &e) < 0)
        return bad(r, &e);
    while ((rc = multipart_next(&m, &p, &e)) > 0) {
        struct multipart_part *to = strcmp(p.name, "manifest") == 0      ? manifest
                                    : strcmp(p.name, "tensor_pack") == 0 ? pack
                                                                         : NULL;

        if (to && to->data)
            return refuse(r, REFUSAL_W_INVALID_REQUEST, "The form has the part %s twice.", p.name);
        if (to)
            *to = p;
    }
    if (rc < 0)
        return bad(r, &e);
    if (!manifest->data || !pack->data)
        return refuse(r, REFUSAL_W_INVALID_REQUEST,
                      "The form must have the parts manifest and tensor_pack.");
    return 0;
}

/* {"version":1,"request":{...},"tensor_pack":{...}}: the request becomes the body, with the facts
 * of the pack as its member "tensor_pack". */
static int read_form(struct api_call *call, json_t **body, struct weaver_call *c, struct refusal *r)
{
    struct multipart_part manifest = {0}, pack = {0};
    json_t *whole = NULL, *request, *facts;
    int rc = -1;

    if (find_parts(call->req, &manifest, &pack, r) < 0 ||
        parse(manifest.data, manifest.len, &whole, r) < 0)
        goto done;
    request = json_object_get(whole, "request");
    facts = json_object_get(whole, "tensor_pack");
    if (json_integer_value(json_object_get(whole, "version")) != 1 || !json_is_object(request) ||
        !json_is_object(facts)) {
        refuse(r, REFUSAL_W_INVALID_REQUEST,
               "The manifest must have version 1, request and tensor_pack.");
        goto done;
    }
    if (check_pack(facts, &pack, r) < 0)
        goto done;
    json_object_set(request, "tensor_pack", facts);
    *body = json_incref(request);
    c->pack = pack.data;
    c->pack_bytes = pack.len;
    rc = 0;

done:
    json_decref(whole);
    return rc;
}

static bool is_form(const char *type)
{
    return type && strncasecmp(type, "multipart/form-data", 19) == 0;
}

int weaver_read_body(struct api_call *call, const struct weaver_route *route, json_t **body,
                     struct weaver_call *c, struct refusal *r)
{
    const struct http_req *req = call->req;
    int rc = 0;

    if (route->body == WEAVER_TENSORS && is_form(http_req_header(req, "Content-Type")))
        rc = read_form(call, body, c, r);
    else if (route->body != WEAVER_NO_BODY && req->body_len)
        rc = parse(req->body, req->body_len, body, r);
    else
        *body = json_object();
    c->body = *body;
    return rc;
}
