/* store/catalogue.h - the rows of the model catalogue, in SQLite.
 *
 * The catalogue is an index: model and checkpoint directories are the truth. An id is never used
 * twice. A carrier row is a row that a full reload registered for a checkpoint directory. Safe from
 * several threads. Unknown ids are ERR_NOT_FOUND. */
#ifndef STORE_CATALOGUE_H
#define STORE_CATALOGUE_H

#include <stdbool.h>
#include <stdint.h>

struct db;
struct err;

enum model_status {
    MODEL_DOWNLOADING,
    MODEL_READY,
    MODEL_LOADING,
    MODEL_LOADED,
    MODEL_ERROR,
};
const char *model_status_name(enum model_status s); /* "downloading" ... "error" */

enum { CATALOGUE_PATH_MAX_CHARS = 500 }; /* code points of a local_path */

/* Strings are owned by the row (model_row_release); NULL where the field is null. Times: Unix
 * milliseconds, 0 for null. */
struct model_row {
    int64_t id;
    char *name;   /* unique, at most 255 characters */
    char *source; /* "huggingface" or "local" */
    char *repo_id;
    char *local_path; /* resolved real path; unique among rows that have one */
    char *params;     /* "135M" */
    char *architecture;
    char *quantization; /* "FP16" ... */
    char *revision;
    char *error_message;
    int64_t disk_size_mb;        /* -1: null */
    int64_t estimated_memory_mb; /* -1: null */
    int64_t download_progress;   /* percent */
    int64_t created_ms;
    int64_t updated_ms;
    int64_t loaded_ms;
    enum model_status status;
    bool locked;
    bool trust_remote_code;
    bool supports_embeddings;
    bool checkpoint; /* carrier row */
};
void model_row_release(struct model_row *row); /* a zeroed row is allowed */

/* Which rule an insert broke. */
enum catalogue_clash {
    CATALOGUE_NO_CLASH,
    CATALOGUE_SAME_NAME,
    CATALOGUE_SAME_PATH,
    CATALOGUE_SAME_REPO, /* same repo_id and quantization */
};

/* Inserts; fills row->id, created_ms, updated_ms. On ERR_CONFLICT *clash and *other (id of the row
 * in the way) are set; both may be NULL. */
int catalogue_add(struct db *d, struct model_row *row, enum catalogue_clash *clash, int64_t *other,
                  struct err *e);
int catalogue_get(struct db *d, int64_t id, struct model_row *out, struct err *e);
int catalogue_get_by_name(struct db *d, const char *name, struct model_row *out, struct err *e);
int catalogue_get_by_path(struct db *d, const char *local_path, struct model_row *out,
                          struct err *e);
/* Newest first. *rows is an owned array of *n rows: catalogue_list_release. */
int catalogue_list(struct db *d, struct model_row **rows, int *n, struct err *e);
void catalogue_list_release(struct model_row *rows, int n);
int catalogue_delete(struct db *d, int64_t id, struct err *e);
/* The same unless it is locked, loaded or being loaded: ERR_NOT_FOUND then, too. */
int catalogue_delete_idle(struct db *d, int64_t id, struct err *e);

/* error_message NULL clears it; MODEL_LOADED stamps loaded_ms. */
int catalogue_set_status(struct db *d, int64_t id, enum model_status status,
                         const char *error_message, struct err *e);
int catalogue_set_locked(struct db *d, int64_t id, bool locked, struct err *e);
/* What a load found out: architecture, params, sizes, supports_embeddings of *row; others are left.
 */
int catalogue_set_facts(struct db *d, const struct model_row *row, struct err *e);

/* The carrier row of a checkpoint directory: a new one, the existing one with its name updated, or
 * the one of this name whose directory is gone, which then has this directory. *id is the row;
 * `loading`: its status, too, so that it cannot be deleted (catalogue_delete_idle). ERR_CONFLICT:
 * the path belongs to an ordinary row (*id is that row, *ordinary true), or the name to another row
 * (*id is that row, *ordinary false). */
int catalogue_carrier(struct db *d, const char *name, const char *real_path, bool loading,
                      int64_t *id, bool *ordinary, struct err *e);
bool catalogue_carrier_lost(const struct model_row *row); /* a carrier without its directory */

/* Start-up: loaded and loading become ready, downloading becomes error, carrier rows whose
 * directory is gone become error, and ready when it is there again. */
int catalogue_start(struct db *d, struct err *e);
#endif
