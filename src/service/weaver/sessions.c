/* service/weaver/sessions.c - sessions, their heartbeats and metrics. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "db/db.h"
#include "service/settings.h"
#include "service/times.h"
#include "service/weaver/impl.h"
#include "service/weaver/scope.h"

enum { METRICS_MAX = 1000, METRIC_NAME_MAX = 256, STALE_MS = 300000 };

static int not_found(struct refusal *r, const char *id)
{
    return refuse(r, REFUSAL_W_SESSION_NOT_FOUND, "There is no session '%.64s'.", id);
}

int w_session_touch(struct weaver *w, const char *id, struct refusal *r)
{
    struct db_stmt q;
    struct err e = {0};
    int rc = db_query(&q, w->ops, &e, "UPDATE weaver_sessions SET seen_ms = ? WHERE id = ?", "it",
                      clock_wall_ms(), id);

    if (rc == 0)
        rc = db_step(&q, &e);
    if (rc == 0 && db_changes(w->ops) == 0)
        rc = not_found(r, id);
    else if (rc < 0)
        w_refuse_err(r, &e);
    db_query_end(&q, w->ops);
    return rc;
}

/* The session as it is answered: what the client sent, and what we know. */
static json_t *session_object(const char *id, const char *owner, json_t *record, int64_t created_ms,
                              int64_t seen_ms)
{
    bool stale = clock_wall_ms() - seen_ms > STALE_MS;

    json_object_set_new(record, "id", json_string(id));
    json_object_set_new(record, "owner", json_string(owner));
    json_object_set_new(record, "status", json_string(stale ? "stale" : "active"));
    json_object_set_new(record, "created_at", json_time(created_ms));
    json_object_set_new(record, "last_heartbeat_at", json_time(seen_ms));
    return record;
}

static int check_policy(const json_t *body, struct refusal *r)
{
    const json_t *policy = json_object_get(body, "scheduling_policy");
    const char *mode;

    if (!policy || json_is_null(policy))
        return 0;
    mode = json_string_value(json_object_get(policy, "mode"));
    if (!mode ||
        (strcmp(mode, "auto") != 0 && strcmp(mode, "fixed") != 0 && strcmp(mode, "prefer") != 0))
        return w_bad(r, "scheduling_policy.mode must be auto, fixed or prefer.");
    return 0;
}

static int take_field(const json_t *body, json_t *record, const char *key, json_type type,
                      struct refusal *r)
{
    json_t *v = json_object_get(body, key);

    if (!v || json_is_null(v))
        return 0;
    if (json_typeof(v) != type)
        return w_bad(r, "%s must be %s.", key,
                     type == JSON_STRING   ? "a string"
                     : type == JSON_OBJECT ? "an object"
                                           : "a list");
    json_object_set(record, key, v);
    return 0;
}

static int take_fields(const json_t *body, json_t *record, struct refusal *r)
{
    static const struct {
        const char *key;
        json_type type;
    } fields[] = {{"tags", JSON_ARRAY},         {"user_metadata", JSON_OBJECT},
                  {"sdk_version", JSON_STRING}, {"name", JSON_STRING},
                  {"labels", JSON_OBJECT},      {"organization_id", JSON_STRING},
                  {"project_id", JSON_STRING},  {"scheduling_policy", JSON_OBJECT}};

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (take_field(body, record, fields[i].key, fields[i].type, r) < 0)
            return -1;
    return check_policy(body, r);
}

static void fill_scope(json_t *record)
{
    if (!json_object_get(record, "organization_id"))
        json_object_set_new(record, "organization_id", json_string(SCOPE_ORGANIZATION));
    if (!json_object_get(record, "project_id"))
        json_object_set_new(record, "project_id", json_string(SCOPE_PROJECT));
    if (!json_object_get(record, "tags"))
        json_object_set_new(record, "tags", json_array());
    if (!json_object_get(record, "user_metadata"))
        json_object_set_new(record, "user_metadata", json_object());
}

int weaver_session_create(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    json_t *record = json_object();
    int64_t now = clock_wall_ms();
    struct err e = {0};
    char id[UUID_TEXT];
    char *text = NULL;
    int rc = -1;

    if (take_fields(c->body, record, r) < 0)
        goto done;
    fill_scope(record);
    text = w_dump(record);
    if (!text || uuid_new(id, &e) < 0 ||
        db_run(w->db, &e,
               "INSERT INTO weaver_sessions (id, owner, record, created_ms, seen_ms)"
               " VALUES (?, ?, ?, ?, ?)",
               "tttii", id, c->owner, text, now, now) < 0) {
        if (!text)
            err_nomem(&e);
        w_refuse_err(r, &e);
        goto done;
    }
    c->data = session_object(id, c->owner, json_incref(record), now, now);
    rc = 0;

done:
    free(text);
    json_decref(record);
    return rc;
}

int weaver_session_get(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct db_stmt q;
    struct err e = {0};
    int rc = db_query(&q, w->db, &e,
                      "SELECT owner, record, created_ms, seen_ms FROM weaver_sessions WHERE id = ?",
                      "t", c->key);

    if (rc == 0)
        rc = db_step(&q, &e);
    if (rc > 0)
        c->data = session_object(c->key, db_text(&q, 0), w_parse(db_text(&q, 1)), db_int(&q, 2),
                                 db_int(&q, 3));
    db_query_end(&q, w->db);
    if (rc > 0)
        return 0;
    return rc < 0 ? w_refuse_err(r, &e) : not_found(r, c->key);
}

int weaver_session_heartbeat(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    if (w_session_touch(w, c->key, r) < 0)
        return -1;
    c->data = json_pack("{s:b}", "ok", 1);
    return 0;
}

/* ---- metrics ---- */

static int check_metric(const json_t *m, struct refusal *r)
{
    const char *name = NULL, *text = NULL;
    const json_t *value = json_object_get(m, "value"), *labels = json_object_get(m, "labels");
    int64_t step = 0;

    if (!json_is_object(m) || w_str(m, "name", &name, r) < 0)
        return w_bad(r, "metrics must be a list of objects with name and value.");
    if (!name || !*name || strlen(name) > METRIC_NAME_MAX)
        return w_bad(r, "The name of a metric is 1 to %d characters.", METRIC_NAME_MAX);
    if (!json_is_number(value))
        return w_bad(r, "Metric %.64s: value must be a number.", name);
    if (labels && !json_is_null(labels) && !json_is_object(labels))
        return w_bad(r, "Metric %.64s: labels must be an object.", name);
    return w_int(m, "step", 0, INT64_MAX >> 10, &step, r) < 0 ||
                   w_str(m, "model_id", &text, r) < 0 || w_str(m, "occurred_at", &text, r) < 0
               ? -1
               : 0;
}

static int insert_metric(struct db *d, const char *session, const json_t *m, struct err *e)
{
    const json_t *step = json_object_get(m, "step"), *labels = json_object_get(m, "labels");
    char value[32];
    char *text = json_is_object(labels) ? w_dump(labels) : NULL;
    struct db_stmt q = {0};
    int rc;

    snprintf(value, sizeof value, "%.17g", json_number_value(json_object_get(m, "value")));
    rc = db_prepare(&q, d, "INSERT INTO weaver_metrics VALUES (?, ?, ?, ?, ?, ?, ?)", e);
    if (rc == 0) {
        db_bind_text(&q, session);
        db_bind_text(&q, json_string_value(json_object_get(m, "model_id")));
        db_bind_text(&q, json_string_value(json_object_get(m, "name")));
        db_bind_text(&q, value);
        if (json_is_number(step))
            db_bind_int(&q, (int64_t)json_number_value(step));
        else
            db_bind_text(&q, NULL);
        db_bind_text(&q, json_string_value(json_object_get(m, "occurred_at")));
        db_bind_text(&q, text);
        rc = db_step(&q, e);
    }
    db_finish(&q);
    free(text);
    return rc < 0 ? -1 : 0;
}

static int insert_metrics(struct weaver *w, const char *session, const json_t *list, struct err *e)
{
    const json_t *m;
    size_t i;
    int rc = 0;

    if (db_begin(w->ops, e) < 0)
        return -1;
    json_array_foreach ((json_t *)list, i, m) {
        if ((rc = insert_metric(w->ops, session, m, e)) < 0)
            break;
    }
    return db_end(w->ops, rc, e);
}

int weaver_session_metrics(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    const json_t *list = json_object_get(c->body, "metrics"), *m;
    struct err e = {0};
    size_t i;

    if (!json_is_array(list) || json_array_size(list) > METRICS_MAX)
        return w_bad(r, "metrics must be a list of at most %d entries.", METRICS_MAX);
    json_array_foreach ((json_t *)list, i, m) {
        if (check_metric(m, r) < 0)
            return -1;
    }
    if (w_session_touch(w, c->key, r) < 0)
        return -1;
    if (insert_metrics(w, c->key, list, &e) < 0)
        return w_refuse_err(r, &e);
    c->data = json_pack("{s:b, s:I}", "ok", 1, "accepted", (json_int_t)json_array_size(list));
    return 0;
}
