/* engine/queue.h - requests that wait for a slot (inside the room). Engine thread, except
 * queue_push. */
#ifndef ENGINE_QUEUE_H
#define ENGINE_QUEUE_H

#include <stdint.h>

#include "engine/engine.h"

struct err;
struct gen;

/* -1 with ERR_SPACE: the queue is full. Any thread. */
int queue_push(struct engine *en, struct gen *g, struct err *e);
/* Ends requests that were cancelled, held too long or refused by the gate, and admits what may run,
 * in order of arrival. */
void queue_serve(struct engine *en);
/* When the next held request has waited long enough (monotonic ns), 0: none. */
int64_t queue_deadline(struct engine *en);
void queue_end_all(struct engine *en, enum gen_event_kind why);
#endif
