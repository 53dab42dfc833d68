/* api/weaver/routes.c - the table of /api/v1. */
#include "api/weaver/face.h"

static const struct weaver_route routes[] = {
    {"POST", "/api/v1/sessions", weaver_session_create, WEAVER_JSON, 201, false},
    {"GET", "/api/v1/sessions/{key}", weaver_session_get, WEAVER_NO_BODY, 200, false},
    {"POST", "/api/v1/sessions/{key}/heartbeat", weaver_session_heartbeat, WEAVER_NO_BODY, 200,
     false},
    {"POST", "/api/v1/sessions/{key}/metrics", weaver_session_metrics, WEAVER_JSON, 200, false},

    {"POST", "/api/v1/sessions/{key}/models", weaver_model_create, WEAVER_JSON, 201, false},
    {"GET", "/api/v1/models", weaver_model_list, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/models/{key}", weaver_model_get, WEAVER_NO_BODY, 200, false},
    {"POST", "/api/v1/models/{key}/terminate", weaver_model_terminate, WEAVER_JSON, 200, false},
    {"GET", "/api/v1/training-runs", weaver_model_list, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/training-runs/{key}", weaver_run_get, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/training-runs/{key}/losses", weaver_run_losses, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/checkpoints/{key}", weaver_checkpoint_get, WEAVER_NO_BODY, 200, false},

    {"POST", "/api/v1/models/{key}/forward-passes", weaver_forward, WEAVER_TENSORS, 202, false},
    {"POST", "/api/v1/models/{key}/forward-backward-passes", weaver_forward_backward,
     WEAVER_TENSORS, 202, false},
    {"POST", "/api/v1/models/{key}/optimizer-steps", weaver_optimizer_step, WEAVER_JSON, 202,
     false},

    {"POST", "/api/v1/models/{key}/export-sampler", weaver_export_sampler, WEAVER_JSON, 202, false},
    {"POST", "/api/v1/models/{key}/checkpoints", weaver_save, WEAVER_JSON, 202, false},
    {"GET", "/api/v1/models/{key}/checkpoints", weaver_checkpoint_list, WEAVER_NO_BODY, 200, false},
    {"PATCH", "/api/v1/models/{key}/checkpoints/ttl", weaver_checkpoint_ttl, WEAVER_JSON, 200,
     false},
    {"POST", "/api/v1/models/{key}/load", weaver_load, WEAVER_JSON, 202, false},
    {"GET", "/api/v1/checkpoints", weaver_checkpoint_all, WEAVER_NO_BODY, 200, false},
    {"DELETE", "/api/v1/checkpoints/{key}", weaver_checkpoint_delete, WEAVER_NO_BODY, 204, false},

    {"POST", "/api/v1/models/{key}/export-hf", weaver_export_model, WEAVER_JSON, 202, false},
    {"POST", "/api/v1/checkpoints/{key}/export", weaver_export_checkpoint, WEAVER_JSON, 202, false},
    {"GET", "/api/v1/checkpoints/{key}/artifacts", weaver_artifact_list, WEAVER_NO_BODY, 200,
     false},
    {"GET", "/api/v1/artifacts/{key}", weaver_artifact_get, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/artifacts/{key}/download", weaver_artifact_files, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/artifacts/{key}/files/{rest...}", weaver_file, WEAVER_NO_BODY, 200, true},

    {"POST", "/api/v1/sessions/{key}/sampling-sessions", weaver_sampler_create, WEAVER_JSON, 201,
     false},
    {"GET", "/api/v1/sampling-sessions/{key}", weaver_sampler_get, WEAVER_NO_BODY, 200, false},
    {"DELETE", "/api/v1/sampling-sessions/{key}", weaver_sampler_delete, WEAVER_NO_BODY, 204,
     false},
    {"POST", "/api/v1/sampling-sessions/{key}/samples", weaver_sample, WEAVER_JSON, 202, false},
    {"POST", "/api/v1/sampling-sessions/{key}/logprobs", weaver_logprobs, WEAVER_JSON, 202, false},
    {"POST", "/api/v1/sampling-sessions/{key}/pause-generation", weaver_pause, WEAVER_JSON, 200,
     false},
    {"POST", "/api/v1/sampling-sessions/{key}/continue-generation", weaver_continue, WEAVER_JSON,
     200, false},

    {"GET", "/api/v1/operations", weaver_operation_list, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/operations/{key}", weaver_operation_get, WEAVER_NO_BODY, 200, false},

    {"GET", "/api/v1/supported-models", weaver_supported_models, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/model-catalog", weaver_model_catalog, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/organizations", weaver_organizations, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/organizations/{key}/projects", weaver_projects, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/scope/resolve", weaver_scope, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/scheduling/options", weaver_scheduling, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/quota/balance", weaver_quota_balance, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/quota/requests", weaver_quota_list, WEAVER_NO_BODY, 200, false},
    {"POST", "/api/v1/quota/requests", weaver_quota_request, WEAVER_JSON, 201, false},

    {"POST", "/api/v1/checkpoints/{key}/deployments", weaver_deploy, WEAVER_JSON, 202, false},
    {"GET", "/api/v1/deployments", weaver_deployments, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/deployments/{key}", weaver_deployment_get, WEAVER_NO_BODY, 200, false},
    {"DELETE", "/api/v1/deployments/{key}", weaver_deployment_get, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/managed-datasets", weaver_datasets, WEAVER_NO_BODY, 200, false},
    {"GET", "/api/v1/managed-datasets/{key}/{rest...}", weaver_dataset_get, WEAVER_NO_BODY, 200,
     false},
    {"POST", "/api/v1/models/{key}/managed-dataset-sample-lengths", weaver_dataset_lengths,
     WEAVER_JSON, 200, false},
};

const struct weaver_route *weaver_routes(size_t *n)
{
    *n = sizeof routes / sizeof *routes;
    return routes;
}
