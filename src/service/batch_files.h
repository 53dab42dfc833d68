/* service/batch_files.h - the files of /v1/files: a row in the database each, the bytes in
 * BATCH_FILES_DIR under the file's generated id.
 *
 * A file appears whole: written as "<id>.partial", synced, renamed, then its row is committed. A
 * name from outside never becomes a path: an id is looked up as a row, and its form is checked
 * first. A deleted or expired file keeps its row, without bytes, for the retention time, so that
 * its users learn what became of it. Any thread. Times are Unix seconds. */
#ifndef SERVICE_BATCH_FILES_H
#define SERVICE_BATCH_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

struct batch_files;
struct db;
struct err;
struct refusal;
struct leftovers;
struct settings;

enum { FILE_ID_MAX = 32, FILE_NAME_MAX = 256 }; /* with NUL */

enum file_status { FILE_PROCESSED, FILE_ERROR, FILE_DELETED, FILE_EXPIRED };
enum file_purpose { PURPOSE_BATCH, PURPOSE_BATCH_OUTPUT };
const char *file_status_name(enum file_status s);
const char *file_purpose_name(enum file_purpose p);

struct file_row {
    int64_t seq;
    char id[FILE_ID_MAX]; /* "file-" and 24 hex digits */
    char filename[FILE_NAME_MAX];
    enum file_purpose purpose;
    enum file_status status;
    int64_t bytes;
    char sha256[SHA256_HEX]; /* "" for files that the server wrote */
    int64_t created_s, expires_s;
};

/* Opens the directory, makes it when it is missing, and removes what no row knows. The settings and
 * the database are borrowed. */
struct batch_files *batch_files_open(const struct settings *set, struct db *db,
                                     struct leftovers *leftovers, struct err *e);
void batch_files_close(struct batch_files *f); /* NULL is allowed */

/* Stores an upload. batch_file_limit (bytes or rows; nothing is kept), INSUFFICIENT_STORAGE.
 * expires_after_s: 0 for the retention time. */
int batch_files_add(struct batch_files *f, const char *filename, const char *data, size_t len,
                    int64_t expires_after_s, struct file_row *out, struct refusal *r);

struct file_query {
    const char *purpose; /* NULL: any */
    const char *after;   /* id, or NULL */
    int limit;
    bool ascending; /* oldest first */
};
/* Rows that are not deleted, newest first; *rows is owned (free). */
int batch_files_list(struct batch_files *f, const struct file_query *q, struct file_row **rows,
                     int *n, bool *more, struct refusal *r);

/* file_not_found with `param`. A row past its time is FILE_EXPIRED, pruned or not. */
int batch_files_find(struct batch_files *f, const char *id, const char *param, struct file_row *row,
                     struct refusal *r);
/* The same, and file_deleted, file_expired. */
int batch_files_find_whole(struct batch_files *f, const char *id, const char *param,
                           struct file_row *row, struct refusal *r);
/* The bytes for reading; ERR_NOT_FOUND when they are gone, ERR_FORMAT when their number differs. */
int batch_files_read(struct batch_files *f, const struct file_row *row, struct err *e);
/* file_not_found, file_deleted, file_in_use (an input of a batch that has not ended). */
int batch_files_delete(struct batch_files *f, const char *id, struct refusal *r);

/* Removes the bytes of expired files (never an input of a running batch), and old rows. */
int batch_files_prune(struct batch_files *f, struct err *e);

/* ---- for results of batches ---- */
void batch_files_new_id(char id[FILE_ID_MAX]);
/* "<id>.partial", made when it is missing, with exactly `bytes` bytes kept; a file that was
 * published by a process that then died is taken back. Descriptor, or -1; ERR_FORMAT: it has fewer.
 */
int batch_files_partial(struct batch_files *f, const char *id, int64_t bytes, struct err *e);
/* Renames the partial files that `keep` says, removes the others, and syncs the directory. */
int batch_files_publish(struct batch_files *f, const char *const *ids, const bool *keep, int n,
                        struct err *e);
/* Inside a transaction: the row alone. */
int batch_files_insert(struct db *db, const struct file_row *row, struct err *e);
#endif
