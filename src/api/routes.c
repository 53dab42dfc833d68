/* api/routes.c - the one table of routes. Literal rows stand before patterns. */
#include "api/openai/routes.h"
#include "api/router.h"

static const struct api_route routes[] = {
    {"GET", "/v1/models", openai_list_models, BODY_NONE},
    {"GET", "/v1/models/{rest...}", openai_get_model, BODY_NONE},
    {"POST", "/v1/chat/completions", openai_chat, BODY_LARGE},
    {"POST", "/v1/completions", openai_completions, BODY_LARGE},
};

const struct api_route *api_routes(size_t *n)
{
    *n = sizeof routes / sizeof *routes;
    return routes;
}
