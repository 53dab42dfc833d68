/* service/weights.h - the routes of /api/weights as use cases: attach, commit, save, load, lineage,
 * status.
 *
 * Calling order of a trainer: attach, then per step quiesce, commit-begin, (write the shared
 * memory), commit-end, resume; save and load whenever the state is clean; detach. Every function
 * may be called from any thread except the engine thread and may block (a drain, a hash). On
 * success *data is an owned JSON object, the payload of the answer (docs/api/weights.md); on
 * failure -1 with *r, and nothing has changed unless the code says so (CHECKPOINT_WRITE_FAILED with
 * details.published, WEIGHTS_LOAD_FAILED: torn). Each protected call writes one audit line. Memory
 * for the answer is set aside: nomem_let_go when it is built (base/nomem.h). */
#ifndef SERVICE_WEIGHTS_H
#define SERVICE_WEIGHTS_H

#include <jansson.h>
#include <stdatomic.h>

struct buf;
struct refusal;
struct service;

/* What the face knows of one request; everything is borrowed. */
struct weights_req {
    const char *authorization; /* header values, NULL when absent */
    const char *attachment;    /* X-miLLM-Attachment */
    const char *lease;         /* X-miLLM-Lease */
    const char *request_id;
    const char *client_addr;
    const json_t *body;        /* the object; NULL when it is malformed */
    const json_t *body_errors; /* list of {path, message, type}; NULL when the body is an object */
    const atomic_bool *gone;   /* the client has left; NULL: never */
};

typedef int weights_route_fn(struct service *s, const struct weights_req *req, json_t **data,
                             struct refusal *r);
weights_route_fn weights_attach, weights_detach, weights_heartbeat;
weights_route_fn weights_quiesce, weights_resume, weights_commit_begin, weights_commit_end;
weights_route_fn weights_save, weights_load;
/* A checkpoint of the training API becomes an ordinary one; the resident stays as it is. */
weights_route_fn weights_promote;
/* The refusals of a save or a load, nothing changed, and what it would do (service/plan.c). */
weights_route_fn weights_plan_save, weights_plan_load;

/* A call whose body was too large to be read: *r says so, and on a protected route a refusal of the
 * token takes its place. Leaves the audit line of that route. Does not ask the engine thread. */
void weights_judge_too_large(struct service *s, const struct weights_req *req, const char *path,
                             struct refusal *r);

/* Open to everybody, not audited. The lineage is appended to *data as JSON text (of no use after a
 * refusal): under 1 KiB an entry with names of ordinary length, WEIGHTS_LINEAGE_MAX_DEPTH entries
 * at most. */
int weights_lineage(struct service *s, struct buf *data, struct refusal *r);
json_t *weights_status(struct service *s); /* owned; NULL: out of memory */
#endif
