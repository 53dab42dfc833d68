/* store/roots.h - the primary checkpoint root, the read roots, and which of them holds a run.
 *
 * roots_open once at start; afterwards everything is read-only and may be used from several
 * threads. Root 0 is the primary root: the only one that is ever written, locked by <root>/.lock
 * for as long as the roots are open. Read roots may come and go (a mount); each use looks again. */
#ifndef STORE_ROOTS_H
#define STORE_ROOTS_H

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct err;
struct roots;

enum { ROOTS_MAX = 32, ROOTS_PRIMARY = 0 };

/* `primary` is absolute, created (0750) when missing; `read_list` is a comma-separated list of
 * absolute paths, NULL or "" for none. One line a warning (a read root that is missing) goes to
 * *warnings. -1 as NULL: ERR_ARG (relative, not UTF-8, too many, the same directory twice, one
 * inside another), ERR_CONFLICT (another process holds the lock), ERR_IO. Owned. */
struct roots *roots_open(const char *primary, const char *read_list, struct buf *warnings,
                         struct err *e);
/* For offline reading (cairn lineage, verify): no lock, nothing is created. */
struct roots *roots_open_unlocked(const char *primary, const char *read_list, struct buf *warnings,
                                  struct err *e);
void roots_close(struct roots *r); /* NULL is allowed; gives the lock back */

int roots_count(const struct roots *r);
const char *roots_path(const struct roots *r, int root); /* as configured; borrowed */
const char *roots_real(const struct roots *r,
                       int root); /* resolved at start; "" while missing then */

/* A handle on the root, owned by the caller; ERR_NOT_FOUND when a read root is not there now. */
int roots_dir(const struct roots *r, int root, struct err *e);
int roots_primary_fd(const struct roots *r); /* borrowed: the handle that the roots keep */

/* Bit i is set when root i holds the run: an entry <run_id> that is a directory, or a link to one
 * that stays beneath the root, with anything in it besides ".tmp-*". run_id has passed
 * ckpt_run_id_may_load. `likely` is an entry that the run probably has (a step directory,
 * "latest"), or NULL: where it is found the directory is not listed, which takes a millisecond in a
 * long run. */
int roots_find_run(const struct roots *r, const char *run_id, const char *likely, uint32_t *mask,
                   struct err *e);

/* True when the primary root has an entry of any kind at <run_id>/<step dir>. */
int roots_step_exists(const struct roots *r, const char *run_id, int64_t step, bool *exists,
                      struct err *e);

/* Bytes an unprivileged process may still write under the primary root. */
int roots_free_bytes(const struct roots *r, int64_t *out, struct err *e);
#endif
