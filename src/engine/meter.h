/* engine/meter.h - how long requests wait, begin and run, and how they end.
 *
 * The engine thread counts; any thread takes a copy with engine_get_meter. Times are seconds on the
 * monotonic clock. A request may have several sequences: queue, first token and whole time are
 * counted once a request, the rest once a sequence. */
#ifndef ENGINE_METER_H
#define ENGINE_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"

struct engine;

struct engine_meter {
    struct histogram queue_s;       /* submitted until it has its slot */
    struct histogram first_token_s; /* submitted until the first token of the request */
    struct histogram gap_s;         /* from one token of a sequence to the next */
    struct histogram request_s;     /* submitted until its last event, those that ran */
    struct histogram prompt_tokens, generated_tokens;
    uint64_t ended_stop, ended_length, ended_abort; /* sequences; abort: cancelled or failed */
    uint64_t prefix_tokens_asked,
        prefix_tokens_known; /* of prompts looked up in the prefix cache */
};

void engine_get_meter(struct engine *en, struct engine_meter *out);

/* ---- inside the room, engine thread ---- */
struct gen;
struct meter;
struct sequence;

struct meter *meter_new(void); /* NULL: out of memory */
void meter_free(struct meter *m);
void meter_admitted(struct meter *m, const struct gen *g);
void meter_prefix(struct meter *m, int asked, int known);
void meter_token(struct meter *m, struct sequence *s); /* one more; counted in s already */
/* `stopped`: by an end token or a stop string; else by its length. */
void meter_sequence_ended(struct meter *m, const struct sequence *s, bool stopped);
void meter_request_ended(struct meter *m, const struct gen *g, int n_aborted);
#endif
