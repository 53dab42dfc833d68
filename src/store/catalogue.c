#include "store/catalogue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "db/db.h"
#include "store/catalogue_impl.h"

#define COLUMNS                                                                             \
    "id, name, source, repo_id, local_path, params, architecture, quantization, revision, " \
    "error_message, disk_size_mb, estimated_memory_mb, download_progress, created_ms, "     \
    "updated_ms, loaded_ms, status, locked, trust_remote_code, supports_embeddings, checkpoint"

static const char *const status_names[] = {
    [MODEL_DOWNLOADING] = "downloading", [MODEL_READY] = "ready", [MODEL_LOADING] = "loading",
    [MODEL_LOADED] = "loaded",           [MODEL_ERROR] = "error",
};

const char *model_status_name(enum model_status s)
{
    return status_names[s];
}

static enum model_status status_from(const char *name)
{
    for (int i = 0; i <= MODEL_ERROR; i++)
        if (strcmp(status_names[i], name) == 0)
            return (enum model_status)i;
    return MODEL_ERROR; /* the table's CHECK allows no other word */
}

void model_row_release(struct model_row *row)
{
    free(row->name);
    free(row->source);
    free(row->repo_id);
    free(row->local_path);
    free(row->params);
    free(row->architecture);
    free(row->quantization);
    free(row->revision);
    free(row->error_message);
    *row = (struct model_row){0};
}

/* ---- reading ---- */

static int64_t int_or(const struct db_stmt *q, int column, int64_t null)
{
    return db_is_null(q, column) ? null : db_int(q, column);
}

static int read_row(const struct db_stmt *q, struct model_row *out, struct err *e)
{
    bool ok;

    *out = (struct model_row){.id = db_int(q, 0)};
    ok = db_dup_text(q, 1, &out->name) && db_dup_text(q, 2, &out->source) &&
         db_dup_text(q, 3, &out->repo_id) && db_dup_text(q, 4, &out->local_path) &&
         db_dup_text(q, 5, &out->params) && db_dup_text(q, 6, &out->architecture) &&
         db_dup_text(q, 7, &out->quantization) && db_dup_text(q, 8, &out->revision) &&
         db_dup_text(q, 9, &out->error_message);
    out->disk_size_mb = int_or(q, 10, -1);
    out->estimated_memory_mb = int_or(q, 11, -1);
    out->download_progress = db_int(q, 12);
    out->created_ms = db_int(q, 13);
    out->updated_ms = db_int(q, 14);
    out->loaded_ms = int_or(q, 15, 0);
    out->status = status_from(db_text(q, 16));
    out->locked = db_int(q, 17);
    out->trust_remote_code = db_int(q, 18);
    out->supports_embeddings = db_int(q, 19);
    out->checkpoint = db_int(q, 20);
    if (ok)
        return 0;
    model_row_release(out);
    return err_nomem(e);
}

/* The lock is held. `text` NULL: the key is `id`. 1 found, 0 none. */
int catalogue_find_locked(struct db *d, const char *where, int64_t id, const char *text,
                          struct model_row *out, struct err *e)
{
    char sql[sizeof COLUMNS + 128];
    struct db_stmt q = {0};
    int rc;

    snprintf(sql, sizeof sql, "SELECT " COLUMNS " FROM models WHERE %s", where);
    if (db_prepare(&q, d, sql, e) < 0)
        return -1;
    if (text)
        db_bind_text(&q, text);
    else
        db_bind_int(&q, id);
    rc = db_step(&q, e);
    if (rc > 0 && read_row(&q, out, e) < 0)
        rc = -1;
    db_finish(&q);
    return rc;
}

static int get(struct db *d, const char *where, int64_t id, const char *text, struct model_row *out,
               struct err *e)
{
    int rc;

    *out = (struct model_row){0};
    db_lock(d);
    rc = catalogue_find_locked(d, where, id, text, out, e);
    db_unlock(d);
    if (rc == 0)
        return text ? err_set(e, ERR_NOT_FOUND, "no model \"%s\"", text)
                    : err_set(e, ERR_NOT_FOUND, "no model with id %lld", (long long)id);
    return rc < 0 ? -1 : 0;
}

int catalogue_get(struct db *d, int64_t id, struct model_row *out, struct err *e)
{
    return get(d, "id = ?", id, NULL, out, e);
}

int catalogue_get_by_name(struct db *d, const char *name, struct model_row *out, struct err *e)
{
    return get(d, "name = ?", 0, name, out, e);
}

int catalogue_get_by_path(struct db *d, const char *local_path, struct model_row *out,
                          struct err *e)
{
    return get(d, "local_path = ?", 0, local_path, out, e);
}

/* Appends the row that q stands on. */
static int append_row(const struct db_stmt *q, struct model_row **rows, int *n, struct err *e)
{
    struct model_row *more = reallocarray(*rows, (size_t)*n + 1, sizeof **rows);

    if (!more)
        return err_nomem(e);
    *rows = more;
    if (read_row(q, &more[*n], e) < 0)
        return -1;
    ++*n;
    return 0;
}

int catalogue_list(struct db *d, struct model_row **rows, int *n, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    *rows = NULL;
    *n = 0;
    db_lock(d);
    rc = db_prepare(&q, d, "SELECT " COLUMNS " FROM models ORDER BY id DESC", e);
    while (rc == 0 && (rc = db_step(&q, e)) > 0)
        rc = append_row(&q, rows, n, e);
    db_finish(&q);
    db_unlock(d);
    if (rc == 0)
        return 0;
    catalogue_list_release(*rows, *n);
    *rows = NULL;
    *n = 0;
    return -1;
}

void catalogue_list_release(struct model_row *rows, int n)
{
    for (int i = 0; i < n; i++)
        model_row_release(&rows[i]);
    free(rows);
}

/* ---- writing: the lock is held in functions that end in _locked ---- */

int catalogue_find_id_locked(struct db *d, const char *sql, const char *a, const char *b,
                             int64_t *id, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d, sql, e) < 0)
        return -1;
    db_bind_text(&q, a);
    if (b)
        db_bind_text(&q, b);
    rc = db_step(&q, e);
    if (rc > 0)
        *id = db_int(&q, 0);
    db_finish(&q);
    return rc;
}

/* 1: another row stands in the way. */
static int find_clash_locked(struct db *d, const struct model_row *row, enum catalogue_clash *clash,
                             int64_t *other, struct err *e)
{
    int rc = 0;

    if (row->repo_id) {
        *clash = CATALOGUE_SAME_REPO;
        rc = catalogue_find_id_locked(
            d, "SELECT id FROM models WHERE repo_id = ? AND quantization = ?", row->repo_id,
            row->quantization, other, e);
    }
    if (rc == 0 && row->local_path) {
        *clash = CATALOGUE_SAME_PATH;
        rc = catalogue_find_id_locked(d, "SELECT id FROM models WHERE local_path = ?",
                                      row->local_path, NULL, other, e);
    }
    if (rc == 0) {
        *clash = CATALOGUE_SAME_NAME;
        rc = catalogue_find_id_locked(d, "SELECT id FROM models WHERE name = ?", row->name, NULL,
                                      other, e);
    }
    if (rc == 0)
        *clash = CATALOGUE_NO_CLASH;
    return rc;
}

static void bind_int_or_null(struct db_stmt *q, int64_t v, int64_t null)
{
    if (v == null)
        db_bind_text(q, NULL);
    else
        db_bind_int(q, v);
}

int catalogue_insert_locked(struct db *d, struct model_row *row, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d,
                   "INSERT INTO models (name, source, repo_id, local_path, params, architecture,"
                   " quantization, revision, error_message, disk_size_mb, estimated_memory_mb,"
                   " download_progress, created_ms, updated_ms, status, locked, trust_remote_code,"
                   " supports_embeddings, checkpoint)"
                   " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   e) < 0)
        return -1;
    row->created_ms = row->updated_ms = clock_wall_ms();
    db_bind_text(&q, row->name);
    db_bind_text(&q, row->source);
    db_bind_text(&q, row->repo_id);
    db_bind_text(&q, row->local_path);
    db_bind_text(&q, row->params);
    db_bind_text(&q, row->architecture);
    db_bind_text(&q, row->quantization);
    db_bind_text(&q, row->revision);
    db_bind_text(&q, row->error_message);
    bind_int_or_null(&q, row->disk_size_mb, -1);
    bind_int_or_null(&q, row->estimated_memory_mb, -1);
    db_bind_int(&q, row->download_progress);
    db_bind_int(&q, row->created_ms);
    db_bind_int(&q, row->updated_ms);
    db_bind_text(&q, model_status_name(row->status));
    db_bind_int(&q, row->locked);
    db_bind_int(&q, row->trust_remote_code);
    db_bind_int(&q, row->supports_embeddings);
    db_bind_int(&q, row->checkpoint);
    rc = db_step(&q, e);
    db_finish(&q);
    if (rc == 0)
        row->id = db_last_id(d);
    return rc;
}

static const char *clash_word(enum catalogue_clash c)
{
    return c == CATALOGUE_SAME_NAME   ? "name"
           : c == CATALOGUE_SAME_PATH ? "directory"
                                      : "repository and quantization";
}

int catalogue_add(struct db *d, struct model_row *row, enum catalogue_clash *clash, int64_t *other,
                  struct err *e)
{
    enum catalogue_clash own = CATALOGUE_NO_CLASH;
    int64_t id = 0;
    int rc;

    if (db_begin(d, e) < 0)
        return -1;
    rc = find_clash_locked(d, row, &own, &id, e);
    if (rc > 0)
        rc = err_set(e, ERR_CONFLICT, "model %lld has the same %s", (long long)id, clash_word(own));
    else if (rc == 0)
        rc = catalogue_insert_locked(d, row, e);
    if (clash)
        *clash = own;
    if (other)
        *other = id;
    return db_end(d, rc, e);
}

/* Runs q, which changes the row `id`; finishes it. */
int catalogue_change_locked(struct db *d, struct db_stmt *q, int64_t id, struct err *e)
{
    int rc = db_step(q, e);

    db_finish(q);
    if (rc == 0 && db_changes(d) == 0)
        return err_set(e, ERR_NOT_FOUND, "no model with id %lld", (long long)id);
    return rc;
}

static int delete_row(struct db *d, const char *sql, int64_t id, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_begin(d, e) < 0)
        return -1;
    rc = db_prepare(&q, d, sql, e);
    if (rc == 0) {
        db_bind_int(&q, id);
        rc = catalogue_change_locked(d, &q, id, e);
    }
    return db_end(d, rc, e);
}

int catalogue_delete(struct db *d, int64_t id, struct err *e)
{
    return delete_row(d, "DELETE FROM models WHERE id = ?", id, e);
}

int catalogue_delete_idle(struct db *d, int64_t id, struct err *e)
{
    return delete_row(d,
                      "DELETE FROM models WHERE id = ? AND locked = 0 AND"
                      " status NOT IN ('loading', 'loaded')",
                      id, e);
}

int catalogue_set_status_locked(struct db *d, int64_t id, enum model_status status,
                                const char *error_message, struct err *e)
{
    struct db_stmt q = {0};

    if (db_prepare(&q, d,
                   "UPDATE models SET status = ?1, error_message = ?2, updated_ms = ?3,"
                   " loaded_ms = CASE ?1 WHEN 'loaded' THEN ?3 ELSE loaded_ms END WHERE id = ?4",
                   e) < 0)
        return -1;
    db_bind_text(&q, model_status_name(status));
    db_bind_text(&q, error_message);
    db_bind_int(&q, clock_wall_ms());
    db_bind_int(&q, id);
    return catalogue_change_locked(d, &q, id, e);
}

int catalogue_set_status(struct db *d, int64_t id, enum model_status status,
                         const char *error_message, struct err *e)
{
    if (db_begin(d, e) < 0)
        return -1;
    return db_end(d, catalogue_set_status_locked(d, id, status, error_message, e), e);
}

int catalogue_set_locked(struct db *d, int64_t id, bool locked, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_begin(d, e) < 0)
        return -1;
    rc = db_prepare(&q, d, "UPDATE models SET locked = ?, updated_ms = ? WHERE id = ?", e);
    if (rc == 0) {
        db_bind_int(&q, locked);
        db_bind_int(&q, clock_wall_ms());
        db_bind_int(&q, id);
        rc = catalogue_change_locked(d, &q, id, e);
    }
    return db_end(d, rc, e);
}

int catalogue_set_facts(struct db *d, const struct model_row *row, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_begin(d, e) < 0)
        return -1;
    rc =
        db_prepare(&q, d,
                   "UPDATE models SET architecture = ?, params = ?, disk_size_mb = ?,"
                   " estimated_memory_mb = ?, supports_embeddings = ?, updated_ms = ? WHERE id = ?",
                   e);
    if (rc == 0) {
        db_bind_text(&q, row->architecture);
        db_bind_text(&q, row->params);
        bind_int_or_null(&q, row->disk_size_mb, -1);
        bind_int_or_null(&q, row->estimated_memory_mb, -1);
        db_bind_int(&q, row->supports_embeddings);
        db_bind_int(&q, clock_wall_ms());
        db_bind_int(&q, row->id);
        rc = catalogue_change_locked(d, &q, row->id, e);
    }
    return db_end(d, rc, e);
}
