#include "service/weaver/reindex.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/str.h"
#include "base/uuid.h"
#include "db/db.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/impl.h"

struct walk {
    const struct weaver_reindex_req *req;
    int64_t *count;
    int root_fd;
};

/* ---- a record as a row ---- */

static bool flag(const json_t *o, const char *key)
{
    return json_is_true(json_object_get(o, key));
}

static void fill_shape(struct w_ckpt *c, const json_t *record)
{
    const json_t *a = json_object_get(record, "adapter");

    c->shape =
        (struct w_shape){.full = strcmp(json_text_or(record, "training_mode", ""), "full_ft") == 0,
                         .rank = (int)json_integer_value(json_object_get(a, "rank")),
                         .attn = flag(a, "train_attn"),
                         .mlp = flag(a, "train_mlp"),
                         .unembed = flag(a, "train_unembed")};
}

/* -1: the record is not of this directory. */
static int fill(struct w_ckpt *c, const json_t *record, const char *model, const char *id,
                struct err *e)
{
    int type = ckpt_type_by_name(json_text_or(record, "type", ""));

    *c = (struct w_ckpt){.step = json_integer_value(json_object_get(record, "step")),
                         .has_optimizer = flag(record, "has_optimizer"),
                         .created_ms = json_integer_value(json_object_get(record, "created_ms"))};
    if (type < 0 || strcmp(json_text_or(record, "id", ""), id) != 0 ||
        strcmp(json_text_or(record, "model_id", ""), model) != 0 ||
        !*json_text_or(record, "slug", ""))
        return err_set(e, ERR_FORMAT, "checkpoint.json is not the record of this directory");
    c->type = (enum ckpt_type)type;
    str_copy(c->id, sizeof c->id, id);
    str_copy(c->model_id, sizeof c->model_id, model);
    str_copy(c->slug, sizeof c->slug, json_text_or(record, "slug", ""));
    c->has_name = json_is_string(json_object_get(record, "name"));
    str_copy(c->name, sizeof c->name, json_text_or(record, "name", ""));
    str_copy(c->owner, sizeof c->owner, json_text_or(record, "owner", ""));
    str_copy(c->base_model, sizeof c->base_model, json_text_or(record, "base_model", ""));
    snprintf(c->status, sizeof c->status, "completed");
    fill_shape(c, record);
    return 0;
}

/* ---- rows ---- */

static int has_row(struct db *d, const char *table, const char *id, struct err *e)
{
    struct db_stmt q;
    char sql[80];
    int rc;

    snprintf(sql, sizeof sql, "SELECT 1 FROM %s WHERE id = ?", table);
    rc = db_query(&q, d, e, sql, "t", id);
    if (rc == 0)
        rc = db_step(&q, e);
    db_query_end(&q, d);
    return rc;
}

/* The base by its name or repository, as the client named it; 0: not in the catalogue. */
static int find_base(struct db *d, const char *name, int64_t *row, struct err *e)
{
    struct db_stmt q;
    int rc = db_query(&q, d, e, "SELECT id FROM models WHERE name = ?1 OR repo_id = ?1", "t", name);

    *row = 0;
    if (rc == 0 && (rc = db_step(&q, e)) > 0)
        *row = db_int(&q, 0);
    db_query_end(&q, d);
    return rc < 0 ? -1 : 0;
}

static int add_model(struct db *d, const struct w_ckpt *c, struct err *e)
{
    int have = has_row(d, "weaver_models", c->model_id, e);

    if (have)
        return have < 0 ? -1 : 0;
    return db_run(
        d, e,
        "INSERT INTO weaver_models (id, session_id, owner, base_model, row_id, mode, rank,"
        " train_attn, train_mlp, train_unembed, seed, max_tokens, status, record,"
        " created_ms, updated_ms)"
        " VALUES (?, '', ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 'terminated', '{}', ?, ?)",
        "tttitiiiiii", c->model_id, c->owner, c->base_model, c->row_id,
        c->shape.full ? "full_ft" : "lora", (int64_t)c->shape.rank, (int64_t)c->shape.attn,
        (int64_t)c->shape.mlp, (int64_t)c->shape.unembed, c->created_ms, c->created_ms);
}

static int add_row(struct db *d, struct w_ckpt *c, enum reindex_outcome *outcome, struct err *e)
{
    int have = has_row(d, "weaver_checkpoints", c->id, e), rc;

    *outcome = REINDEX_KEPT;
    if (have)
        return have < 0 ? -1 : 0;
    *outcome = REINDEX_ADDED;
    if (find_base(d, c->base_model, &c->row_id, e) < 0 || add_model(d, c, e) < 0)
        return -1;
    db_lock(d);
    rc = w_ckpt_insert_row(d, c, e);
    db_unlock(d);
    return rc;
}

/* ---- the walk ---- */

static int read_one(const struct walk *w, int dir, const char *model, const char *id,
                    struct w_ckpt *c, struct err *e)
{
    json_t *record = ckpt_files_record(dir, e);
    const char *name;
    json_t *f;
    int rc = record ? fill(c, record, model, id, e) : -1;

    if (rc == 0)
        rc = ckpt_files_whole(dir, record, c, e);
    if (rc == 0 && w->req->verify)
        json_object_foreach (json_object_get(record, "files"), name, f) {
            if (rc == 0)
                rc = ckpt_files_verify(dir, record, name, NULL, e);
        }
    json_decref(record);
    return rc;
}

static int visit(const struct walk *w, int model_fd, const char *model, const char *id,
                 struct err *e)
{
    char path[2 * UUID_TEXT];
    struct err why = {0};
    struct w_ckpt c;
    struct buf name = {0};
    struct reindex_entry entry = {
        .outcome = REINDEX_REFUSED, .root = w->req->root, .path = path, .name = "", .problem = ""};
    int dir = fs_open_beneath(model_fd, id, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_NONE, &why), rc = 0;

    snprintf(path, sizeof path, "%s/%s", model, id);
    if (dir >= 0 && read_one(w, dir, model, id, &c, &why) == 0) {
        w_ckpt_path(&c, &name);
        entry.name = buf_str(&name);
        rc = add_row(w->req->db, &c, &entry.outcome, e);
    } else {
        entry.problem = why.msg;
    }
    fs_close(dir);
    w->count[entry.outcome]++;
    if (rc == 0)
        rc = w->req->on_entry(w->req->arg, &entry, e);
    buf_release(&name);
    return rc;
}

/* Calls fn for every entry that is a UUID. */
static int each_uuid(const struct walk *w, int fd, const char *model,
                     int (*fn)(const struct walk *w, int fd, const char *model, const char *id,
                               struct err *e),
                     struct err *e)
{
    int again = fcntl(fd, F_DUPFD_CLOEXEC, 0), rc = 0;
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    struct dirent *d;

    if (!dir) {
        fs_close(again);
        return err_io(e, "list a directory of checkpoints");
    }
    rewinddir(dir);
    while (rc == 0 && (d = readdir(dir)))
        if (uuid_valid(d->d_name))
            rc = fn(w, fd, model, d->d_name, e);
    closedir(dir);
    return rc;
}

static int visit_model(const struct walk *w, int root_fd, const char *none, const char *model,
                       struct err *e)
{
    int fd = fs_open_beneath(root_fd, model, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_NONE, e), rc;

    (void)none;
    if (fd < 0)
        return -1;
    rc = each_uuid(w, fd, model, visit, e);
    fs_close(fd);
    return rc;
}

int weaver_reindex(const struct weaver_reindex_req *req, int64_t *count, struct err *e)
{
    struct walk w = {.req = req, .count = count};
    struct err why = {0};
    int rc;

    w.root_fd = fs_open_dir(req->root, &why);
    if (w.root_fd < 0) {
        if (why.code == ERR_NOT_FOUND)
            return 0;
        *e = why;
        return -1;
    }
    rc = each_uuid(&w, w.root_fd, "", visit_model, e);
    fs_close(w.root_fd);
    return rc;
}
