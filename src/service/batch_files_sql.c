/* service/batch_files_sql.c - the statements of batch_files. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "db/db.h"
#include "service/batch_files_impl.h"

#define COLUMNS "seq, id, filename, purpose, status, bytes, sha256, created_s, expires_s"

static const char *const status_names[] = {
    [FILE_PROCESSED] = "processed",
    [FILE_ERROR] = "error",
    [FILE_DELETED] = "deleted",
    [FILE_EXPIRED] = "expired",
};
static const char *const purpose_names[] = {
    [PURPOSE_BATCH] = "batch",
    [PURPOSE_BATCH_OUTPUT] = "batch_output",
};

const char *file_status_name(enum file_status s)
{
    return status_names[s];
}

const char *file_purpose_name(enum file_purpose p)
{
    return purpose_names[p];
}

/* The tables' CHECK allows no other words. */
static int index_of(const char *const *names, int n, const char *name)
{
    for (int i = 1; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return 0;
}

static void read_row(const struct db_stmt *q, struct file_row *row)
{
    const char *sha256 = db_text(q, 6);

    *row =
        (struct file_row){.seq = db_int(q, 0),
                          .purpose = (enum file_purpose)index_of(purpose_names, 2, db_text(q, 3)),
                          .status = (enum file_status)index_of(status_names, 4, db_text(q, 4)),
                          .bytes = db_int(q, 5),
                          .created_s = db_int(q, 7),
                          .expires_s = db_int(q, 8)};
    str_copy(row->id, sizeof row->id, db_text(q, 1));
    str_copy(row->filename, sizeof row->filename, db_text(q, 2));
    str_copy(row->sha256, sizeof row->sha256, sha256 ? sha256 : "");
}

int batch_files_get_locked(struct db *d, const char *id, struct file_row *row, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d, "SELECT " COLUMNS " FROM files WHERE id = ?", e) < 0)
        return -1;
    db_bind_text(&q, id);
    rc = db_step(&q, e);
    if (rc > 0)
        read_row(&q, row);
    db_finish(&q);
    return rc;
}

int batch_files_page_locked(struct db *d, const struct file_query *q, int64_t seq,
                            struct file_row **rows, int *n, struct err *e)
{
    static const char newest[] =
        "SELECT " COLUMNS " FROM files WHERE status != 'deleted' AND (?1 IS NULL OR purpose = ?1)"
        " AND (?2 = 0 OR seq < ?2) ORDER BY seq DESC LIMIT ?3";
    static const char oldest[] =
        "SELECT " COLUMNS " FROM files WHERE status != 'deleted' AND (?1 IS NULL OR purpose = ?1)"
        " AND seq > ?2 ORDER BY seq LIMIT ?3";
    struct db_stmt s = {0};
    int rc;

    *n = 0;
    *rows = malloc((size_t)(q->limit + 1) * sizeof **rows);
    if (!*rows)
        return err_nomem(e);
    rc = db_prepare(&s, d, q->ascending ? oldest : newest, e);
    if (rc == 0) {
        db_bind_text(&s, q->purpose);
        db_bind_int(&s, seq);
        db_bind_int(&s, q->limit + 1);
        while ((rc = db_step(&s, e)) > 0)
            read_row(&s, &(*rows)[(*n)++]);
    }
    db_finish(&s);
    if (rc < 0) {
        free(*rows);
        *rows = NULL;
    }
    return rc;
}

/* One statement with one text to bind; its first column into `out` when there is a row. */
static int ask(struct db *d, const char *sql, const char *text, char *out, size_t size,
               struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d, sql, e) < 0)
        return -1;
    db_bind_text(&q, text);
    rc = db_step(&q, e);
    if (rc > 0 && out)
        str_copy(out, size, db_text(&q, 0));
    db_finish(&q);
    return rc;
}

int batch_files_user_locked(struct db *d, const char *id, char user[BATCH_ID_MAX], struct err *e)
{
    return ask(d, "SELECT id FROM batches WHERE input_file_id = ? AND " BATCH_OPEN " LIMIT 1", id,
               user, BATCH_ID_MAX, e);
}

int batch_files_end_locked(struct db *d, const char *id, enum file_status status, int64_t now,
                           struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d, "UPDATE files SET status = ?, ended_s = ? WHERE id = ?", e) < 0)
        return -1;
    db_bind_text(&q, file_status_name(status));
    db_bind_int(&q, now);
    db_bind_text(&q, id);
    rc = db_step(&q, e);
    db_finish(&q);
    return rc;
}

static int add_id(char (**ids)[FILE_ID_MAX], int *n, const char *id, struct err *e)
{
    char(*grown)[FILE_ID_MAX];

    if ((*n & (*n - 1)) == 0) { /* the room doubles */
        grown = realloc(*ids, (size_t)(*n ? 2 * *n : 1) * sizeof *grown);
        if (!grown)
            return err_nomem(e);
        *ids = grown;
    }
    str_copy((*ids)[(*n)++], FILE_ID_MAX, id);
    return 0;
}

static int forget_ended(struct db *d, int64_t oldest, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d,
                   "DELETE FROM files WHERE status IN ('deleted', 'expired') AND ended_s < ?",
                   e) < 0)
        return -1;
    db_bind_int(&q, oldest);
    rc = db_step(&q, e);
    db_finish(&q);
    return rc;
}

int batch_files_expire_locked(struct db *d, int64_t now, int64_t oldest, char (**ids)[FILE_ID_MAX],
                              int *n, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d,
                   "SELECT id FROM files WHERE status = 'processed' AND expires_s <= ? AND id NOT "
                   "IN (SELECT input_file_id FROM batches WHERE " BATCH_OPEN ")",
                   e) < 0)
        return -1;
    db_bind_int(&q, now);
    while ((rc = db_step(&q, e)) > 0)
        if (add_id(ids, n, db_text(&q, 0), e) < 0) {
            rc = -1;
            break;
        }
    db_finish(&q);
    for (int i = 0; rc == 0 && i < *n; i++)
        rc = batch_files_end_locked(d, (*ids)[i], FILE_EXPIRED, now, e);
    return rc < 0 ? -1 : forget_ended(d, oldest, e);
}

int batch_files_wanted_locked(struct db *d, const char *id, bool partial, struct err *e)
{
    int rc =
        ask(d, "SELECT id FROM batches WHERE ?1 IN (output_file_id, error_file_id) AND " BATCH_OPEN,
            id, NULL, 0, e);

    if (rc != 0 || partial)
        return rc;
    return ask(d, "SELECT id FROM files WHERE id = ? AND status IN ('processed', 'error')", id,
               NULL, 0, e);
}

int batch_files_insert(struct db *db, const struct file_row *row, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, db,
                   "INSERT INTO files (id, filename, purpose, status, bytes, sha256, created_s, "
                   "expires_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                   e) < 0)
        return -1;
    db_bind_text(&q, row->id);
    db_bind_text(&q, row->filename);
    db_bind_text(&q, file_purpose_name(row->purpose));
    db_bind_text(&q, file_status_name(row->status));
    db_bind_int(&q, row->bytes);
    db_bind_text(&q, row->sha256[0] ? row->sha256 : NULL);
    db_bind_int(&q, row->created_s);
    db_bind_int(&q, row->expires_s);
    rc = db_step(&q, e);
    db_finish(&q);
    return rc;
}
