/* api/routes.c - the one table of routes, from routes.tbl. */
#include "api/millm/routes.h"
#include "api/openai/routes.h"
#include "api/openapi.h"
#include "api/router.h"
#include "api/weaver/face.h"

enum { OPEN = false, TOKEN = true };

static const struct api_route routes[] = {
#define ROUTE(method, pattern, fn, body, token, status, asks, answers, summary) \
    {method, pattern, fn, body, {summary, status, asks, answers, NULL, token}},
#define RAW(method, pattern, fn, body, status, media, summary) \
    {method, pattern, fn, body, {summary, status, NULL, NULL, media, false}},
#define ELSEWHERE(method, pattern, fn, body) {method, pattern, fn, body, {0}},
#include "api/routes.tbl"
#undef ROUTE
#undef RAW
#undef ELSEWHERE
};

const struct api_route *api_routes(size_t *n)
{
    *n = sizeof routes / sizeof *routes;
    return routes;
}
