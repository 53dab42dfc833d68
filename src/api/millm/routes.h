/* api/millm/routes.h - the handlers of /api: weights, models, health. Parse, call service/, render.
 */
#ifndef API_MILLM_ROUTES_H
#define API_MILLM_ROUTES_H

#include "api/api.h"

struct refusal;

/* api_fail, and for UNAUTHORIZED the challenge that HTTP asks for. */
void millm_fail(struct api_call *call, const struct refusal *r);

/* weights.c: docs/api/weights.md */
api_fn millm_attach, millm_detach, millm_heartbeat, millm_quiesce, millm_resume, millm_commit_begin,
    millm_commit_end, millm_save, millm_load, millm_plan_save, millm_plan_load, millm_lineage,
    millm_status;
/* A body that the server refused unread: protected routes leave their audit line all the same. Does
 * not block. */
struct http_refusal_facts;
void millm_note_too_large(struct api *api, const struct http_refusal_facts *f);

/* models.c: docs/api/models.md */
api_fn millm_list_models, millm_register_model, millm_get_model, millm_delete_model,
    millm_load_model, millm_unload_model;
/* health.c */
api_fn millm_health, millm_ready, millm_health_detailed, millm_version;
#endif
