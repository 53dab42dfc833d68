/* service/op.h - one call of a protected weights route on its way: who asks, what was found, what
 * to log.
 *
 * Order: op_begin, walks of refusal tables, changes on the engine thread through op_on_engine,
 * op_end (which writes the audit line). Checks of the tables take a struct op; routes with more to
 * remember embed it as their first member. For checks that run on the calling thread `w` and
 * `served` are the published copy; inside op_on_engine they are the live state. */
#ifndef SERVICE_OP_H
#define SERVICE_OP_H

#include <jansson.h>

#include "service/audit.h"
#include "service/refusal.h"
#include "service/state.h"

struct image;
struct service;
struct weights_req;

struct op {
    struct service *s;
    const struct weights_req *req;
    unsigned roles;                  /* that the route allows: ROLE_TRAINER | ROLE_OPERATOR */
    const struct token_owner *owner; /* after the token check */
    struct attachment_proof proof;
    const struct weights_state *w;
    const struct served *served; /* NULL: no resident */
    const struct image *image;   /* borrowed, inside op_on_engine only */
    struct weights_state seen;   /* the published copy behind `w` */
    struct served *seen_served;
    struct audit_line audit;
};

void op_begin(struct op *op, struct service *s, const struct weights_req *req,
              const char *operation);
/* Looks again: a fresh published copy. */
void op_look(struct op *op);

/* On the engine thread, between two steps: walks `rules` on the live state, and if none refuses,
 * `change`, which may refuse too. Publishes the state. Returns 0, or -1 with *r. */
typedef int op_change_fn(struct op *op, struct refusal *r);
int op_on_engine(struct op *op, const struct refusal_rule *rules, op_change_fn *change,
                 struct refusal *r);

/* The owner of the barrier waits until the running requests have ended, at most
 * WEIGHTS_DRAIN_TIMEOUT_S. Others are held meanwhile, so it gives up early when the client has hung
 * up, or when the attachment `serial` (0: none) has ended or is about to. */
bool op_wait_drained(struct op *op, uint64_t serial);

/* Ends the call: audit line, then rc again. `status` is that of success. */
int op_end(struct op *op, int status, int rc, const struct refusal *r);

/* ---- checks that several routes share; ctx is a struct op ---- */
refusal_check_fn check_token;    /* WEIGHTS_DISABLED, UNAUTHORIZED, FORBIDDEN */
refusal_check_fn check_client;   /* CLIENT_CLOSED_REQUEST: who asked has hung up */
refusal_check_fn check_object;   /* VALIDATION_ERROR: the body is no JSON object */
refusal_check_fn check_empty;    /* the same, and it has no keys */
refusal_check_fn check_attached; /* NOT_ATTACHED */
refusal_check_fn check_holder;   /* NOT_ATTACHMENT_HOLDER */
refusal_check_fn check_resident; /* MODEL_NOT_LOADED */
refusal_check_fn check_barrier;  /* BARRIER_UNAVAILABLE: WEIGHTS_BARRIER=single and not single */
refusal_check_fn check_clean;    /* WEIGHTS_NOT_CLEAN: writing or torn */
refusal_check_fn check_loads;    /* MODEL_BUSY: load_in_progress, unload_in_progress */
refusal_check_fn check_load_barrier; /* PAUSE_IN_PROGRESS: a load or an adapter holds the barrier */

/* Why an attach is refused: before the copy is made, and when it becomes the resident. */
extern const struct refusal_rule attach_state_rules[];
extern const struct refusal_rule attach_install_rules[];

/* MODEL_LEASED: another one holds the resident; `target` is the row that would replace it, or 0. */
int refuse_leased(const struct op *op, const char *operation, int64_t target, struct refusal *r);
int refuse_attached(const struct op *op, const char *mode,
                    struct refusal *r); /* ALREADY_ATTACHED */
int refuse_not_clean(const struct weights_state *w, struct refusal *r);
int refuse_paused(enum barrier_owner owner, struct refusal *r); /* PAUSE_IN_PROGRESS */
int refuse_drain(struct service *s, double timeout_s, struct refusal *r);
#endif
