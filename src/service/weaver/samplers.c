#include "service/weaver/samplers.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/str.h"
#include "db/db.h"
#include "engine/image.h"
#include "model/adapter.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weaver/impl.h"

/* ---- life ---- */

void w_sampler_unref(struct w_sampler *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    image_unref(s->image);
    adapter_unref(s->adapter);
    free(s);
}

static struct w_sampler *new_sampler(struct refusal *r)
{
    struct w_sampler *s = calloc(1, sizeof *s);

    if (s)
        atomic_init(&s->refs, 1);
    else
        w_refuse_memory(r);
    return s;
}

static struct w_sampler **find(struct weaver *w, const char *id)
{
    struct w_sampler **at = &w->samplers;

    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    return at;
}

static void keep(struct weaver *w, struct w_sampler *s)
{
    pthread_mutex_lock(&w->lock);
    s->used_ns = clock_mono_ns();
    if (!*find(w, s->id)) { /* two may have brought it back at once */
        atomic_fetch_add(&s->refs, 1);
        s->next = w->samplers;
        w->samplers = s;
    }
    pthread_mutex_unlock(&w->lock);
}

static struct w_sampler *peek(struct weaver *w, const char *id)
{
    struct w_sampler *s;

    pthread_mutex_lock(&w->lock);
    s = *find(w, id);
    if (s) {
        atomic_fetch_add(&s->refs, 1);
        s->used_ns = clock_mono_ns();
    }
    pthread_mutex_unlock(&w->lock);
    return s;
}

/* Takes it off the list; the list's reference is the caller's then. */
static struct w_sampler *unlink_one(struct w_sampler **at)
{
    struct w_sampler *s = *at;

    *at = s->next;
    s->next = NULL;
    return s;
}

static int take_weights(struct weaver *w, struct w_sampler *s, const char *path, struct refusal *r)
{
    return sampler_find(w, s, path, r) < 0 ? -1 : sampler_read(w, s, r);
}

/* Its id is no UUID, so no session can be taken for it. */
struct w_sampler *w_sampler_of_path(struct weaver *w, const char *path, struct refusal *r)
{
    struct w_sampler *s;
    struct w_ckpt c;

    if (w_ckpt_find(w, path, &c, r) < 0)
        return NULL;
    c.id[8] = '+';
    if ((s = peek(w, c.id)))
        return s;
    s = new_sampler(r);
    if (s && take_weights(w, s, path, r) == 0) {
        str_copy(s->id, sizeof s->id, c.id);
        keep(w, s);
        return s;
    }
    w_sampler_unref(s);
    return NULL;
}

/* ---- from a row ---- */

static struct w_sampler *read_row(struct weaver *w, const char *id, struct refusal *r)
{
    struct w_sampler *s = new_sampler(r);
    struct db_stmt q;
    struct err e = {0};
    int rc;

    if (!s)
        return NULL;
    rc = db_query(&q, w->db, &e,
                  "SELECT session_id, owner, base_model, model_path, model_id, created_ms,"
                  " checkpoint_id, row_id FROM weaver_samplers WHERE id = ?",
                  "t", id);
    if (rc == 0)
        rc = db_step(&q, &e);
    if (rc > 0) {
        str_copy(s->id, sizeof s->id, id);
        str_copy(s->session_id, sizeof s->session_id, db_text(&q, 0));
        str_copy(s->owner, sizeof s->owner, db_text(&q, 1));
        str_copy(s->base_model, sizeof s->base_model, db_text(&q, 2));
        db_copy_text(&q, 3, s->model_path, sizeof s->model_path);
        db_copy_text(&q, 4, s->asked_model, sizeof s->asked_model);
        s->created_ms = db_int(&q, 5);
        db_copy_text(&q, 6, s->checkpoint_id, sizeof s->checkpoint_id);
        s->row_id = db_int(&q, 7);
    }
    db_query_end(&q, w->db);
    if (rc > 0)
        return s;
    free(s);
    if (rc < 0)
        w_refuse_err(r, &e);
    else
        refuse(r, REFUSAL_W_SAMPLING_SESSION_NOT_FOUND, "There is no sampling session '%.64s'.",
               id);
    return NULL;
}

struct w_sampler *w_sampler_take(struct weaver *w, const char *id, struct refusal *r)
{
    struct w_sampler *s = peek(w, id);
    char path[sizeof s->model_path];

    if (s)
        return s;
    s = read_row(w, id, r);
    if (!s)
        return NULL;
    memcpy(path, s->model_path, sizeof path);
    if (take_weights(w, s, path, r) == 0 && sampler_keep(w, s, r) == 0)
        return s;
    w_sampler_unref(s);
    return NULL;
}

/* ---- routes ---- */

json_t *sampler_object(const struct w_sampler *s)
{
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:s, s:s, s:s, s:o}", "id", s->id,
                     "session_id", s->session_id, "base_model", s->base_model, "model_path",
                     json_text(s->model_path), "model_id",
                     json_text(*s->asked_model ? s->asked_model : s->model_id), "checkpoint_id",
                     json_text(s->checkpoint_id), "tokenizer_path", s->tokenizer_path, "owner",
                     s->owner, "status", "active", "created_at", json_time(s->created_ms));
}

static int insert_row(struct weaver *w, const struct w_sampler *s, struct err *e)
{
    return db_run(w->db, e,
                  "INSERT INTO weaver_samplers VALUES (?, ?, ?, ?, nullif(?, ''), nullif(?, ''),"
                  " nullif(?, ''), ?, ?)",
                  "tttttttii", s->id, s->session_id, s->owner, s->base_model, s->model_path,
                  s->asked_model, s->checkpoint_id, s->row_id, s->created_ms);
}

static int read_body(const json_t *body, struct w_sampler *s, const char **path, struct refusal *r)
{
    const char *base = NULL, *model = NULL;
    int64_t seq = 0;

    if (w_str(body, "base_model", &base, r) < 0 || w_str(body, "model_path", path, r) < 0 ||
        w_str(body, "model_id", &model, r) < 0 ||
        w_int(body, "sampling_session_seq_id", 1, INT64_MAX >> 1, &seq, r) < 0)
        return -1;
    if ((!*path || !**path) && (!base || !*base))
        return w_bad(r, "A sampling session needs a model_path or a base_model.");
    if (base && strlen(base) >= sizeof s->base_model)
        return w_bad(r, "base_model is too long.");
    str_copy(s->base_model, sizeof s->base_model, base ? base : "");
    str_copy(s->asked_model, sizeof s->asked_model, model ? model : "");
    return 0;
}

int weaver_sampler_create(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_sampler *s = new_sampler(r);
    const char *path = NULL;
    struct err e = {0};
    bool at_hand;
    int rc = -1;

    if (!s)
        return -1;
    if (w_session_touch(w, c->key, r) < 0 || read_body(c->body, s, &path, r) < 0 ||
        sampler_find(w, s, path, r) < 0)
        goto done;
    at_hand = sampler_at_hand(w, s);
    if (at_hand && sampler_read(w, s, r) < 0)
        goto done;
    str_copy(s->session_id, sizeof s->session_id, c->key);
    str_copy(s->owner, sizeof s->owner, c->owner);
    s->created_ms = clock_wall_ms();
    if (uuid_new(s->id, &e) < 0 || insert_row(w, s, &e) < 0) {
        w_refuse_err(r, &e);
        goto done;
    }
    if (!at_hand) {
        rc = sampler_sync(w, s, c, r);
        goto done;
    }
    keep(w, s);
    c->data = sampler_object(s);
    rc = 0;

done:
    w_sampler_unref(s);
    return rc;
}

int weaver_sampler_get(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_sampler *s = peek(w, c->key);

    if (!s && (s = read_row(w, c->key, r)))
        sampler_fill(w, s);
    if (!s)
        return -1;
    c->data = sampler_object(s);
    w_sampler_unref(s);
    return 0;
}

static void forget(struct weaver *w, const char *id)
{
    struct w_sampler *held = NULL, **at;

    pthread_mutex_lock(&w->lock);
    at = find(w, id);
    if (*at)
        held = unlink_one(at);
    pthread_mutex_unlock(&w->lock);
    w_sampler_unref(held);
}

int sampler_delete_row(struct weaver *w, const char *id, struct err *e)
{
    return db_run(w->db, e, "DELETE FROM weaver_samplers WHERE id = ?", "t", id);
}

int weaver_sampler_delete(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_sampler *s = peek(w, c->key);
    struct err e = {0};

    if (!s)
        s = read_row(w, c->key, r);
    if (!s)
        return -1;
    w_sampler_unref(s);
    if (sampler_delete_row(w, c->key, &e) < 0)
        return w_refuse_err(r, &e);
    forget(w, c->key);
    return 0;
}

int sampler_keep(struct weaver *w, struct w_sampler *s, struct refusal *r)
{
    struct w_sampler *row;

    keep(w, s);
    row = read_row(w, s->id, r); /* after: whoever deletes it from now on finds it on the list */
    if (!row)
        forget(w, s->id);
    w_sampler_unref(row);
    return row ? 0 : -1;
}

/* ---- letting go ---- */

static bool can_come_back(struct weaver *w, const struct w_sampler *s)
{
    struct refusal r = {0};
    struct w_ckpt c;
    bool ok = !*s->checkpoint_id || w_ckpt_find(w, s->checkpoint_id, &c, &r) == 0;

    refusal_clear(&r);
    return ok;
}

/* The first idle one after `after` (NULL: of all), counted. */
static struct w_sampler *next_idle(struct weaver *w, int64_t before_ns,
                                   const struct w_sampler *after)
{
    struct w_sampler *s;

    pthread_mutex_lock(&w->lock);
    s = after ? after->next : w->samplers;
    while (s && (s->used_ns > before_ns || atomic_load(&s->refs) > 1))
        s = s->next;
    if (s)
        atomic_fetch_add(&s->refs, 1);
    pthread_mutex_unlock(&w->lock);
    return s;
}

void w_samplers_sweep(struct weaver *w)
{
    int64_t idle_ms = faults_idle_ms(w->s->faults, SAMPLER_IDLE_MS);
    int64_t before = clock_mono_ns() - 1000000 * idle_ms;
    struct w_sampler *s = next_idle(w, before, NULL), *next, **at;

    while (s) {
        struct w_sampler *gone = NULL;

        next = next_idle(w, before, s);
        if (can_come_back(w, s)) {
            pthread_mutex_lock(&w->lock);
            at = find(w, s->id);
            if (*at && s->used_ns <= before)
                gone = unlink_one(at);
            pthread_mutex_unlock(&w->lock);
        }
        w_sampler_unref(gone);
        w_sampler_unref(s);
        s = next;
    }
}

void w_samplers_free(struct weaver *w)
{
    while (w->samplers)
        w_sampler_unref(unlink_one(&w->samplers));
}
