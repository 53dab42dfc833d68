#include "service/weaver/ckpt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/nomem.h"
#include "base/str.h"
#include "db/db.h"
#include "service/times.h"
#include "service/weaver/artifact_rows.h"
#include "service/weaver/bases.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/impl.h"
#include "service/weaver/operations.h"
#include "service/weaver/rows.h"

/* A checkpoint that something reads, or that is being removed. */
struct w_pin {
    char id[UUID_TEXT];
    int uses;
    bool ending; /* uses is 1: whoever removes it */
    struct w_pin *next;
};

static const char columns[] =
    "id, model_id, operation_id, slug, name, type, status, owner, base_model, row_id, mode, rank,"
    " train_attn, train_mlp, train_unembed, step, has_optimizer, ttl_s, expires_ms, created_ms";

static void read_row(const struct db_stmt *q, void *row)
{
    struct w_ckpt *c = row;
    int type = ckpt_type_by_name(db_text(q, 5));

    *c = (struct w_ckpt){.type = type < 0 ? CKPT_WEIGHT : (enum ckpt_type)type,
                         .has_name = !db_is_null(q, 4),
                         .row_id = db_int(q, 9),
                         .shape = {.full = strcmp(db_text(q, 10), "full_ft") == 0,
                                   .rank = (int)db_int(q, 11),
                                   .attn = db_int(q, 12) != 0,
                                   .mlp = db_int(q, 13) != 0,
                                   .unembed = db_int(q, 14) != 0},
                         .step = db_int(q, 15),
                         .has_optimizer = db_int(q, 16) != 0,
                         .ttl_s = db_int(q, 17),
                         .expires_ms = db_int(q, 18),
                         .created_ms = db_int(q, 19)};
    db_copy_text(q, 0, c->id, sizeof c->id);
    db_copy_text(q, 1, c->model_id, sizeof c->model_id);
    db_copy_text(q, 2, c->operation_id, sizeof c->operation_id);
    db_copy_text(q, 3, c->slug, sizeof c->slug);
    db_copy_text(q, 4, c->name, sizeof c->name);
    db_copy_text(q, 6, c->status, sizeof c->status);
    db_copy_text(q, 7, c->owner, sizeof c->owner);
    db_copy_text(q, 8, c->base_model, sizeof c->base_model);
}

static const struct w_table ckpts = {"weaver_checkpoints", columns, sizeof(struct w_ckpt), read_row,
                                     NULL};

static int find_row(struct weaver *w, const char *where, const char *a, const char *b,
                    struct w_ckpt *out, struct err *e)
{
    return w_row_first(w->db, &ckpts, where, a, b, out, e);
}

int w_ckpt_each(struct weaver *w, const char *where, const char *arg,
                int (*fn)(void *arg, const struct w_ckpt *c), void *fn_arg, struct err *e)
{
    int n, rc;
    struct w_ckpt *all = w_rows_all(w->db, &ckpts, where, arg, &n, e);

    rc = n < 0 ? -1 : 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = fn(fn_arg, &all[i]);
    free(all);
    return rc;
}

/* ---- insert ---- */

/* The first of slug, slug-2, slug-3, ... that no live checkpoint of the model has. */
static int free_slug(struct db *d, struct w_ckpt *c, struct err *e)
{
    char core[CKPT_SLUG_MAX];
    struct db_stmt q = {0};
    int rc = 1;

    str_copy(core, sizeof core, c->slug);
    for (int i = 2; rc > 0; i++) {
        rc = db_prepare(&q, d,
                        "SELECT 1 FROM weaver_checkpoints WHERE model_id = ? AND slug = ?"
                        " AND status IN ('pending', 'completed')"
                        " AND (expires_ms IS NULL OR expires_ms > ?)",
                        e);
        if (rc == 0) {
            db_bind_text(&q, c->model_id);
            db_bind_text(&q, c->slug);
            db_bind_int(&q, clock_wall_ms());
            rc = db_step(&q, e);
        }
        db_finish(&q);
        if (rc > 0)
            snprintf(c->slug, sizeof c->slug, "%.140s-%d", core, i);
    }
    return rc;
}

static int next_counter(struct db *d, const char *model_id, int64_t *out, struct err *e)
{
    struct db_stmt q = {0};
    int rc = db_prepare(&q, d,
                        "UPDATE weaver_models SET slugs = slugs + 1 WHERE id = ?"
                        " RETURNING slugs",
                        e);

    if (rc == 0) {
        db_bind_text(&q, model_id);
        while ((rc = db_step(&q, e)) > 0)
            *out = db_int(&q, 0);
    }
    db_finish(&q);
    return rc;
}

int w_ckpt_insert_row(struct db *d, const struct w_ckpt *c, struct err *e)
{
    struct db_stmt q = {0};
    const char *texts[] = {c->id,
                           c->model_id,
                           *c->operation_id ? c->operation_id : NULL,
                           c->slug,
                           c->has_name ? c->name : NULL,
                           ckpt_type_name(c->type),
                           c->status,
                           c->owner,
                           c->base_model};
    int rc = db_prepare(&q, d,
                        "INSERT INTO weaver_checkpoints (id, model_id, operation_id, slug, name,"
                        " type, status, owner, base_model, row_id, mode, rank, train_attn,"
                        " train_mlp, train_unembed, step, has_optimizer, created_ms, ttl_s,"
                        " expires_ms)"
                        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        e);

    if (rc == 0) {
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            db_bind_text(&q, texts[i]);
        db_bind_int(&q, c->row_id);
        db_bind_text(&q, c->shape.full ? "full_ft" : "lora");
        db_bind_int(&q, c->shape.rank);
        db_bind_int(&q, c->shape.attn);
        db_bind_int(&q, c->shape.mlp);
        db_bind_int(&q, c->shape.unembed);
        db_bind_int(&q, c->step);
        db_bind_int(&q, c->has_optimizer);
        db_bind_int(&q, c->created_ms);
        if (c->ttl_s)
            db_bind_int(&q, c->ttl_s);
        else
            db_bind_text(&q, NULL);
        if (c->expires_ms)
            db_bind_int(&q, c->expires_ms);
        else
            db_bind_text(&q, NULL);
        rc = db_step(&q, e);
    }
    db_finish(&q);
    return rc < 0 ? -1 : 0;
}

int w_ckpt_insert(struct weaver *w, struct w_ckpt *c, bool exported, struct refusal *r)
{
    struct err e = {0};
    int64_t counter = 0;
    int rc;

    snprintf(c->status, sizeof c->status, "pending");
    c->created_ms = clock_wall_ms();
    if (uuid_new(c->id, &e) < 0 || db_begin(w->db, &e) < 0)
        return w_refuse_err(r, &e);
    rc = next_counter(w->db, c->model_id, &counter, &e);
    if (rc == 0) {
        ckpt_slug(c->has_name ? c->name : NULL, exported, counter, c->slug);
        rc = free_slug(w->db, c, &e) < 0 || w_ckpt_insert_row(w->db, c, &e) < 0 ? -1 : 0;
    }
    return db_end(w->db, rc, &e) < 0 ? w_refuse_err(r, &e) : 0;
}

int w_ckpt_complete(struct weaver *w, struct w_ckpt *c, struct err *e)
{
    snprintf(c->status, sizeof c->status, "completed");
    return db_run(w->db, e,
                  "UPDATE weaver_checkpoints SET status = 'completed', created_ms = ?1, step = ?2,"
                  " expires_ms = nullif(?3, 0) WHERE id = ?4",
                  "iiit", c->created_ms, c->step, c->expires_ms, c->id);
}

void w_ckpt_drop(struct weaver *w, const char *id)
{
    struct err e = {0};

    if (db_run(w->db, &e, "DELETE FROM weaver_checkpoints WHERE id = ? AND status = 'pending'", "t",
               id) < 0)
        log_ev(LOG_ERROR, "weaver_checkpoint", "id=%s cause=\"%s\"", id, e.msg);
}

int w_ckpt_delete(struct weaver *w, const struct w_ckpt *c, struct err *e)
{
    if (db_run(w->db, e,
               "UPDATE weaver_checkpoints SET status = 'deleted', deleted_ms = ? WHERE id = ?",
               "it", clock_wall_ms(), c->id) < 0)
        return -1;
    ckpt_files_clear(w, c); /* for those who ask it is gone */
    return 0;
}

int w_ckpt_follow(struct weaver *w, const struct w_ckpt *c, struct err *e)
{
    if (db_run(w->db, e,
               "UPDATE weaver_checkpoints SET ttl_s = nullif(?, 0), expires_ms = nullif(?, 0)"
               " WHERE id = ?",
               "iit", c->ttl_s, c->expires_ms, c->id) < 0)
        return -1;
    return w_artifacts_follow(w, c->id, c->expires_ms, e);
}

/* ---- find ---- */

bool ckpt_expired(const struct w_ckpt *c)
{
    return c->expires_ms && clock_wall_ms() >= c->expires_ms;
}

int w_ckpt_find(struct weaver *w, const char *ref, struct w_ckpt *out, struct refusal *r)
{
    char model[65], slug[CKPT_SLUG_MAX];
    struct err e = {0};
    int rc;

    if (ckpt_path_parse(ref, model, slug))
        rc = find_row(w,
                      "model_id = ?1 AND slug = ?2 ORDER BY status = 'deleted' OR"
                      " coalesce(expires_ms <= ?3, 0), rowid DESC",
                      model, slug, out, &e);
    else
        rc = find_row(w, "id = ?1", ref, NULL, out, &e);
    if (rc < 0)
        return w_refuse_err(r, &e);
    if (rc == 0 || strcmp(out->status, "error") == 0)
        return refuse(r, REFUSAL_W_CHECKPOINT_NOT_FOUND, "There is no checkpoint '%.300s'.", ref);
    if (strcmp(out->status, "deleted") == 0 || ckpt_expired(out))
        return refuse(r, REFUSAL_W_CHECKPOINT_EXPIRED, "The checkpoint '%.300s' has expired.", ref);
    if (strcmp(out->status, "completed") != 0)
        return refuse(r, REFUSAL_W_CHECKPOINT_NOT_READY,
                      "The checkpoint '%.300s' is still being saved.", ref);
    return w_base_row(w, &out->row_id, out->base_model, r);
}

void w_ckpt_last(struct weaver *w, const char *model_id, struct buf *out)
{
    struct err ignored = {0};
    struct w_ckpt c;

    if (find_row(w,
                 "model_id = ?1 AND status = 'completed' AND (expires_ms IS NULL OR"
                 " expires_ms > ?3) ORDER BY created_ms DESC, rowid DESC",
                 model_id, NULL, &c, &ignored) > 0)
        w_ckpt_path(&c, out);
}

/* ---- as answered ---- */

static json_t *flag_or_null(const struct w_ckpt *c, bool flag)
{
    return c->shape.full ? json_null() : json_boolean(flag);
}

json_t *ckpt_object(const struct w_ckpt *c)
{
    const char *type = ckpt_type_name(c->type);
    struct buf path = {0};
    json_t *o;

    w_ckpt_path(c, &path);
    o = json_pack("{s:s, s:s, s:o, s:s, s:s, s:s, s:o, s:o, s:o, s:s, s:s, s:I}", "id", c->id,
                  "path", buf_str(&path), "name", c->has_name ? json_string(c->name) : json_null(),
                  "checkpoint_type", type, "type", type, "status", c->status, "train_unembed",
                  flag_or_null(c, c->shape.unembed), "train_mlp", flag_or_null(c, c->shape.mlp),
                  "train_attn", flag_or_null(c, c->shape.attn), "model_id", c->model_id,
                  "base_model", c->base_model, "step", (json_int_t)c->step);
    buf_release(&path);
    if (o) {
        json_object_set_new(o, "ttl_seconds", c->ttl_s ? json_integer(c->ttl_s) : json_null());
        json_object_set_new(o, "created_at", json_time(c->created_ms));
        json_object_set_new(o, "expires_at", json_time(c->expires_ms));
        json_object_set_new(o, "owner", json_string(c->owner));
    }
    return o;
}

json_t *ckpt_result(const struct w_ckpt *c, bool exported)
{
    struct buf path = {0};
    json_t *o;

    if (!exported)
        return ckpt_object(c);
    w_ckpt_path(c, &path);
    o = json_pack("{s:s, s:o}", "model_path", buf_str(&path), "checkpoint", ckpt_object(c));
    buf_release(&path);
    return o;
}

static int add_object(void *arg, const struct w_ckpt *c)
{
    json_array_append_new(arg, ckpt_object(c));
    return 0;
}

json_t *w_ckpt_objects(struct weaver *w, const char *model_id, struct err *e)
{
    json_t *items = json_array();

    if (w_ckpt_each(w,
                    "model_id = ?1 AND status IN ('pending', 'completed') AND"
                    " (expires_ms IS NULL OR expires_ms > ?3) ORDER BY created_ms, rowid",
                    model_id, add_object, items, e) == 0)
        return items;
    json_decref(items);
    return NULL;
}

/* ---- pins ---- */

static struct w_pin **find_pin(struct weaver *w, const char *id)
{
    struct w_pin **at = &w->pins;

    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    return at;
}

/* One use more; `ending` must be the only one, and bears no other beside it. */
static int add_use(struct weaver *w, const char *id, bool ending, bool *taken)
{
    struct w_pin *fresh = nomem_malloc(sizeof *fresh), **at; /* noted: not to be told as a use */

    if (!fresh)
        return -1;
    *fresh = (struct w_pin){0};
    pthread_mutex_lock(&w->lock);
    at = find_pin(w, id);
    *taken = *at && (ending || (*at)->ending);
    if (!*at) {
        str_copy(fresh->id, sizeof fresh->id, id);
        fresh->ending = ending;
        *at = fresh;
        fresh = NULL;
    }
    if (!*taken)
        (*at)->uses++;
    pthread_mutex_unlock(&w->lock);
    free(fresh);
    return 0;
}

static int refuse_expired(const char *ref, struct refusal *r)
{
    return refuse(r, REFUSAL_W_CHECKPOINT_EXPIRED, "The checkpoint '%.300s' has expired.", ref);
}

/* Its row is looked at again: it may have been removed between the look and the pin. */
static int check_there(struct weaver *w, const char *id, struct refusal *r)
{
    struct err e = {0};
    struct w_ckpt c;
    int rc = find_row(w, "id = ?1 AND status = 'completed'", id, NULL, &c, &e);

    return rc < 0 ? w_refuse_err(r, &e) : rc == 0 ? refuse_expired(id, r) : 0;
}

int w_ckpt_pin(struct weaver *w, const char *id, struct refusal *r)
{
    bool taken = false;

    if (add_use(w, id, false, &taken) < 0)
        return w_refuse_memory(r);
    if (taken)
        return refuse_expired(id, r);
    if (check_there(w, id, r) == 0)
        return 0;
    w_ckpt_unpin(w, id);
    return -1;
}

bool w_ckpt_ending(struct weaver *w, const char *id)
{
    bool taken = false;

    return add_use(w, id, true, &taken) == 0 && !taken;
}

void w_ckpt_unpin(struct weaver *w, const char *id)
{
    struct w_pin *gone = NULL, **at;

    pthread_mutex_lock(&w->lock);
    at = find_pin(w, id);
    if (*at && --(*at)->uses == 0) {
        gone = *at;
        *at = gone->next;
    }
    pthread_mutex_unlock(&w->lock);
    free(gone);
}

/* ---- the end of their time ---- */

static void remove_expired(struct weaver *w, const struct w_ckpt *c)
{
    struct err e = {0};

    if (w_ckpt_delete(w, c, &e) < 0)
        log_ev(LOG_WARNING, "weaver_checkpoint_expired", "id=%s cause=\"%s\"", c->id, e.msg);
    else
        log_ev(LOG_INFO, "weaver_checkpoint_expired", "id=%s", c->id);
}

/* A change of expiry.json that the row missed: the process ended between the two. */
static int bury(void *arg, const struct w_ckpt *c)
{
    struct weaver *w = arg;
    struct w_ckpt now = *c;
    struct err e = {0};

    if (!w_ckpt_ending(w, c->id))
        return 0;
    if (ckpt_files_expired(w, &now, &e))
        remove_expired(w, c);
    else if (now.expires_ms != c->expires_ms && w_ckpt_follow(w, &now, &e) < 0)
        log_ev(LOG_WARNING, "weaver_checkpoint", "id=%s cause=\"%s\"", c->id, e.msg);
    w_ckpt_unpin(w, c->id);
    return 0;
}

static int forget_tombstones(struct weaver *w, struct err *e)
{
    return db_run(w->db, e,
                  "DELETE FROM weaver_checkpoints WHERE status = 'deleted' AND deleted_ms < ?", "i",
                  clock_wall_ms() - CKPT_TOMBSTONE_MS);
}

void w_ckpts_sweep(struct weaver *w)
{
    struct err e = {0};

    if (w_ckpt_each(w, "expires_ms <= ?3 AND status = 'completed'", NULL, bury, w, &e) < 0 ||
        forget_tombstones(w, &e) < 0)
        log_ev(LOG_WARNING, "weaver_sweep", "cause=\"%s\"", e.msg);
}

/* What the operation that saved it answers: an export names the path apart. NULL: nothing, as the
 * checkpoint was only half of it. */
static json_t *result_of(struct weaver *w, const struct w_ckpt *c)
{
    struct db_stmt q;
    struct err ignored = {0};
    bool exported = false, half = false;

    if (db_query(&q, w->ops, &ignored, "SELECT type FROM weaver_operations WHERE id = ?", "t",
                 c->operation_id) == 0 &&
        db_step(&q, &ignored) > 0) {
        exported = strcmp(db_text(&q, 0), "export_sampler") == 0;
        half = strcmp(db_text(&q, 0), "export_hf") == 0;
    }
    db_query_end(&q, w->ops);
    return half ? NULL : ckpt_result(c, exported);
}

/* The checkpoint is there, so its operation is done. */
static int finish_operation(void *arg, const struct w_ckpt *c)
{
    struct weaver *w = arg;
    json_t *object = result_of(w, c);
    char *text = object ? w_dump(object) : NULL;
    struct err e = {0};

    if (text && w_ops_finish_row(w, c->operation_id, text, &e) < 0)
        log_ev(LOG_WARNING, "weaver_checkpoint", "id=%s cause=\"%s\"", c->id, e.msg);
    json_decref(object);
    free(text);
    return 0;
}

static int settle(void *arg, const struct w_ckpt *c)
{
    struct weaver *w = arg;
    struct w_ckpt found = *c;
    struct err e = {0};

    if (ckpt_files_settle(w, &found, &e) < 0) {
        log_ev(LOG_INFO, "weaver_checkpoint_unfinished", "id=%s cause=\"%s\"", c->id, e.msg);
        w_ckpt_drop(w, c->id);
        return 0;
    }
    if (w_ckpt_complete(w, &found, &e) < 0) {
        log_ev(LOG_ERROR, "weaver_checkpoint", "id=%s cause=\"%s\"", c->id, e.msg);
        return 0;
    }
    log_ev(LOG_INFO, "weaver_checkpoint_finished", "id=%s", c->id);
    return finish_operation(w, &found);
}

/* Its row was ended, and the process before the files were gone. */
static int remove_left(void *arg, const struct w_ckpt *c)
{
    ckpt_files_clear(arg, c);
    return 0;
}

int w_ckpts_restart(struct weaver *w, struct err *e)
{
    if (w_ckpt_each(w, "status = 'deleted'", NULL, remove_left, w, e) < 0 ||
        forget_tombstones(w, e) < 0 || w_ckpt_each(w, "status = 'pending'", NULL, settle, w, e) < 0)
        return -1;
    return w_ckpt_each(w,
                       "status = 'completed' AND operation_id IN"
                       " (SELECT id FROM weaver_operations WHERE status = 'pending')",
                       NULL, finish_operation, w, e);
}
