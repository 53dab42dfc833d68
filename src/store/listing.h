/* store/listing.h - what lies in a root and in a run directory, in order.
 *
 * A listing owns its names; release it in every case. Nothing here follows a link. */
#ifndef STORE_LISTING_H
#define STORE_LISTING_H

#include <stddef.h>
#include <sys/types.h>

struct err;

struct listing {
    char **at; /* owned, n of them */
    size_t n, cap;
};

/* The entries of a root that may be runs (no hidden ones), by bytes; of a run that are named like
 * step directories, by number. The handle is borrowed. -1: ERR_IO or ERR_NOMEM. */
int listing_runs(int root_fd, struct listing *out, struct err *e);
int listing_steps(int run_fd, struct listing *out, struct err *e);
void listing_release(struct listing *l); /* a zeroed one is allowed */

/* A run directory that start-up may change: a directory and no link, not hidden, on the root's own
 * file system `mount`. The handle is owned by the caller; -1: it is none. */
int listing_open_own_run(int root_fd, const char *name, dev_t mount);
#endif
