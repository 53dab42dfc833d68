/* api/openai/routes.h - the handlers of /v1. */
#ifndef API_OPENAI_ROUTES_H
#define API_OPENAI_ROUTES_H

#include "api/api.h"

api_fn openai_list_models; /* GET /v1/models */
api_fn openai_get_model;   /* GET /v1/models/{rest...} */
api_fn openai_chat;        /* POST /v1/chat/completions */
api_fn openai_completions; /* POST /v1/completions */
api_fn openai_embeddings;  /* POST /v1/embeddings */
#endif
