/* service/models.h - the catalogue as the management face shows it: register, list, get, load,
 * unload, delete.
 *
 * Any thread but the engine's. On success *data is an owned JSON value, the payload of the answer
 * (docs/api/models.md). A row is an index entry: deleting one never deletes a local directory. */
#ifndef SERVICE_MODELS_H
#define SERVICE_MODELS_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct model_row;
struct refusal;
struct service;

int models_list(struct service *s, json_t **data, struct refusal *r); /* newest first */
int models_get(struct service *s, int64_t id, json_t **data, struct refusal *r);
/* `body` NULL: malformed, `errors` says why (both borrowed). */
int models_register(struct service *s, const json_t *body, const json_t *errors, json_t **data,
                    struct refusal *r);
/* What a registration of the body would find; nothing is changed. */
int models_preview(struct service *s, const json_t *body, const json_t *errors, json_t **data,
                   struct refusal *r);
int models_delete(struct service *s, int64_t id, json_t **data, struct refusal *r);
/* `lease`: X-miLLM-Lease or NULL. Claims the load slot, starts the load in the background and
 * answers the row in `loading`. */
int models_load(struct service *s, int64_t id, const char *lease, const json_t *body,
                const json_t *errors, json_t **data, struct refusal *r);
int models_unload(struct service *s, int64_t id, const char *lease, json_t **data,
                  struct refusal *r);

/* model_lock.c: a locked row is not replaced by a load on demand, and not deleted. */
int models_lock(struct service *s, int64_t id, json_t **data, struct refusal *r);
int models_unlock(struct service *s, int64_t id, json_t **data, struct refusal *r);
/* Ends a download; a row that is not being downloaded is answered as it is. */
int models_cancel(struct service *s, int64_t id, json_t **data, struct refusal *r);
int refuse_locked(const struct model_row *row, struct refusal *r); /* MODEL_LOCKED */

/* model_lease.c: see service/leases.h. `lease`: X-miLLM-Lease or NULL. */
int models_lease_take(struct service *s, int64_t id, const json_t *body, const json_t *errors,
                      bool for_batch, json_t **data, struct refusal *r);
int models_lease_get(struct service *s, int64_t id, json_t **data, struct refusal *r);
int models_lease_renew(struct service *s, int64_t id, const char *lease, const json_t *body,
                       const json_t *errors, json_t **data, struct refusal *r);
int models_lease_end(struct service *s, int64_t id, const char *lease, json_t **data,
                     struct refusal *r);

/* Beyond loopback a change of the catalogue needs a token of any role: UNAUTHORIZED. 0 where the
 * server listens on loopback only. */
int models_permit(struct service *s, const char *authorization, struct refusal *r);

/* AUTO_LOAD_MODEL at start: a row by id or name, or a checkpoint by name. Waits. */
int models_auto_load(struct service *s, const char *which, struct refusal *r);

/* One row as an object. */
json_t *model_object(struct service *s, const struct model_row *row);
/* The row (model_row_release); MODEL_NOT_FOUND, or INTERNAL_ERROR where the database fails. */
int model_find(struct service *s, int64_t id, struct model_row *row, struct refusal *r);
int model_refuse_absent(int64_t id, struct refusal *r); /* MODEL_NOT_FOUND */
#endif
