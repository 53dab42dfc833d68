/* store/reindex.h - the rows of checkpoints, made again from the directories.
 *
 * Every step directory below a root whose manifest is valid and whose model.safetensors is a
 * regular file gets its carrier row: a new one, or the one that its directory has, under the name
 * that the manifest states. Rows are never removed and no file is changed. To be called without a
 * server on the same catalogue; the lock of the roots sees to that. */
#ifndef STORE_REINDEX_H
#define STORE_REINDEX_H

#include <stdbool.h>
#include <stdint.h>

struct db;
struct err;
struct roots;
struct schema;

enum reindex_outcome {
    REINDEX_ADDED,
    REINDEX_KEPT,    /* the row was there */
    REINDEX_RENAMED, /* the row was there under another name */
    REINDEX_REFUSED, /* not a whole checkpoint, or a row is in the way; `problem` says why */
    REINDEX_N,
};
const char *reindex_outcome_name(enum reindex_outcome o); /* "added" ... */

/* Borrowed during the call. */
struct reindex_entry {
    enum reindex_outcome outcome;
    const char *root;    /* as configured */
    const char *path;    /* "<run_id>/step-<NNNNNN>" */
    const char *name;    /* as served; "" when the manifest does not tell */
    const char *problem; /* "" unless refused */
    int64_t row;         /* 0 when refused */
};

struct reindex_req {
    struct db *db;
    const struct roots *roots;
    const struct schema *schema;
    bool verify; /* hash every model.safetensors too */
    /* Told each directory, by root, run and rising step; -1 ends the walk. May be NULL. */
    int (*on_entry)(void *arg, const struct reindex_entry *entry, struct err *e);
    void *arg;
};

/* count, when not NULL, has REINDEX_N numbers. -1: a root cannot be listed, the catalogue cannot be
 * written, no memory; what was done until then stays. */
int reindex_checkpoints(const struct reindex_req *req, int64_t *count, struct err *e);
#endif
