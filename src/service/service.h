/* service/service.h - the use cases of the product, without HTTP.
 *
 * One struct service holds every part that the use cases share; it is passed down, there are no
 * globals. Order: service_open, then any number of calls from any thread, then service_close.
 * Refusals are service/refusal.h; the order of refusals is data, one table a use case.
 *
 * The state of the weights (attachment, commit, hold, counters: service/state.h) belongs to the
 * engine thread: it is read and changed inside engine_call only, and a copy is published after each
 * change for readers that only want to know. */
#ifndef SERVICE_SERVICE_H
#define SERVICE_SERVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "service/settings.h"

struct batches;
struct board;
struct chat_worker;
struct db;
struct engine;
struct err;
struct faults;
struct grammar_cache;
struct jobs;
struct leases;
struct leftovers;
struct metrics;
struct roots;
struct row_status;
struct schema;
struct tokens;
struct weaver;
struct weights_state;

/* The parts are borrowed and must outlive the service. */
struct service_parts {
    const struct settings *settings; /* immutable */
    struct engine *engine;
    struct db *db; /* the catalogue: store/catalogue.h */
    struct roots *roots;
    const struct schema *schema;
    struct chat_worker *chat;
    struct faults *faults;       /* NULL outside of test builds */
    const struct tokens *tokens; /* empty: the protected routes are disabled */
    const struct tokens *keys;   /* of the training API; NULL or empty: it is disabled */
    const atomic_bool *cut;      /* saves that write end soon once it is true; NULL: never */
};

struct service {
    const struct settings *settings;
    struct engine *engine;
    struct db *db;
    struct roots *roots;
    const struct schema *schema;
    struct chat_worker *chat;
    struct faults *faults;
    const struct tokens *tokens, *keys;
    const atomic_bool *cut;         /* or NULL */
    struct weaver *weaver;          /* owned; the training API: NULL without settings->weaver_dir */
    struct weights_state *weights;  /* owned; engine thread */
    struct board *board;            /* owned; the published copy */
    struct leases *leases;          /* owned; any thread */
    struct grammar_cache *grammars; /* owned; any thread */
    struct batches *batches;        /* owned; NULL without BATCH_FILES_DIR */
    struct metrics *metrics;        /* owned; any thread */
    struct row_status *row_status;  /* owned; any thread but the engine's */
    struct leftovers *leftovers;    /* owned; what could not be removed yet */
    struct jobs *jobs;              /* owned; work that goes on after its request was answered */
    int64_t started_wall_ms, started_ns;
    atomic_bool stopping; /* no file of weights is read any further */
    char boot_id[9];      /* 8 hex digits, random: in the names of shared arenas */
};

/* Removes what could not be removed before; now and then, any thread but the engine's. */
void service_clear_leftovers(struct service *s);

struct service *service_open(const struct service_parts *parts, struct err *e);
/* Loads that are reading end soon, without a change: for a stop that comes while the first model
 * is loaded. Any thread. */
void service_stop_loads(struct service *s);
/* The same, and whoever waits for something inside the service is answered soon: before the server
 * that carries the calls is stopped. NULL is allowed. */
void service_stop(struct service *s);
/* Waits for background loads, ends the attachment and frees the resident. The engine still runs. */
void service_close(struct service *s); /* NULL is allowed */
#endif
