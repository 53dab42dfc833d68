/* api/millm/routes.h - the handlers of /api: weights, models, health. Parse, call service/, render.
 */
#ifndef API_MILLM_ROUTES_H
#define API_MILLM_ROUTES_H

#include "api/api.h"

/* weights.c: docs/api/weights.md */
api_fn millm_attach, millm_detach, millm_heartbeat, millm_quiesce, millm_resume, millm_commit_begin,
    millm_commit_end, millm_save, millm_load, millm_lineage, millm_status;
/* models.c: docs/api/models.md */
api_fn millm_list_models, millm_register_model, millm_get_model, millm_delete_model,
    millm_load_model, millm_unload_model;
/* health.c */
api_fn millm_health, millm_ready, millm_health_detailed, millm_version;
#endif
