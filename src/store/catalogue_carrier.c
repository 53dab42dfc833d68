/* Rows of checkpoint directories, and what a start settles. */
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/err.h"
#include "db/db.h"
#include "store/catalogue.h"
#include "store/catalogue_impl.h"

/* ---- carrier rows ---- */

static int rename_carrier_locked(struct db *d, int64_t id, const char *name, struct err *e)
{
    struct db_stmt q = {0};

    if (db_prepare(&q, d, "UPDATE models SET name = ?, updated_ms = ? WHERE id = ?", e) < 0)
        return -1;
    db_bind_text(&q, name);
    db_bind_int(&q, clock_wall_ms());
    db_bind_int(&q, id);
    return catalogue_change_locked(d, &q, id, e);
}

static int add_carrier_locked(struct db *d, const char *name, const char *real_path, int64_t *id,
                              struct err *e)
{
    /* The strings are only read. */
    struct model_row row = {
        .name = (char *)(uintptr_t)name,
        .source = (char *)(uintptr_t) "local",
        .local_path = (char *)(uintptr_t)real_path,
        .quantization = (char *)(uintptr_t) "FP16",
        .disk_size_mb = -1,
        .estimated_memory_mb = -1,
        .download_progress = 100,
        .status = MODEL_READY,
        .checkpoint = true,
    };

    if (catalogue_insert_locked(d, &row, e) < 0)
        return -1;
    *id = row.id;
    return 0;
}

/* The directory moved to another root with all that is in it. */
static int move_carrier_locked(struct db *d, int64_t id, const char *real_path, struct err *e)
{
    struct db_stmt q = {0};

    if (db_prepare(&q, d,
                   "UPDATE models SET local_path = ?, updated_ms = ?, error_message = NULL,"
                   " status = CASE status WHEN 'error' THEN 'ready' ELSE status END WHERE id = ?",
                   e) < 0)
        return -1;
    db_bind_text(&q, real_path);
    db_bind_int(&q, clock_wall_ms());
    db_bind_int(&q, id);
    return catalogue_change_locked(d, &q, id, e);
}

bool catalogue_carrier_lost(const struct model_row *row)
{
    struct stat st;

    return row->checkpoint && row->local_path &&
           (stat(row->local_path, &st) < 0 || !S_ISDIR(st.st_mode));
}

/* `at` has the directory and `named` the name; a row with id 0: none. */
static int settle_locked(struct db *d, const struct model_row *at, const struct model_row *named,
                         const char *name, const char *real_path, int64_t *id, struct err *e)
{
    *id = at->id ? at->id : named->id;
    if (at->id && !at->checkpoint)
        return err_set(e, ERR_CONFLICT, "this directory is registered as model \"%s\"", at->name);
    if (named->id && named->id != at->id && (at->id || !catalogue_carrier_lost(named))) {
        *id = named->id;
        return err_set(e, ERR_CONFLICT, "the name \"%s\" belongs to model %lld", name,
                       (long long)named->id);
    }
    if (at->id)
        return named->id ? 0 : rename_carrier_locked(d, at->id, name, e);
    if (named->id)
        return move_carrier_locked(d, named->id, real_path, e);
    return add_carrier_locked(d, name, real_path, id, e);
}

static int carrier_locked(struct db *d, const char *name, const char *real_path, bool loading,
                          int64_t *id, bool *ordinary, struct err *e)
{
    struct model_row at = {0}, named = {0};
    int rc = -1;

    if (catalogue_find_locked(d, "local_path = ?", 0, real_path, &at, e) >= 0 &&
        catalogue_find_locked(d, "name = ?", 0, name, &named, e) >= 0) {
        *ordinary = at.id && !at.checkpoint;
        rc = settle_locked(d, &at, &named, name, real_path, id, e);
        if (rc == 0 && loading) /* in the same transaction: nobody can delete the row in between */
            rc = catalogue_set_status_locked(d, *id, MODEL_LOADING, NULL, e);
    }
    model_row_release(&at);
    model_row_release(&named);
    return rc;
}

int catalogue_carrier(struct db *d, const char *name, const char *real_path, bool loading,
                      int64_t *id, bool *ordinary, struct err *e)
{
    *ordinary = false;
    if (db_begin(d, e) < 0)
        return -1;
    return db_end(d, carrier_locked(d, name, real_path, loading, id, ordinary, e), e);
}

/* ---- start-up ---- */

static const char gone[] = "the checkpoint directory is gone";

/* A root that was not mounted may be there again. */
static int settle_carrier(struct db *d, const struct model_row *row, struct err *e)
{
    bool lost = catalogue_carrier_lost(row);

    if (lost && row->status != MODEL_ERROR)
        return catalogue_set_status(d, row->id, MODEL_ERROR, gone, e);
    if (!lost && row->checkpoint && row->error_message && strcmp(row->error_message, gone) == 0)
        return catalogue_set_status(d, row->id, MODEL_READY, NULL, e);
    return 0;
}

int catalogue_start(struct db *d, struct err *e)
{
    struct model_row *rows = NULL;
    int rc, n = 0;

    if (db_begin(d, e) < 0)
        return -1;
    rc = db_exec(d,
                 "UPDATE models SET status = 'ready', error_message = NULL WHERE status IN "
                 "('loading', 'loaded')",
                 e);
    if (rc == 0)
        rc = db_exec(d,
                     "UPDATE models SET status = 'error', error_message = "
                     "'the server stopped during the download' WHERE status = 'downloading'",
                     e);
    rc = db_end(d, rc, e);
    if (rc == 0)
        rc = catalogue_list(d, &rows, &n, e);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = settle_carrier(d, &rows[i], e);
    catalogue_list_release(rows, n);
    return rc;
}
