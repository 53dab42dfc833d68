/* service/weaver/exported.h - adapters that were exported a moment ago and are still in memory.
 *
 * Who exports mostly samples next: the session takes the adapter that was just written instead of
 * reading it back. Whole weights are not kept: they are memory that the run's next step needs. The
 * last EXPORTED_MAX of the last minute; any thread. */
#ifndef SERVICE_WEAVER_EXPORTED_H
#define SERVICE_WEAVER_EXPORTED_H

#include <stdint.h>

#include "base/uuid.h"

struct adapter;
struct weaver;

enum { EXPORTED_MAX = 4 };

struct w_exported { /* w->lock */
    char checkpoint_id[UUID_TEXT];
    struct adapter *adapter; /* counted, or NULL */
    int64_t at_ns;
};

/* Written, hashed and published under this id. The adapter is borrowed; NULL: nothing is kept. */
void w_exported_keep(struct weaver *w, const char *checkpoint_id, struct adapter *a);
struct adapter *w_exported_take(struct weaver *w, const char *checkpoint_id); /* counted, or NULL */
void w_exported_sweep(struct weaver *w);
void w_exported_free(struct weaver *w);
#endif
