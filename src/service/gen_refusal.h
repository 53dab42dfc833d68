/* service/gen_refusal.h - how the engine's word on a request becomes the refusal that the client
 * sees. */
#ifndef SERVICE_GEN_REFUSAL_H
#define SERVICE_GEN_REFUSAL_H

#include "engine/engine.h"

struct err;
struct refusal;
struct service;

/* INSUFFICIENT_MEMORY of /v1. Always -1. */
int gen_refuse_memory(struct refusal *r);
/* engine_submit has failed with e. Always -1. */
int gen_refuse_submit(struct service *s, const struct err *e, struct refusal *r);
/* The request ended early, with this last event. Always -1. */
int gen_refuse_outcome(enum gen_event_kind kind, struct refusal *r);
#endif
