/* api/openai/routes.h - the handlers of /v1. */
#ifndef API_OPENAI_ROUTES_H
#define API_OPENAI_ROUTES_H

#include "api/api.h"

api_fn openai_list_models; /* GET /v1/models */
api_fn openai_get_model;   /* GET /v1/models/{rest...} */
api_fn openai_chat;        /* POST /v1/chat/completions */
api_fn openai_completions; /* POST /v1/completions */
api_fn openai_embeddings;  /* POST /v1/embeddings */

/* files.c */
api_fn openai_list_files;   /* GET /v1/files */
api_fn openai_upload_file;  /* POST /v1/files */
api_fn openai_get_file;     /* GET /v1/files/{key} */
api_fn openai_delete_file;  /* DELETE /v1/files/{key} */
api_fn openai_file_content; /* GET /v1/files/{key}/content */

/* batches.c */
api_fn openai_list_batches; /* GET /v1/batches */
api_fn openai_create_batch; /* POST /v1/batches */
api_fn openai_get_batch;    /* GET /v1/batches/{key} */
api_fn openai_cancel_batch; /* POST /v1/batches/{key}/cancel */
api_fn openai_lend_batch;   /* POST /v1/batches/{key}/lease */
#endif
