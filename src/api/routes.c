/* api/routes.c - the one table of routes. Literal rows stand before patterns. */
#include "api/millm/routes.h"
#include "api/openai/routes.h"
#include "api/router.h"
#include "api/weaver/face.h"

static const struct api_route routes[] = {
    {"GET", "/v1/models", openai_list_models, BODY_NONE},
    {"GET", "/v1/models/{rest...}", openai_get_model, BODY_NONE},
    {"POST", "/v1/chat/completions", openai_chat, BODY_LARGE},
    {"POST", "/v1/completions", openai_completions, BODY_LARGE},
    {"POST", "/v1/embeddings", openai_embeddings, BODY_LARGE},

    {"GET", "/v1/files", openai_list_files, BODY_NONE},
    {"POST", "/v1/files", openai_upload_file, BODY_UPLOAD},
    {"GET", "/v1/files/{key}", openai_get_file, BODY_NONE},
    {"DELETE", "/v1/files/{key}", openai_delete_file, BODY_NONE},
    {"GET", "/v1/files/{key}/content", openai_file_content, BODY_NONE},
    {"GET", "/v1/batches", openai_list_batches, BODY_NONE},
    {"POST", "/v1/batches", openai_create_batch, BODY_SMALL},
    {"GET", "/v1/batches/{key}", openai_get_batch, BODY_NONE},
    {"POST", "/v1/batches/{key}/cancel", openai_cancel_batch, BODY_SMALL},
    {"POST", "/v1/batches/{key}/lease", openai_lend_batch, BODY_SMALL},

    /* the training and sampling API: api/weaver/routes.c */
    {"GET", "/api/v1/{rest...}", weaver_face, BODY_NONE},
    {"POST", "/api/v1/{rest...}", weaver_face, BODY_LARGE},
    {"PATCH", "/api/v1/{rest...}", weaver_face, BODY_SMALL},
    {"DELETE", "/api/v1/{rest...}", weaver_face, BODY_NONE},

    {"POST", "/api/weights/attach", millm_attach, BODY_SMALL},
    {"POST", "/api/weights/detach", millm_detach, BODY_SMALL},
    {"POST", "/api/weights/heartbeat", millm_heartbeat, BODY_SMALL},
    {"POST", "/api/weights/quiesce", millm_quiesce, BODY_SMALL},
    {"POST", "/api/weights/resume", millm_resume, BODY_SMALL},
    {"POST", "/api/weights/commit-begin", millm_commit_begin, BODY_SMALL},
    {"POST", "/api/weights/commit-end", millm_commit_end, BODY_SMALL},
    {"POST", "/api/weights/save", millm_save, BODY_SMALL},
    {"POST", "/api/weights/load", millm_load, BODY_SMALL},
    {"POST", "/api/weights/plan/save", millm_plan_save, BODY_SMALL},
    {"POST", "/api/weights/plan/load", millm_plan_load, BODY_SMALL},
    {"GET", "/api/weights/lineage", millm_lineage, BODY_NONE},
    {"GET", "/api/weights/status", millm_status, BODY_NONE},

    {"GET", "/api/adapters", millm_list_adapters, BODY_NONE},
    {"POST", "/api/adapters/apply", millm_apply_adapter, BODY_SMALL},
    {"POST", "/api/adapters/remove", millm_remove_adapter, BODY_SMALL},

    {"GET", "/api/models", millm_list_models, BODY_NONE},
    {"POST", "/api/models", millm_register_model, BODY_SMALL},
    {"POST", "/api/models/preview", millm_preview_model, BODY_SMALL},
    {"GET", "/api/models/{id}", millm_get_model, BODY_NONE},
    {"DELETE", "/api/models/{id}", millm_delete_model, BODY_NONE},
    {"POST", "/api/models/{id}/load", millm_load_model, BODY_SMALL},
    {"POST", "/api/models/{id}/unload", millm_unload_model, BODY_SMALL},

    {"POST", "/api/models/{id}/lock", millm_lock_model, BODY_SMALL},
    {"POST", "/api/models/{id}/unlock", millm_unlock_model, BODY_SMALL},
    {"POST", "/api/models/{id}/cancel", millm_cancel_model, BODY_SMALL},
    {"POST", "/api/models/{id}/lease", millm_take_lease, BODY_SMALL},
    {"GET", "/api/models/{id}/lease", millm_get_lease, BODY_NONE},
    {"DELETE", "/api/models/{id}/lease", millm_end_lease, BODY_NONE},
    {"POST", "/api/models/{id}/lease/renew", millm_renew_lease, BODY_SMALL},

    {"GET", "/api/health", millm_health, BODY_NONE},
    {"GET", "/api/health/ready", millm_ready, BODY_NONE},
    {"GET", "/api/health/detailed", millm_health_detailed, BODY_NONE},
    {"GET", "/api/health/version", millm_version, BODY_NONE},
    {"GET", "/metrics", millm_metrics, BODY_NONE},
};

const struct api_route *api_routes(size_t *n)
{
    *n = sizeof routes / sizeof *routes;
    return routes;
}
