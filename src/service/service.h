/* service/service.h - the use cases of the product, without HTTP.
 *
 * One struct service holds every part that the use cases share; it is passed down, there are no
 * globals. Order: service_open, then any number of calls from any thread, then service_close. What
 * a call may refuse is in service/refusal.h; the order of refusals is data, one table a use case.
 *
 * State of the weights (attachment, commit, hold, counters) belongs to the engine thread: it is
 * read and changed inside engine_call only, and a copy is published for readers after each change.
 */
#ifndef SERVICE_SERVICE_H
#define SERVICE_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "service/settings.h"

struct audit;
struct chat_worker;
struct db;
struct engine;
struct err;
struct faults;
struct jobs;
struct roots;
struct schema;
struct tokens;
struct weights_state;

struct service {
    const struct settings *settings; /* borrowed; immutable */
    struct engine *engine;           /* borrowed */
    struct catalogue *catalogue;     /* borrowed */
    struct roots *roots;             /* borrowed */
    struct schema *schema;           /* borrowed; NULL: schema_ownership */
    char schema_problem[256];        /* why the schema cannot be used */
    struct chat_worker *chat;        /* borrowed */
    struct faults *faults;           /* borrowed; NULL outside of test builds */
    struct tokens *tokens;           /* borrowed; empty: the protected routes are disabled */
    struct weights_state *weights;   /* owned */
    struct jobs *jobs;               /* owned: loads that run in the background */
    int64_t started_wall_ms, started_ns;
    uint64_t boot_id; /* random, in names of arenas and temporary directories */
};

/* The parts are borrowed and must outlive the service. */
struct service_parts {
    const struct settings *settings;
    struct engine *engine;
    struct db *db;
    struct roots *roots;
    const struct schema *schema;
    struct chat_worker *chat;
    struct faults *faults;
    struct tokens *tokens;
    uint64_t boot_id;
};

struct service *service_open(const struct service_parts *parts, struct err *e);
/* Waits for background loads and saves, ends the attachment, frees the resident. The engine still
 * runs. */
void service_close(struct service *s);
#endif
