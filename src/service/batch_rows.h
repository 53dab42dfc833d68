/* service/batch_rows.h - the rows of the table `batches`, and the lines that validation found bad.
 *
 * Who writes what: a batch is created and cancelled by requests; everything else is written by the
 * one thread of service/batch_runner.c. So a cancel changes status and cancelling_at only, and the
 * runner's updates name the status that they expect. Times are Unix seconds, 0 for null. Any
 * thread; each call is a transaction of its own. */
#ifndef SERVICE_BATCH_ROWS_H
#define SERVICE_BATCH_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "service/batch_files.h"

struct buf;
struct db;
struct err;

enum { BATCH_ID_MAX = 32, BATCH_ENDPOINT_MAX = 32 }; /* with NUL */

/* SQL: it has not ended. */
#define BATCH_OPEN "status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"

enum batch_status {
    BATCH_VALIDATING,
    BATCH_IN_PROGRESS,
    BATCH_FINALIZING,
    BATCH_CANCELLING,
    BATCH_COMPLETED, /* from here on it has ended */
    BATCH_FAILED,
    BATCH_EXPIRED,
    BATCH_CANCELLED,
    BATCH_STATUSES,
};
const char *batch_status_name(enum batch_status s);

enum batch_time {
    AT_CREATED,
    AT_IN_PROGRESS,
    AT_EXPIRES,
    AT_FINALIZING,
    AT_COMPLETED,
    AT_FAILED,
    AT_EXPIRED,
    AT_CANCELLING,
    AT_CANCELLED,
    BATCH_TIMES,
};

struct batch_row {
    int64_t seq;
    char id[BATCH_ID_MAX]; /* "batch_" and 24 hex digits */
    enum batch_status status;
    char endpoint[BATCH_ENDPOINT_MAX];
    char input_file_id[FILE_ID_MAX];
    int window_hours;
    char *metadata; /* JSON object, or NULL */
    bool pack;
    int64_t output_expires_s; /* after the results' creation; 0: the retention time */
    /* The weights it is bound to; model NULL before validation. */
    char *model;
    int64_t model_row;
    uint64_t load_counter;
    char boot[9]; /* of the process that made the row, then of the one that counted */
    char *errors; /* JSON list, or NULL */
    char output_file_id[FILE_ID_MAX], error_file_id[FILE_ID_MAX]; /* reserved from the start */
    int64_t at[BATCH_TIMES];
    int64_t total, completed, failed;
    int64_t next_offset, next_line;    /* first line without a recorded result */
    int64_t output_bytes, error_bytes; /* recorded part of the result files */
};

void batch_row_release(struct batch_row *row); /* a zeroed one is allowed */

/* ERR_NOT_FOUND: the input file is no longer whole. Sets row->seq. */
int batch_rows_insert(struct db *d, struct batch_row *row, struct err *e);
/* ERR_NOT_FOUND. */
int batch_rows_get(struct db *d, const char *id, struct batch_row *row, struct err *e);
/* Newest first, behind the row `seq` (0: from the newest); *rows owned (batch_rows_release). */
int batch_rows_page(struct db *d, int64_t seq, int limit, struct batch_row **rows, int *n,
                    struct err *e);
/* Those that have not ended, oldest first. */
int batch_rows_open(struct db *d, struct batch_row **rows, int *n, struct err *e);
void batch_rows_release(struct batch_row *rows, int n);
/* Rows of batches in progress that have no result yet. */
int batch_rows_backlog(struct db *d, int64_t *out, struct err *e);

/* validating or in_progress becomes cancelling: 1; 0: it was neither. */
int batch_rows_cancel(struct db *d, const char *id, int64_t now, struct err *e);

/* Everything that changes is written, if the status still is `from`: 1; 0: it is not. */
int batch_rows_update(struct db *d, const struct batch_row *row, enum batch_status from,
                      struct err *e);
/* The progress alone, whatever the status. */
int batch_rows_record(struct db *d, const struct batch_row *row, struct err *e);
/* The end: the files' rows appear together with the last status; bad lines are forgotten. */
int batch_rows_end(struct db *d, const struct batch_row *row, enum batch_status from,
                   const struct file_row *files, int n_files, struct err *e);

/* Removes what ended before `oldest`. */
int batch_rows_forget(struct db *d, int64_t oldest, struct err *e);

struct bad_line {
    int64_t line;
    char *text; /* owned by the list's holder */
};
int batch_rows_add_bad(struct db *d, int64_t seq, const struct bad_line *lines, int n,
                       struct err *e);
int batch_rows_forget_bad(struct db *d, int64_t seq, struct err *e);
/* 1: the text is appended to *out; 0: the line is not a bad one. */
int batch_rows_find_bad(struct db *d, int64_t seq, int64_t line, struct buf *out, struct err *e);
#endif
