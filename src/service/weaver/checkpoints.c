/* service/weaver/checkpoints.c - the routes that list checkpoints, change their life, remove them.
 */
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "db/db.h"
#include "service/weaver/artifact_rows.h"
#include "service/weaver/ckpt.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/impl.h"

static int check_model(struct weaver *w, const char *id, struct refusal *r)
{
    struct db_stmt q;
    struct err e = {0};
    int rc = db_query(&q, w->db, &e, "SELECT 1 FROM weaver_models WHERE id = ?", "t", id);

    if (rc == 0)
        rc = db_step(&q, &e);
    db_query_end(&q, w->db);
    if (rc > 0)
        return 0;
    return rc < 0 ? w_refuse_err(r, &e)
                  : refuse(r, REFUSAL_W_MODEL_NOT_FOUND, "There is no model '%.64s'.", id);
}

int weaver_checkpoint_list(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    json_t *items;
    struct err e = {0};

    if (check_model(w, c->key, r) < 0)
        return -1;
    items = w_ckpt_objects(w, c->key, &e);
    if (!items)
        return w_refuse_err(r, &e);
    c->data = json_pack("{s:o}", "items", items);
    return 0;
}

struct page {
    json_t *items;
    int64_t at, limit, offset;
};

static int add_to_page(void *arg, const struct w_ckpt *k)
{
    struct page *p = arg;

    if (p->at >= p->offset && p->at < p->offset + p->limit)
        json_array_append_new(p->items, ckpt_object(k));
    p->at++;
    return 0;
}

int weaver_checkpoint_all(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct page p = {0};
    struct err e = {0};

    if (w_page(c, 25, &p.limit, &p.offset, r) < 0)
        return -1;
    p.items = json_array();
    if (w_ckpt_each(w,
                    "(?1 IS NULL OR model_id = ?1) AND status IN ('pending', 'completed') AND"
                    " (expires_ms IS NULL OR expires_ms > ?3) ORDER BY created_ms DESC, rowid DESC",
                    w_query(c, "model_id"), add_to_page, &p, &e) < 0) {
        json_decref(p.items);
        return w_refuse_err(r, &e);
    }
    c->data = w_list(p.items, p.at, p.limit, p.offset);
    return 0;
}

int weaver_checkpoint_get(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_ckpt k;

    if (w_ckpt_find(w, c->key, &k, r) < 0)
        return -1;
    c->data = ckpt_object(&k);
    return 0;
}

/* ---- lifetime ---- */

/* The file first: it is the authority for deletion. What the index does not follow is taken back.
 */
static int set_expiry(struct weaver *w, const struct w_ckpt *before, const struct w_ckpt *k,
                      struct refusal *r)
{
    struct err e = {0}, again = {0};

    if (ckpt_files_set_expiry(w, k, &e) < 0)
        return w_refuse_err(r, &e);
    if (w_ckpt_follow(w, k, &e) == 0)
        return 0;
    if (ckpt_files_set_expiry(w, before, &again) < 0 || w_ckpt_follow(w, before, &again) < 0)
        log_ev(LOG_WARNING, "weaver_checkpoint", "id=%s cause=\"%s\"", k->id, again.msg);
    return w_refuse_err(r, &e);
}

int weaver_checkpoint_ttl(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    const char *path = NULL;
    struct w_ckpt k, before;
    int rc;

    if (w_str(c->body, "path", &path, r) < 0)
        return -1;
    if (!path || !*path)
        return w_bad(r, "path must be the path of a checkpoint.");
    if (!json_object_get(c->body, "ttl_seconds"))
        return refuse(r, REFUSAL_W_INVALID_TTL, "ttl_seconds is missing: a number, or null.");
    if (check_model(w, c->key, r) < 0 || w_ckpt_find(w, path, &k, r) < 0)
        return -1;
    if (strcmp(k.model_id, c->key) != 0)
        return refuse(r, REFUSAL_W_CHECKPOINT_NOT_FOUND, "This model has no checkpoint '%.300s'.",
                      path);
    before = k;
    if (ckpt_read_ttl(c->body, &k.ttl_s, r) < 0 || w_ckpt_pin(w, k.id, r) < 0)
        return -1;
    k.expires_ms = k.ttl_s ? clock_wall_ms() + 1000 * k.ttl_s : 0;
    rc = set_expiry(w, &before, &k, r);
    w_ckpt_unpin(w, k.id);
    if (rc == 0)
        c->data = ckpt_object(&k);
    return rc;
}

int weaver_checkpoint_delete(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_ckpt k;
    struct err e = {0};
    int rc;

    if (w_ckpt_find(w, c->key, &k, r) < 0)
        return -1;
    if (!w_ckpt_ending(w, k.id))
        return refuse(r, REFUSAL_W_CHECKPOINT_IN_USE,
                      "The checkpoint is being read by an operation: try again when it has ended.");
    rc = w_ckpt_delete(w, &k, &e) < 0 ? w_refuse_err(r, &e) : 0;
    w_ckpt_unpin(w, k.id);
    return rc;
}
