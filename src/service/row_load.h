/* service/row_load.h - the normal load path: a catalogue row becomes the resident from its own
 * files.
 *
 * Order: in a message to the engine thread the caller decides its refusals and claims the slot
 * (w->loading_row = id), then row_load_run, on a thread that may block. The old resident serves
 * until the swap; where memory cannot hold both it is dropped first, and then a failure leaves no
 * resident. The claim ends in every case. A stop of the server cuts the reading short. */
#ifndef SERVICE_ROW_LOAD_H
#define SERVICE_ROW_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_row;
struct refusal;
struct service;

struct row_load {
    int64_t id;
    const atomic_bool *gone; /* stops the reading when the client has left; NULL */
    int64_t timeout_ms;      /* of the reading; 0: none */
    bool test_memory;        /* WEIGHTS_TEST_MEM_AVAILABLE counts */
    const char *writer;      /* a weights load by this identity: where the old resident is dropped,
                                the state is `writing`, and after a failure still; NULL: no such */
    /* filled in */
    double ms;    /* the whole load */
    bool dropped; /* the old resident had been dropped when it failed */
    char name[1024];
};

/* 0, or -1 with *r: MODEL_NOT_FOUND, INSUFFICIENT_MEMORY, MODEL_BUSY (drain_timeout),
 * MODEL_LOAD_FAILED. */
int row_load_run(struct service *s, struct row_load *l, struct refusal *r);

struct row_plan {
    size_t bytes; /* of the weights */
    bool drops;   /* memory cannot hold both: the old resident goes first */
};

/* The refusals of row_load_run that are known before anything is read or changed; l->id and
 * l->test_memory count. */
int row_load_plan(struct service *s, struct row_load *l, struct row_plan *out, struct refusal *r);
#endif
