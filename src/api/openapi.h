/* api/openapi.h - GET /openapi.json: the tables of routes as an OpenAPI 3.1 document.
 *
 * One source: paths, methods, statuses, bodies and tokens are the rows of api/routes.tbl and
 * api/weaver/routes.c; the fields of /v1 requests are the tables of api/openai/fields.c; schemas
 * are docs/schemas/openapi-parts.json, embedded in the binary. */
#ifndef API_OPENAPI_H
#define API_OPENAPI_H

#include <jansson.h>

#include "api/api.h"

api_fn openapi_get;

/* Owned; NULL: out of memory. */
json_t *openapi_document(const char *version);
#endif
