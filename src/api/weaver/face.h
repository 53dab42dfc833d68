/* api/weaver/face.h - /api/v1: one entry for all routes of the training and sampling API.
 *
 * The entry finds the row of api/weaver/routes.c, checks X-WEAVER-API-KEY, decodes the body (JSON,
 * or a multipart form with a tensor pack), gives a repeated request its first answer, calls the use
 * case and writes what it filled in, or the error body
 * {"error", "message", "retryable", "details", "request_id"}. */
#ifndef API_WEAVER_FACE_H
#define API_WEAVER_FACE_H

#include <stdbool.h>
#include <stddef.h>

#include "api/api.h"
#include "service/weaver/weaver.h"

struct buf;
struct http_refusal_facts;
struct refusal;

enum weaver_body { WEAVER_NO_BODY, WEAVER_JSON, WEAVER_TENSORS };

struct weaver_route {
    const char *method;
    const char *pattern; /* as in api/router.h; {key} takes one segment */
    weaver_fn *fn;
    enum weaver_body body;
    int status;      /* of a success */
    bool by_address; /* no key: the address itself proves the right (signed links) */
};
const struct weaver_route *weaver_routes(size_t *n);

api_fn weaver_face; /* every method of /api/v1/{rest...} */
/* The row, or NULL with the methods of this path in allow (may be ""). key: at most 64 characters,
 * "" when there is none or it is longer. */
const struct weaver_route *weaver_match(const char *method, const char *raw_path, char key[65],
                                        const char **rest, char allow[64]);
size_t weaver_body_limit(const struct api *api, const char *method, const char *raw_path);
void weaver_refuse(const struct http_refusal_facts *f, struct buf *body); /* of the server itself */

/* request.c: the decoded body into c->body (owned by the caller) and c->pack. */
int weaver_read_body(struct api_call *call, const struct weaver_route *route, json_t **body,
                     struct weaver_call *c, struct refusal *r);
#endif
