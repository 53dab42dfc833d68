#include "service/weaver/artifact_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "db/db.h"
#include "service/times.h"
#include "service/weaver/impl.h"
#include "service/weaver/rows.h"

static const char columns[] = "id, checkpoint_id, model_id, uri, kind, status, owner, operation_id,"
                              " size_bytes, manifest, error, ttl_s, expires_ms, created_ms,"
                              " updated_ms";

int w_artifact_insert(struct weaver *w, const struct w_artifact *a, struct err *e)
{
    return db_run(w->db, e,
                  "INSERT INTO weaver_artifacts (id, checkpoint_id, model_id, uri, kind, status,"
                  " owner, operation_id, ttl_s, expires_ms, created_ms, updated_ms)"
                  " VALUES (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), nullif(?, 0), ?, ?)",
                  "ttttttttiiii", a->id, a->checkpoint_id, a->model_id, a->uri, a->kind, a->status,
                  a->owner, a->operation_id, a->ttl_s, a->expires_ms, a->created_ms, a->updated_ms);
}

int w_artifact_update(struct weaver *w, const struct w_artifact *a, struct err *e)
{
    char *manifest = a->manifest ? w_dump(a->manifest) : NULL;
    int rc = db_run(w->db, e,
                    "UPDATE weaver_artifacts SET status = ?, size_bytes = ?, manifest = ?,"
                    " error = nullif(?, ''), updated_ms = ? WHERE id = ?",
                    "tittit", a->status, a->size_bytes, manifest, a->error, a->updated_ms, a->id);

    free(manifest);
    return rc;
}

int w_artifacts_follow(struct weaver *w, const char *checkpoint_id, int64_t expires_ms,
                       struct err *e)
{
    return db_run(w->db, e,
                  "UPDATE weaver_artifacts SET expires_ms = nullif(?, 0) WHERE checkpoint_id = ?"
                  " AND ttl_s IS NULL AND status IN ('pending', 'completed')",
                  "it", expires_ms, checkpoint_id);
}

static void read_row(const struct db_stmt *q, void *row)
{
    struct w_artifact *a = row;

    *a = (struct w_artifact){.size_bytes = db_int(q, 8),
                             .manifest = db_is_null(q, 9) ? NULL : w_parse(db_text(q, 9)),
                             .ttl_s = db_int(q, 11),
                             .expires_ms = db_int(q, 12),
                             .created_ms = db_int(q, 13),
                             .updated_ms = db_int(q, 14)};
    db_copy_text(q, 0, a->id, sizeof a->id);
    db_copy_text(q, 1, a->checkpoint_id, sizeof a->checkpoint_id);
    db_copy_text(q, 2, a->model_id, sizeof a->model_id);
    db_copy_text(q, 3, a->uri, sizeof a->uri);
    db_copy_text(q, 4, a->kind, sizeof a->kind);
    db_copy_text(q, 5, a->status, sizeof a->status);
    db_copy_text(q, 6, a->owner, sizeof a->owner);
    db_copy_text(q, 7, a->operation_id, sizeof a->operation_id);
    db_copy_text(q, 10, a->error, sizeof a->error);
}

static void release_row(void *row)
{
    json_decref(((struct w_artifact *)row)->manifest);
}

static const struct w_table artifacts = {"weaver_artifacts", columns, sizeof(struct w_artifact),
                                         read_row, release_row};

static int find_row(struct weaver *w, const char *where, const char *a, const char *b,
                    struct w_artifact *out, struct err *e)
{
    return w_row_first(w->db, &artifacts, where, a, b, out, e);
}

int w_artifact_find(struct weaver *w, const char *id, struct w_artifact *out, struct refusal *r)
{
    struct err e = {0};
    int rc = find_row(w,
                      "id = ?1 AND status <> 'deleted' AND (expires_ms IS NULL OR"
                      " expires_ms > ?3)",
                      id, NULL, out, &e);

    if (rc > 0)
        return 0;
    return rc < 0 ? w_refuse_err(r, &e)
                  : refuse(r, REFUSAL_W_ARTIFACT_NOT_FOUND, "There is no artifact '%.64s'.", id);
}

int w_artifact_of(struct weaver *w, const char *checkpoint_id, const char *kind,
                  struct w_artifact *out)
{
    struct err ignored = {0};

    return find_row(w,
                    "checkpoint_id = ?1 AND kind = ?2 AND status = 'completed' AND"
                    " (expires_ms IS NULL OR expires_ms > ?3) ORDER BY rowid DESC",
                    checkpoint_id, kind, out, &ignored) > 0;
}

int w_artifact_each(struct weaver *w, const char *where, const char *arg,
                    int (*fn)(void *arg, const struct w_artifact *a), void *fn_arg, struct err *e)
{
    int n, rc;
    struct w_artifact *all = w_rows_all(w->db, &artifacts, where, arg, &n, e);

    rc = n < 0 ? -1 : 0;
    for (int i = 0; i < n; i++) {
        if (rc == 0)
            rc = fn(fn_arg, &all[i]);
        release_row(&all[i]);
    }
    free(all);
    return rc;
}

json_t *w_artifact_object(const struct w_artifact *a)
{
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I}", "id", a->id, "checkpoint_id",
                  a->checkpoint_id, "model_id", a->model_id, "kind", a->kind, "status", a->status,
                  "uri", a->uri, "owner", a->owner, "size_bytes", (json_int_t)a->size_bytes);

    if (!o)
        return NULL;
    json_object_set_new(o, "manifest", a->manifest ? json_incref(a->manifest) : json_object());
    json_object_set_new(o, "error", json_text(a->error));
    json_object_set_new(o, "ttl_seconds", a->ttl_s ? json_integer(a->ttl_s) : json_null());
    json_object_set_new(o, "expires_at", json_time(a->expires_ms));
    json_object_set_new(o, "created_at", json_time(a->created_ms));
    json_object_set_new(o, "updated_at", json_time(a->updated_ms));
    return o;
}

static int add_object(void *arg, const struct w_artifact *a)
{
    json_array_append_new(arg, w_artifact_object(a));
    return 0;
}

json_t *w_artifact_objects(struct weaver *w, const char *checkpoint_id, struct err *e)
{
    json_t *items = json_array();

    if (w_artifact_each(w,
                        "checkpoint_id = ?1 AND status <> 'deleted' AND (expires_ms IS NULL OR"
                        " expires_ms > ?3) ORDER BY rowid",
                        checkpoint_id, add_object, items, e) == 0)
        return items;
    json_decref(items);
    return NULL;
}
