/* store/resolve.h - from the `name` or `path` of a load request to one open step directory.
 *
 * The outcomes are refusals ready to be turned into codes; they are decided in this order: syntax,
 * ambiguous, not found, a link that leads out. Only RESOLVE_FAILED also fills *e. `latest` is read
 * once: what follows uses the directory it named then. */
#ifndef STORE_RESOLVE_H
#define STORE_RESOLVE_H

#include <stddef.h>
#include <stdint.h>

#include "store/name.h"

struct err;
struct roots;

enum resolve_outcome {
    RESOLVE_OK,
    RESOLVE_BAD_NAME,   /* INVALID_RUN_ID, reason name_format */
    RESOLVE_OUTSIDE,    /* INVALID_CHECKPOINT_PATH, reason outside_roots */
    RESOLVE_SHAPE,      /* INVALID_CHECKPOINT_PATH, reason shape */
    RESOLVE_LATEST,     /* INVALID_CHECKPOINT_PATH, reason latest */
    RESOLVE_BAD_RUN_ID, /* INVALID_RUN_ID: the segment holds a colon */
    RESOLVE_AMBIGUOUS,  /* CHECKPOINT_AMBIGUOUS: run_id, roots */
    RESOLVE_NOT_FOUND,  /* CHECKPOINT_NOT_FOUND: searched */
    RESOLVE_FAILED,     /* the system refused; *e */
};

struct resolved {
    enum resolve_outcome outcome;
    int root;   /* index; RESOLVE_OK */
    int dir_fd; /* the step directory, owned; -1 unless RESOLVE_OK */
    char run_id[CKPT_RUN_MAX + 1];
    int64_t step;
    char path[CKPT_PATH_MAX];     /* "<run_id>/step-<NNNNNN>", root-relative; RESOLVE_OK */
    char searched[CKPT_PATH_MAX]; /* what was looked for under the roots ("<run_id>/latest" too) */
    uint32_t roots_mask;          /* RESOLVE_AMBIGUOUS: the roots that hold the run */
    size_t base_len;              /* by name: base_model is this many bytes of the name; else 0 */
};

/* `text` may hold any bytes, NUL included. The result is always filled; release it in every case.
 */
enum resolve_outcome resolve_name(const struct roots *r, const char *text, size_t len,
                                  struct resolved *out, struct err *e);
enum resolve_outcome resolve_path(const struct roots *r, const char *text, size_t len,
                                  struct resolved *out, struct err *e);
void resolved_release(struct resolved *r); /* closes dir_fd */

/* For who needs one file of a step directory and nothing else of it: opens <step dir>/<file> for
 * reading by a single call to the system, and fills root, run_id, step and path; dir_fd stays -1.
 * The file itself is no link. -1: it did not open, or there are several roots, which all have to be
 * looked at; resolve_name takes every case and tells why. */
int resolve_open_file(const struct roots *r, const char *text, size_t len, const char *file,
                      struct resolved *out);

/* "outside_roots", "shape", "latest", "name_format"; NULL for the others. */
const char *resolve_reason(enum resolve_outcome o);
#endif
