/* api/weaver/routes.c - the table of /api/v1. */
#include "api/weaver/face.h"

static const struct weaver_route routes[] = {
    {"POST", "/api/v1/sessions", weaver_session_create, WEAVER_JSON, 201, false},
    {"GET", "/api/v1/sessions/{key}", weaver_session_get, WEAVER_NO_BODY, 200, false},
    {"POST", "/api/v1/sessions/{key}/heartbeat", weaver_session_heartbeat, WEAVER_NO_BODY, 200,
     false},
    {"POST", "/api/v1/sessions/{key}/metrics", weaver_session_metrics, WEAVER_JSON, 200, false},

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
