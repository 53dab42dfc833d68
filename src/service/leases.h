/* service/leases.h - a client keeps the resident model where it is for a while.
 *
 * One live lease at most, always on the resident. It blocks what would replace the resident (loads,
 * unloads, loads on demand), not its use; a request that carries the lease's own id is let through.
 * A lease ends when it is released, when its time is over, when its model stops being resident, and
 * with the server. Time is looked at on each access, on the monotonic clock: at the deadline the
 * lease is gone.
 *
 * The id is returned once and kept as SHA-256 only; the last ended leases are remembered, so that
 * their owners learn why. Any thread: calls take a lock of their own and never wait for the engine.
 * Acquire on the engine thread, where the resident cannot change meanwhile. Objects that come back
 * are owned by the caller. Docs: docs/api/models.md, "Leases". */
#ifndef SERVICE_LEASES_H
#define SERVICE_LEASES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "service/refusal.h"

struct err;
struct leases;

/* `remembered`: how many ended leases are kept. Owned. */
struct leases *leases_new(int remembered, struct err *e);
void leases_free(struct leases *l); /* NULL is allowed */

struct lease_terms {
    const char *holder, *reason; /* trimmed, checked; borrowed */
    int64_t ttl_s;
    bool for_batch; /* taken by a batch of the server: no other batch minds it */
};

/* MODEL_LEASED while another one is live. *lease holds its `lease_id`, the only time. */
int leases_acquire(struct leases *l, int64_t model_id, const char *model_name,
                   const struct lease_terms *t, json_t **lease, struct refusal *r);

/* The live lease (of this model; 0: of any) and the last ended one of this model, or null. */
json_t *leases_live(struct leases *l, int64_t model_id);
json_t *leases_last_ended(struct leases *l, int64_t model_id);

/* `id`: X-miLLM-Lease, not NULL. LEASE_NOT_FOUND: unknown, or of another model; LEASE_EXPIRED:
 * ended before. */
int leases_renew(struct leases *l, int64_t model_id, const char *id, int64_t ttl_s, json_t **lease,
                 struct refusal *r);
int leases_release(struct leases *l, int64_t model_id, const char *id, json_t **ended,
                   struct refusal *r);

/* What a lease stands in the way of. */
struct lease_ask {
    const char *id;         /* X-miLLM-Lease of the request, or NULL */
    const char *operation;  /* "load", "unload", "lease", "batch", "weights_load", "adapter" */
    int64_t target;         /* model that would become resident, 0: none or not known */
    enum refusal_code code; /* MODEL_LEASED or V1_MODEL_LEASED */
    bool for_batch;         /* asked for a batch: leases of batches let it through */
};
/* 0: no lease, or the own one; else -1 with *r. An id that fits nothing is logged and ignored. */
int leases_refuse(struct leases *l, const struct lease_ask *ask, struct refusal *r);

/* The model is no longer resident: its lease ends (model_unloaded). */
void leases_end_resident(struct leases *l);
#endif
