/* service/weaver/models.c - the routes of models, which are training runs, and their rows. */
#include "service/weaver/models.h"

#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "db/db.h"
#include "engine/image.h"
#include "model/adapter.h"
#include "service/times.h"
#include "service/weaver/bases.h"
#include "service/weaver/impl.h"
#include "service/weaver/rows.h"
#include "service/weaver/runs.h"
#include "store/catalogue.h"

enum { RANK_DEFAULT = 32, LAST_REQUEST = 17 };
#define SEED_MAX (INT64_C(1) << 53)

/* ---- create: reading the body ---- */

static int read_lora(const json_t *body, struct w_run *run, struct refusal *r)
{
    const json_t *lora = json_object_get(body, "lora_config");
    int64_t rank = RANK_DEFAULT, seed = -1;

    run->shape.attn = run->shape.mlp = run->shape.unembed = true;
    if (lora && !json_is_null(lora) && !json_is_object(lora))
        return w_bad(r, "lora_config must be an object.");
    if (w_int(lora, "rank", 1, ADAPTER_RANK_MAX, &rank, r) < 0 ||
        w_flag(lora, "train_attn", &run->shape.attn, r) < 0 ||
        w_flag(lora, "train_mlp", &run->shape.mlp, r) < 0 ||
        w_flag(lora, "train_unembed", &run->shape.unembed, r) < 0 ||
        w_int(lora, "seed", -SEED_MAX, SEED_MAX, &seed, r) < 0)
        return -1;
    if (!run->shape.attn && !run->shape.mlp && !run->shape.unembed)
        return w_bad(r, "lora_config: at least one of train_attn, train_mlp and train_unembed must "
                        "be true.");
    run->shape.rank = (int)rank;
    if (json_is_number(json_object_get(lora, "seed")))
        run->seed = (uint64_t)seed;
    else if (RAND_bytes((unsigned char *)&run->seed, sizeof run->seed) == 1)
        run->seed &= (uint64_t)SEED_MAX - 1;
    return 0;
}

static int read_body(const json_t *body, struct w_run *run, int64_t *model_seq, struct refusal *r)
{
    const char *mode = "lora", *tier = NULL, *base = NULL;
    int64_t longest = 0;

    if (w_str(body, "base_model", &base, r) < 0 || w_str(body, "training_mode", &mode, r) < 0 ||
        w_str(body, "performance_tier", &tier, r) < 0 ||
        w_int(body, "training_max_sequence_length", 2, INT32_MAX, &longest, r) < 0 ||
        w_int(body, "model_seq_id", 1, INT64_MAX >> 1, model_seq, r) < 0)
        return -1;
    if (!base || !*base || strlen(base) >= sizeof run->base_model)
        return w_bad(r, "base_model must name a model of /supported-models.");
    if (*model_seq == 0)
        return w_bad(r, "model_seq_id must be a whole number of at least 1.");
    if (tier && strcmp(tier, "normal") != 0 && strcmp(tier, "fast") != 0 &&
        strcmp(tier, "flash") != 0)
        return w_bad(r, "performance_tier must be normal, fast or flash.");
    if (strcmp(mode, "lora") != 0 && strcmp(mode, "full_ft") != 0)
        return w_bad(r, "training_mode must be lora or full_ft.");
    if (json_object_get(body, "user_metadata") &&
        !json_is_object(json_object_get(body, "user_metadata")) &&
        !json_is_null(json_object_get(body, "user_metadata")))
        return w_bad(r, "user_metadata must be an object.");
    str_copy(run->base_model, sizeof run->base_model, base);
    run->limits.max_tokens = (int)longest;
    run->shape.full = strcmp(mode, "full_ft") == 0;
    return run->shape.full ? 0 : read_lora(body, run, r);
}

/* ---- rows ---- */

static json_t *lora_object(const struct w_run *run)
{
    if (run->shape.full)
        return json_null();
    return json_pack("{s:i, s:b, s:b, s:b, s:I}", "rank", run->shape.rank, "train_attn",
                     run->shape.attn, "train_mlp", run->shape.mlp, "train_unembed",
                     run->shape.unembed, "seed", (json_int_t)run->seed);
}

static json_t *record_of(const struct w_run *run, const json_t *body, int64_t model_seq,
                         const struct image *base)
{
    json_t *o = json_pack("{s:I, s:o, s:s}", "model_seq_id", (json_int_t)model_seq, "lora_config",
                          lora_object(run), "tokenizer_path", base->files->dir);
    json_t *metadata = json_object_get(body, "user_metadata");

    if (o)
        json_object_set(o, "user_metadata",
                        json_is_object(metadata) ? metadata : json_object_get(body, "none"));
    if (o && !json_is_object(metadata))
        json_object_set_new(o, "user_metadata", json_object());
    return o;
}

static int insert_row(struct weaver *w, const struct w_run *run, const json_t *record,
                      struct err *e)
{
    char *text = w_dump(record);
    int64_t now = clock_wall_ms();
    int rc = text ? 0 : err_nomem(e);

    if (rc == 0)
        rc = db_run(w->db, e,
                    "INSERT INTO weaver_models (id, session_id, owner, base_model, row_id, mode,"
                    " rank, train_attn, train_mlp, train_unembed, seed, max_tokens, status, record,"
                    " created_ms, updated_ms)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'active', ?, ?, ?)",
                    "ttttitiiiiiitii", run->id, run->session_id, run->owner, run->base_model,
                    run->row_id, run->shape.full ? "full_ft" : "lora", (int64_t)run->shape.rank,
                    (int64_t)run->shape.attn, (int64_t)run->shape.mlp, (int64_t)run->shape.unembed,
                    (int64_t)run->seed, (int64_t)run->limits.max_tokens, text, now, now);
    free(text);
    return rc;
}

static void delete_row(struct weaver *w, const struct w_run *run)
{
    struct err e = {0};

    if (db_run(w->db, &e, "DELETE FROM weaver_models WHERE id = ?", "t", run->id) < 0)
        log_ev(LOG_WARNING, "weaver_model", "id=%s cause=\"%s\"", run->id, e.msg);
}

static const char columns[] =
    "id, session_id, owner, base_model, row_id, mode, rank, train_attn, train_mlp, train_unembed,"
    " seed, max_tokens, status, record, last_seq_id, created_ms, updated_ms, request_ms";

static struct w_run *run_of_row(const struct db_stmt *q)
{
    struct w_run *run = calloc(1, sizeof *run);

    if (!run)
        return NULL;
    atomic_init(&run->refs, 1);
    str_copy(run->id, sizeof run->id, db_text(q, 0));
    str_copy(run->session_id, sizeof run->session_id, db_text(q, 1));
    str_copy(run->owner, sizeof run->owner, db_text(q, 2));
    str_copy(run->base_model, sizeof run->base_model, db_text(q, 3));
    run->row_id = db_int(q, 4);
    run->shape = (struct w_shape){.full = strcmp(db_text(q, 5), "full_ft") == 0,
                                  .rank = (int)db_int(q, 6),
                                  .attn = db_int(q, 7) != 0,
                                  .mlp = db_int(q, 8) != 0,
                                  .unembed = db_int(q, 9) != 0};
    run->seed = (uint64_t)db_int(q, 10);
    run->limits.max_tokens = (int)db_int(q, 11);
    return run;
}

static json_t *object_of_row(struct weaver *w, const struct db_stmt *q)
{
    json_t *o = w_parse(db_text(q, 13));
    const char *id = db_text(q, 0), *status = db_text(q, 12);
    int64_t last_seq = 0, request_ms = 0;
    bool live = w_run_seen(w, id, &last_seq, &request_ms);

    json_object_set_new(o, "id", json_string(id));
    json_object_set_new(o, "session_id", json_string(db_text(q, 1)));
    json_object_set_new(o, "owner", json_string(db_text(q, 2)));
    json_object_set_new(o, "base_model", json_string(db_text(q, 3)));
    json_object_set_new(o, "training_mode", json_string(db_text(q, 5)));
    json_object_set_new(o, "status",
                        json_string(live || strcmp(status, "active") != 0 ? status : "lost"));
    json_object_set_new(o, "last_seq_id", json_integer(live ? last_seq : db_int(q, 14)));
    json_object_set_new(o, "created_at", json_time(db_int(q, 15)));
    json_object_set_new(o, "updated_at", json_time(db_int(q, 16)));
    json_object_set_new(o, "last_request_at",
                        json_time(live && request_ms ? request_ms : db_int(q, LAST_REQUEST)));
    return o;
}

/* The row under an id, found by fn; -1 with model_not_found. */
static int with_row(struct weaver *w, const char *id,
                    void (*fn)(struct weaver *w, const struct db_stmt *q, void *arg), void *arg,
                    struct refusal *r)
{
    struct buf sql = {0};
    struct db_stmt q;
    struct err e = {0};
    int rc;

    buf_printf(&sql, "SELECT %s FROM weaver_models WHERE id = ?", columns);
    rc = db_query(&q, w->db, &e, buf_str(&sql), "t", id);
    if (rc == 0)
        rc = db_step(&q, &e);
    if (rc > 0)
        fn(w, &q, arg);
    db_query_end(&q, w->db);
    buf_release(&sql);
    if (rc > 0)
        return 0;
    return rc < 0 ? w_refuse_err(r, &e)
                  : refuse(r, REFUSAL_W_MODEL_NOT_FOUND, "There is no model '%.64s'.", id);
}

/* ---- create ---- */

int weaver_model_create(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_run *run = calloc(1, sizeof *run);
    struct model_row row = {0};
    struct image *base = NULL;
    json_t *record = NULL;
    int64_t model_seq = 0, suffix = 0;
    struct err e = {0};
    int rc = -1;

    if (!run)
        return w_refuse_memory(r);
    atomic_init(&run->refs, 1);
    if (w_session_touch(w, c->key, r) < 0 || read_body(c->body, run, &model_seq, r) < 0 ||
        w_base_find(w, run->base_model, &row, &suffix, r) < 0)
        goto done;
    if (suffix && (run->limits.max_tokens == 0 || suffix < run->limits.max_tokens))
        run->limits.max_tokens = (int)suffix;
    run->row_id = row.id;
    str_copy(run->session_id, sizeof run->session_id, c->key);
    str_copy(run->owner, sizeof run->owner, c->owner);
    if (uuid_new(run->id, &e) < 0) {
        w_refuse_err(r, &e);
        goto done;
    }
    if (!(base = w_base_image(w, &row, r)) || w_run_start(w, run, base, r) < 0)
        goto done;
    record = record_of(run, c->body, model_seq, base);
    if (!record || insert_row(w, run, record, &e) < 0) {
        w_run_end(w, run);
        w_refuse_err(r, &e);
        goto done;
    }
    c->key = run->id;
    rc = weaver_model_get(w, c, r);
    if (rc < 0) { /* who does not know its id could never end it */
        w_run_end(w, run);
        delete_row(w, run);
        goto done;
    }
    log_ev(LOG_INFO, "weaver_model", "id=%s owner=%s base=\"%s\" mode=%s rank=%d", run->id,
           run->owner, run->base_model, run->shape.full ? "full_ft" : "lora", run->shape.rank);

done:
    json_decref(record);
    image_unref(base);
    model_row_release(&row);
    w_run_unref(run);
    return rc;
}

/* ---- read ---- */

static void take_object(struct weaver *w, const struct db_stmt *q, void *arg)
{
    *(json_t **)arg = object_of_row(w, q);
}

int weaver_model_get(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    return with_row(w, c->key, take_object, &c->data, r);
}

int weaver_run_get(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    json_t *checkpoints;
    struct err e = {0};

    if (weaver_model_get(w, c, r) < 0)
        return -1;
    checkpoints = w_ckpt_objects(w, c->key, &e);
    if (!checkpoints)
        return w_refuse_err(r, &e);
    json_object_set_new(c->data, "checkpoints", checkpoints);
    return 0;
}

/* Losses of the passes that trained, oldest first, as far as their operations are kept. */
int weaver_run_losses(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    int64_t limit, offset;
    json_t *items;
    struct db_stmt q;
    struct err e = {0};
    int rc;

    if (w_page(c, 1000, &limit, &offset, r) < 0 || weaver_model_get(w, c, r) < 0)
        return -1;
    json_decref(c->data);
    items = json_array();
    rc =
        db_query(&q, w->ops, &e,
                 "SELECT json_extract(response, '$.metrics.loss') FROM (SELECT rowid AS n, response"
                 " FROM weaver_operations WHERE model_id = ? AND type = 'forward_backward' AND"
                 " status = 'done' ORDER BY rowid DESC LIMIT ? OFFSET ?) ORDER BY n",
                 "tii", c->key, limit, offset);
    while (rc == 0 && (rc = db_step(&q, &e)) > 0) {
        json_array_append_new(items, json_real(strtod(db_text(&q, 0), NULL)));
        rc = 0;
    }
    db_query_end(&q, w->ops);
    c->data = json_pack("{s:o}", "losses", items);
    return rc < 0 ? w_refuse_err(r, &e) : 0;
}

int weaver_model_list(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    int64_t limit, offset, total = 0;
    struct buf sql = {0};
    struct db_stmt q;
    struct err e = {0};
    json_t *items;
    int rc;

    if (w_page(c, 25, &limit, &offset, r) < 0)
        return -1;
    buf_printf(&sql, "SELECT %s FROM weaver_models ORDER BY rowid DESC LIMIT ? OFFSET ?", columns);
    rc = db_query(&q, w->db, &e, buf_str(&sql), "ii", limit, offset);
    items = json_array();
    while (rc == 0 && (rc = db_step(&q, &e)) > 0) {
        json_array_append_new(items, object_of_row(w, &q));
        rc = 0;
    }
    db_query_end(&q, w->db);
    if (rc == 0)
        rc = w_count(w->db, "weaver_models", &total, &e);
    buf_release(&sql);
    if (rc < 0) {
        json_decref(items);
        return w_refuse_err(r, &e);
    }
    c->data = w_list(items, total, limit, offset);
    return 0;
}

/* ---- absent, lost, back ---- */

struct state {
    bool active;
};

static void take_state(struct weaver *w, const struct db_stmt *q, void *arg)
{
    (void)w;
    ((struct state *)arg)->active = strcmp(db_text(q, 12), "active") == 0;
}

int w_model_refuse_absent(struct weaver *w, const char *id, struct refusal *r)
{
    struct state s = {0};
    struct buf last = {0};

    if (with_row(w, id, take_state, &s, r) < 0)
        return -1;
    if (!s.active)
        return refuse(r, REFUSAL_W_MODEL_TERMINATED,
                      "The model %s was terminated; its checkpoints are still there.", id);
    w_ckpt_last(w, id, &last);
    refuse_with(r, REFUSAL_W_MODEL_LOST,
                json_pack("{s:o}", "last_checkpoint", json_text(buf_str(&last))),
                "The weights of model %s were in the memory of a server that has ended: load a "
                "checkpoint into it%s%s.",
                id, last.len ? ", for example " : "", buf_str(&last));
    buf_release(&last);
    return -1;
}

struct revival {
    struct w_run *run;
    bool active;
};

static void take_run(struct weaver *w, const struct db_stmt *q, void *arg)
{
    struct revival *v = arg;

    (void)w;
    v->active = strcmp(db_text(q, 12), "active") == 0;
    v->run = run_of_row(q);
}

/* A terminate that did not see the run yet has written its row by now. */
static int refuse_ended_meanwhile(struct weaver *w, struct w_run *run, struct refusal *r)
{
    struct state s = {0};

    if (with_row(w, run->id, take_state, &s, r) == 0 && s.active)
        return 0;
    w_run_end(w, run);
    refusal_clear(r);
    return w_model_refuse_absent(w, run->id, r);
}

static struct image *base_of(struct weaver *w, struct w_run *run, struct refusal *r)
{
    if (w_base_row(w, &run->row_id, run->base_model, r) < 0)
        return NULL;
    return w_base_image_of(w, run->row_id, r);
}

/* The lock of revivals is held: two would each take the memory and open the same log. */
static struct w_run *bring_back(struct weaver *w, const char *id, struct refusal *r)
{
    struct w_run *live = w_run_peek(w, id);
    struct revival v = {0};
    struct image *base = NULL;

    if (live)
        return live;
    if (with_row(w, id, take_run, &v, r) < 0)
        return NULL;
    if (!v.run)
        w_refuse_memory(r);
    else if (!v.active)
        w_model_refuse_absent(w, id, r);
    else if ((base = base_of(w, v.run, r)) && w_run_start(w, v.run, base, r) == 0 &&
             refuse_ended_meanwhile(w, v.run, r) == 0) {
        image_unref(base);
        return v.run;
    }
    image_unref(base);
    w_run_unref(v.run);
    return NULL;
}

struct w_run *w_run_revive(struct weaver *w, const char *id, struct refusal *r)
{
    struct w_run *run = w_run_peek(w, id);

    if (run)
        return run;
    pthread_mutex_lock(&w->revival);
    run = bring_back(w, id, r);
    pthread_mutex_unlock(&w->revival);
    return run;
}

/* ---- terminate ---- */

static int check_instances(const json_t *list, struct refusal *r)
{
    const json_t *v;
    size_t i;

    if (!list || json_is_null(list))
        return 0;
    json_array_foreach ((json_t *)list, i, v) {
        const char *name = json_string_value(v);

        if (!name || (strcmp(name, "trainer") != 0 && strcmp(name, "inference") != 0))
            return w_bad(r, "instance_types may name trainer and inference.");
    }
    return json_is_array(list) ? 0 : w_bad(r, "instance_types must be a list.");
}

static bool names(const json_t *list, const char *what)
{
    const json_t *v;
    size_t i;

    if (!json_is_array(list))
        return true;
    json_array_foreach ((json_t *)list, i, v) {
        if (strcmp(json_string_value(v), what) == 0)
            return true;
    }
    return false;
}

int weaver_model_terminate(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    const json_t *list = json_object_get(c->body, "instance_types");
    bool trainer;
    struct state s = {0};
    struct w_run *run;
    struct err e = {0};
    int64_t last_seq = 0, request_ms;

    if (check_instances(list, r) < 0 || with_row(w, c->key, take_state, &s, r) < 0)
        return -1;
    trainer = names(list, "trainer");
    if (trainer) {
        int64_t now = clock_wall_ms();

        w_run_seen(w, c->key, &last_seq, &request_ms);
        if (db_run(w->db, &e,
                   "UPDATE weaver_models SET status = 'terminated', updated_ms = ?, last_seq_id ="
                   " max(last_seq_id, ?), request_ms = ? WHERE id = ?",
                   "iiit", now, last_seq, now, c->key) < 0)
            return w_refuse_err(r, &e);
        run = w_run_peek(w, c->key); /* a load may have brought it back meanwhile */
        if (run)
            w_run_end(w, run);
        w_run_unref(run);
    }
    c->data = json_object();
    if (trainer)
        json_object_set_new(c->data, "trainer", json_pack("{s:s}", "status", "terminated"));
    if (names(list, "inference"))
        json_object_set_new(c->data, "inference", json_pack("{s:s}", "status", "terminated"));
    return 0;
}
