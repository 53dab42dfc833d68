/* api/millm/routes.h - the handlers of /api: weights, models, health. Parse, call service/, render.
 */
#ifndef API_MILLM_ROUTES_H
#define API_MILLM_ROUTES_H

#include <jansson.h>

#include "api/api.h"

struct refusal;

/* Ends a call: 0 with `data` (consumed), or the refusal, which is cleared. */
void millm_answer(struct api_call *call, int status, int rc, json_t *data, struct refusal *r);
/* 0, or -1 with *r: the caller may not change the catalogue. */
int millm_permitted(struct api_call *call, struct refusal *r);

/* weights.c: docs/api/weights.md */
api_fn millm_attach, millm_detach, millm_heartbeat, millm_quiesce, millm_resume, millm_commit_begin,
    millm_commit_end, millm_save, millm_promote, millm_load, millm_plan_save, millm_plan_load,
    millm_lineage, millm_status;
/* A body that the server refused unread, as *r says: protected routes judge the token first, and
 * leave their audit line. Does not block. */
struct http_refusal_facts;
void millm_judge_too_large(struct api *api, const struct http_refusal_facts *f, struct refusal *r);

/* models.c: docs/api/models.md */
api_fn millm_list_models, millm_register_model, millm_preview_model, millm_get_model,
    millm_delete_model, millm_load_model, millm_unload_model;
/* leases.c: docs/api/models.md */
api_fn millm_take_lease, millm_get_lease, millm_renew_lease, millm_end_lease;
api_fn millm_lock_model, millm_unlock_model, millm_cancel_model;
/* adapters (weights.c): docs/api/adapters.md */
api_fn millm_list_adapters, millm_apply_adapter, millm_remove_adapter;
/* metrics.c: docs/api/metrics.md */
api_fn millm_metrics;
/* health.c */
api_fn millm_health, millm_ready, millm_health_detailed, millm_version;
#endif
