#include "service/batch_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "db/db.h"

#define COLUMNS                                                                               \
    "seq, id, status, endpoint, input_file_id, window_hours, metadata, pack, "                \
    "output_expires_s, model, model_row, load_counter, boot, errors, output_file_id, "        \
    "error_file_id, total, completed, failed, next_offset, next_line, output_bytes, "         \
    "error_bytes, created_s, in_progress_s, expires_s, finalizing_s, completed_s, failed_s, " \
    "expired_s, cancelling_s, cancelled_s"

enum { FIRST_TIME = 23 };

static const char *const status_names[BATCH_STATUSES] = {
    [BATCH_VALIDATING] = "validating", [BATCH_IN_PROGRESS] = "in_progress",
    [BATCH_FINALIZING] = "finalizing", [BATCH_CANCELLING] = "cancelling",
    [BATCH_COMPLETED] = "completed",   [BATCH_FAILED] = "failed",
    [BATCH_EXPIRED] = "expired",       [BATCH_CANCELLED] = "cancelled",
};

const char *batch_status_name(enum batch_status s)
{
    return status_names[s];
}

static enum batch_status status_from(const char *name)
{
    for (int i = 0; i < BATCH_STATUSES; i++)
        if (strcmp(status_names[i], name) == 0)
            return (enum batch_status)i;
    return BATCH_FAILED; /* the table's CHECK allows no other word */
}

void batch_row_release(struct batch_row *row)
{
    free(row->metadata);
    free(row->model);
    free(row->errors);
    *row = (struct batch_row){0};
}

void batch_rows_release(struct batch_row *rows, int n)
{
    for (int i = 0; i < n; i++)
        batch_row_release(&rows[i]);
    free(rows);
}

/* ---- reading; the lock is held ---- */

static int read_row(const struct db_stmt *q, struct batch_row *row, struct err *e)
{
    *row = (struct batch_row){.seq = db_int(q, 0),
                              .status = status_from(db_text(q, 2)),
                              .window_hours = (int)db_int(q, 5),
                              .pack = db_int(q, 7),
                              .output_expires_s = db_int(q, 8),
                              .model_row = db_int(q, 10),
                              .load_counter = (uint64_t)db_int(q, 11),
                              .total = db_int(q, 16),
                              .completed = db_int(q, 17),
                              .failed = db_int(q, 18),
                              .next_offset = db_int(q, 19),
                              .next_line = db_int(q, 20),
                              .output_bytes = db_int(q, 21),
                              .error_bytes = db_int(q, 22)};
    db_copy_text(q, 1, row->id, sizeof row->id);
    db_copy_text(q, 3, row->endpoint, sizeof row->endpoint);
    db_copy_text(q, 4, row->input_file_id, sizeof row->input_file_id);
    db_copy_text(q, 12, row->boot, sizeof row->boot);
    db_copy_text(q, 14, row->output_file_id, sizeof row->output_file_id);
    db_copy_text(q, 15, row->error_file_id, sizeof row->error_file_id);
    for (int i = 0; i < BATCH_TIMES; i++)
        row->at[i] = db_int(q, FIRST_TIME + i);
    if (db_dup_text(q, 6, &row->metadata) && db_dup_text(q, 9, &row->model) &&
        db_dup_text(q, 13, &row->errors))
        return 0;
    batch_row_release(row);
    return err_nomem(e);
}

static int get_locked(struct db *d, const char *id, struct batch_row *row, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d, "SELECT " COLUMNS " FROM batches WHERE id = ?", e) < 0)
        return -1;
    db_bind_text(&q, id);
    rc = db_step(&q, e);
    if (rc > 0 && read_row(&q, row, e) < 0)
        rc = -1;
    db_finish(&q);
    if (rc == 0)
        return err_set(e, ERR_NOT_FOUND, "no batch '%.64s'", id);
    return rc < 0 ? -1 : 0;
}

int batch_rows_get(struct db *d, const char *id, struct batch_row *row, struct err *e)
{
    int rc;

    *row = (struct batch_row){0};
    db_lock(d);
    rc = get_locked(d, id, row, e);
    db_unlock(d);
    return rc;
}

/* The rows of a statement that is bound. */
static int read_all(struct db_stmt *q, struct batch_row **rows, int *n, struct err *e)
{
    int rc, cap = 0;

    while ((rc = db_step(q, e)) > 0) {
        if (*n == cap) {
            struct batch_row *grown = realloc(*rows, (size_t)(cap = 2 * cap + 8) * sizeof *grown);

            if (!grown) {
                rc = err_nomem(e);
                break;
            }
            *rows = grown;
        }
        if ((rc = read_row(q, &(*rows)[*n], e)) < 0)
            break;
        ++*n;
    }
    if (rc < 0) {
        batch_rows_release(*rows, *n);
        *rows = NULL;
        *n = 0;
    }
    return rc;
}

static int list(struct db *d, const char *sql, int64_t first, int64_t second,
                struct batch_row **rows, int *n, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    *rows = NULL;
    *n = 0;
    db_lock(d);
    rc = db_prepare(&q, d, sql, e);
    if (rc == 0) {
        db_bind_int(&q, first);
        db_bind_int(&q, second);
        rc = read_all(&q, rows, n, e);
    }
    db_finish(&q);
    db_unlock(d);
    return rc;
}

int batch_rows_page(struct db *d, int64_t seq, int limit, struct batch_row **rows, int *n,
                    struct err *e)
{
    return list(d,
                "SELECT " COLUMNS " FROM batches WHERE (?1 = 0 OR seq < ?1) "
                "ORDER BY seq DESC LIMIT ?2",
                seq, limit, rows, n, e);
}

int batch_rows_open(struct db *d, struct batch_row **rows, int *n, struct err *e)
{
    return list(d,
                "SELECT " COLUMNS " FROM batches WHERE " BATCH_OPEN " AND seq > ?1 ORDER BY seq "
                "LIMIT ?2",
                0, INT32_MAX, rows, n, e);
}

int batch_rows_backlog(struct db *d, int64_t *out, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    db_lock(d);
    rc = db_prepare(&q, d,
                    "SELECT coalesce(sum(total - completed - failed), 0) FROM batches "
                    "WHERE status = 'in_progress'",
                    e);
    if (rc == 0 && (rc = db_step(&q, e)) > 0)
        *out = db_int(&q, 0);
    db_finish(&q);
    db_unlock(d);
    return rc < 0 ? -1 : 0;
}

/* ---- writing ---- */

static void bind_or_null(struct db_stmt *q, int64_t v)
{
    if (v)
        db_bind_int(q, v);
    else
        db_bind_text(q, NULL);
}

static int insert_locked(struct db *d, struct batch_row *row, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d,
                   "INSERT INTO batches (id, status, endpoint, input_file_id, window_hours, "
                   "metadata, pack, output_expires_s, output_file_id, error_file_id, created_s, "
                   "expires_s, boot) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13 "
                   "WHERE EXISTS (SELECT 1 FROM files WHERE id = ?4 AND status = 'processed')",
                   e) < 0)
        return -1;
    db_bind_text(&q, row->id);
    db_bind_text(&q, batch_status_name(row->status));
    db_bind_text(&q, row->endpoint);
    db_bind_text(&q, row->input_file_id);
    db_bind_int(&q, row->window_hours);
    db_bind_text(&q, row->metadata);
    db_bind_int(&q, row->pack);
    bind_or_null(&q, row->output_expires_s);
    db_bind_text(&q, row->output_file_id);
    db_bind_text(&q, row->error_file_id);
    db_bind_int(&q, row->at[AT_CREATED]);
    db_bind_int(&q, row->at[AT_EXPIRES]);
    db_bind_text(&q, row->boot);
    rc = db_step(&q, e);
    db_finish(&q);
    if (rc == 0 && db_changes(d) != 1)
        return err_set(e, ERR_NOT_FOUND, "the input file is gone");
    row->seq = db_last_id(d);
    return rc;
}

int batch_rows_insert(struct db *d, struct batch_row *row, struct err *e)
{
    return db_begin(d, e) < 0 ? -1 : db_end(d, insert_locked(d, row, e), e);
}

int batch_rows_cancel(struct db *d, const char *id, int64_t now, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_begin(d, e) < 0)
        return -1;
    rc = db_prepare(&q, d,
                    "UPDATE batches SET status = 'cancelling', cancelling_s = ? WHERE id = ? "
                    "AND status IN ('validating', 'in_progress')",
                    e);
    if (rc == 0) {
        db_bind_int(&q, now);
        db_bind_text(&q, id);
        rc = db_step(&q, e);
    }
    db_finish(&q);
    return db_end(d, rc < 0 ? -1 : (int)db_changes(d), e);
}

static int update_locked(struct db *d, const struct batch_row *row, enum batch_status from,
                         struct err *e)
{
    static const char sql[] =
        "UPDATE batches SET status = ?, model = ?, model_row = ?, load_counter = ?, boot = ?, "
        "errors = ?, total = ?, completed = ?, failed = ?, next_offset = ?, next_line = ?, "
        "output_bytes = ?, error_bytes = ?, created_s = ?, in_progress_s = ?, expires_s = ?, "
        "finalizing_s = ?, completed_s = ?, failed_s = ?, expired_s = ?, cancelling_s = ?, "
        "cancelled_s = ? WHERE seq = ? AND status = ?";
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d, sql, e) < 0)
        return -1;
    db_bind_text(&q, batch_status_name(row->status));
    db_bind_text(&q, row->model);
    bind_or_null(&q, row->model_row);
    db_bind_int(&q, (int64_t)row->load_counter);
    db_bind_text(&q, row->boot);
    db_bind_text(&q, row->errors);
    db_bind_int(&q, row->total);
    db_bind_int(&q, row->completed);
    db_bind_int(&q, row->failed);
    db_bind_int(&q, row->next_offset);
    db_bind_int(&q, row->next_line);
    db_bind_int(&q, row->output_bytes);
    db_bind_int(&q, row->error_bytes);
    for (int i = 0; i < BATCH_TIMES; i++)
        bind_or_null(&q, row->at[i]);
    db_bind_int(&q, row->seq);
    db_bind_text(&q, batch_status_name(from));
    rc = db_step(&q, e);
    db_finish(&q);
    return rc < 0 ? -1 : (int)db_changes(d);
}

int batch_rows_update(struct db *d, const struct batch_row *row, enum batch_status from,
                      struct err *e)
{
    return db_begin(d, e) < 0 ? -1 : db_end(d, update_locked(d, row, from, e), e);
}

int batch_rows_record(struct db *d, const struct batch_row *row, struct err *e)
{
    return db_run(d, e,
                  "UPDATE batches SET completed = ?, failed = ?, next_offset = ?, next_line = ?, "
                  "output_bytes = ?, error_bytes = ?, load_counter = ?, boot = ? WHERE seq = ?",
                  "iiiiiiiti", row->completed, row->failed, row->next_offset, row->next_line,
                  row->output_bytes, row->error_bytes, (int64_t)row->load_counter, row->boot,
                  row->seq);
}

/* ---- bad lines ---- */

static int forget_bad_locked(struct db *d, int64_t seq, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d, "DELETE FROM batch_bad_lines WHERE batch = ?", e) < 0)
        return -1;
    db_bind_int(&q, seq);
    rc = db_step(&q, e);
    db_finish(&q);
    return rc;
}

int batch_rows_forget_bad(struct db *d, int64_t seq, struct err *e)
{
    return db_begin(d, e) < 0 ? -1 : db_end(d, forget_bad_locked(d, seq, e), e);
}

static int add_bad_locked(struct db *d, int64_t seq, const struct bad_line *one, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d, "INSERT INTO batch_bad_lines (batch, line, text) VALUES (?, ?, ?)", e) <
        0)
        return -1;
    db_bind_int(&q, seq);
    db_bind_int(&q, one->line);
    db_bind_text(&q, one->text);
    rc = db_step(&q, e);
    db_finish(&q);
    return rc;
}

int batch_rows_add_bad(struct db *d, int64_t seq, const struct bad_line *lines, int n,
                       struct err *e)
{
    int rc = 0;

    if (db_begin(d, e) < 0)
        return -1;
    for (int i = 0; rc == 0 && i < n; i++)
        rc = add_bad_locked(d, seq, &lines[i], e);
    return db_end(d, rc, e);
}

int batch_rows_find_bad(struct db *d, int64_t seq, int64_t line, struct buf *out, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    db_lock(d);
    rc = db_prepare(&q, d, "SELECT text FROM batch_bad_lines WHERE batch = ? AND line = ?", e);
    if (rc == 0) {
        db_bind_int(&q, seq);
        db_bind_int(&q, line);
        rc = db_step(&q, e);
    }
    if (rc > 0)
        buf_add_str(out, db_text(&q, 0));
    db_finish(&q);
    db_unlock(d);
    return rc;
}

int batch_rows_forget(struct db *d, int64_t oldest, struct err *e)
{
    return db_run(d, e,
                  "DELETE FROM batches WHERE "
                  "coalesce(completed_s, failed_s, expired_s, cancelled_s) < ?",
                  "i", oldest);
}

/* ---- the end ---- */

static int end_locked(struct db *d, const struct batch_row *row, enum batch_status from,
                      const struct file_row *files, int n_files, struct err *e)
{
    int rc = update_locked(d, row, from, e);

    if (rc == 0)
        return err_set(e, ERR_CONFLICT, "the batch is no longer %s", batch_status_name(from));
    for (int i = 0; rc > 0 && i < n_files; i++)
        if (batch_files_insert(d, &files[i], e) < 0)
            rc = -1;
    return rc < 0 ? -1 : forget_bad_locked(d, row->seq, e);
}

int batch_rows_end(struct db *d, const struct batch_row *row, enum batch_status from,
                   const struct file_row *files, int n_files, struct err *e)
{
    return db_begin(d, e) < 0 ? -1 : db_end(d, end_locked(d, row, from, files, n_files, e), e);
}
