/* Rows of checkpoint directories, and what a start settles. */
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

static int carrier_locked(struct db *d, const char *name, const char *real_path, int64_t *id,
                          bool *ordinary, struct err *e)
{
    struct model_row row = {0};
    int64_t named = 0;
    int found = catalogue_find_locked(d, "local_path = ?", 0, real_path, &row, e);
    int rc = found;

    if (rc >= 0)
        rc = catalogue_find_id_locked(d, "SELECT id FROM models WHERE name = ?", name, NULL, &named,
                                      e);
    if (rc < 0)
        goto done;
    *ordinary = found && !row.checkpoint;
    *id = found ? row.id : named;
    if (*ordinary) {
        rc = err_set(e, ERR_CONFLICT, "this directory is registered as model \"%s\"", row.name);
    } else if (named && named != row.id) {
        *id = named;
        rc = err_set(e, ERR_CONFLICT, "the name \"%s\" belongs to model %lld", name,
                     (long long)named);
    } else if (found) {
        rc = named ? 0 : rename_carrier_locked(d, row.id, name, e);
    } else {
        rc = add_carrier_locked(d, name, real_path, id, e);
    }

done:
    model_row_release(&row);
    return rc;
}

int catalogue_carrier(struct db *d, const char *name, const char *real_path, int64_t *id,
                      bool *ordinary, struct err *e)
{
    *ordinary = false;
    if (db_begin(d, e) < 0)
        return -1;
    return db_end(d, carrier_locked(d, name, real_path, id, ordinary, e), e);
}

/* ---- start-up ---- */

static int mark_lost(struct db *d, const struct model_row *row, struct err *e)
{
    struct stat st;

    if (!row->checkpoint || !row->local_path || row->status == MODEL_ERROR ||
        (stat(row->local_path, &st) == 0 && S_ISDIR(st.st_mode)))
        return 0;
    return catalogue_set_status(d, row->id, MODEL_ERROR, "the checkpoint directory is gone", e);
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
        rc = mark_lost(d, &rows[i], e);
    catalogue_list_release(rows, n);
    return rc;
}
