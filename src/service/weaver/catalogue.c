/* service/weaver/catalogue.c - what can be trained, and the answers of a server with one team, no
 * prices, no clusters, no deployments and no managed data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "db/db.h"
#include "service/times.h"
#include "service/weaver/impl.h"
#include "service/weaver/rows.h"
#include "service/weaver/scope.h"
#include "store/catalogue.h"

/* ---- models ---- */

static bool trainable(const struct model_row *row)
{
    return row->local_path && !row->checkpoint &&
           (row->status == MODEL_READY || row->status == MODEL_LOADED ||
            row->status == MODEL_LOADING);
}

typedef json_t *row_object_fn(const struct model_row *row);

static int list_rows(struct weaver *w, struct weaver_call *c, row_object_fn *object,
                     struct refusal *r)
{
    struct model_row *rows = NULL;
    int64_t limit, offset, at = 0;
    json_t *items;
    struct err e = {0};
    int n = 0;

    if (w_page(c, 100, &limit, &offset, r) < 0)
        return -1;
    if (catalogue_list(w->db, &rows, &n, &e) < 0)
        return w_refuse_err(r, &e);
    items = json_array();
    for (int i = 0; i < n; i++) {
        if (!trainable(&rows[i]))
            continue;
        if (at >= offset && at < offset + limit)
            json_array_append_new(items, object(&rows[i]));
        at++;
    }
    catalogue_list_release(rows, n);
    c->data = w_list(items, at, limit, offset);
    return 0;
}

static json_t *supported(const struct model_row *row)
{
    return json_pack("{s:s, s:s, s:s, s:{s:{s:{s:s}}}}", "id", row->name, "name", row->name,
                     "status", "healthy", "config", "resource", "tokenizer", "path",
                     row->local_path);
}

int weaver_supported_models(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    return list_rows(w, c, supported, r);
}

static void add_price(json_t *prices, const char *what, const char *mode)
{
    char key[64];

    snprintf(key, sizeof key, mode ? "%s:%s" : "%s", what, mode);
    json_object_set_new(prices, key,
                        json_pack("{s:s, s:i, s:s}", "unit", "million_tokens", "unit_price_micros",
                                  0, "version", "0"));
}

/* A mode is shown by the client only where all its prices are there. */
static json_t *prices(void)
{
    static const char *const what[] = {"sampling_prefill_tokens", "sampling_cached_prefill_tokens",
                                       "sampling_output_tokens"};
    static const char *const modes[] = {NULL, "lora", "full_ft"};
    json_t *all = json_object();

    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        if (modes[m])
            add_price(all, "training_tokens", modes[m]);
        for (size_t i = 0; i < sizeof what / sizeof *what; i++)
            add_price(all, what[i], modes[m]);
    }
    return all;
}

static json_t *detailed(const struct model_row *row)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:[s, s], s:o, s:{s:o, s:o}}", "id", row->name, "name",
                     row->name, "status", "healthy", "visibility", "public", "training_modes",
                     "lora", "full_ft", "prices", prices(), "metadata", "architecture",
                     json_text(row->architecture), "params", json_text(row->params));
}

int weaver_model_catalog(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    return list_rows(w, c, detailed, r);
}

/* ---- scope ---- */

static json_t *unit(const char *id, const char *name)
{
    return json_pack("{s:s, s:s, s:s, s:s}", "id", id, "name", name, "slug", name,
                     "current_user_role", "owner");
}

static json_t *organization(void)
{
    return unit(SCOPE_ORGANIZATION, "local");
}

static json_t *project(void)
{
    return unit(SCOPE_PROJECT, "default");
}

int weaver_organizations(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    (void)w, (void)r;
    c->data = json_pack("[o]", organization());
    return 0;
}

int weaver_projects(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    (void)w;
    if (strcmp(c->key, SCOPE_ORGANIZATION) != 0)
        return refuse(r, REFUSAL_W_SCOPE_NOT_FOUND, "There is no organization '%.64s'.", c->key);
    c->data = json_pack("[o]", project());
    return 0;
}

static bool names(const char *given, const char *id, const char *name)
{
    return !given || !*given || strcmp(given, id) == 0 || strcmp(given, name) == 0;
}

int weaver_scope(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    const char *org = w_query(c, "organization"), *proj = w_query(c, "project");

    (void)w;
    if (!names(org, SCOPE_ORGANIZATION, "local"))
        return refuse(r, REFUSAL_W_SCOPE_NOT_FOUND, "There is no organization '%.64s'.", org);
    if (!names(proj, SCOPE_PROJECT, "default"))
        return refuse(r, REFUSAL_W_SCOPE_NOT_FOUND, "There is no project '%.64s'.", proj);
    c->data = json_pack("{s:o, s:o}", "organization", organization(), "project", project());
    return 0;
}

int weaver_scheduling(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    (void)w, (void)r;
    c->data = json_pack("{s:[s], s:b, s:[]}", "modes", "auto", "can_select", 0, "clusters");
    return 0;
}

/* ---- quota: nothing is counted, nothing is charged ---- */

int weaver_quota_balance(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    static const char *const what[] = {"balance", "available", "reserved", "used"};
    char key[32];

    (void)w, (void)r;
    c->data = json_pack("{s:s}", "organization_id", SCOPE_ORGANIZATION);
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
        snprintf(key, sizeof key, "%s_nanos", what[i]);
        json_object_set_new(c->data, key, json_integer(0));
        snprintf(key, sizeof key, "%s_usd", what[i]);
        json_object_set_new(c->data, key, json_string("0"));
    }
    return 0;
}

static json_t *quota_object(const char *id, const char *owner, const char *amount,
                            const char *reason, int64_t created_ms)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "id", id, "owner", owner, "amount_usd",
                     amount, "reason", reason, "status", "pending", "created_at",
                     json_time(created_ms));
}

int weaver_quota_list(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    int64_t limit, offset, total = 0;
    json_t *items;
    struct db_stmt q;
    struct err e = {0};
    int rc;

    if (w_page(c, 25, &limit, &offset, r) < 0)
        return -1;
    rc = db_query(&q, w->db, &e,
                  "SELECT id, owner, amount_usd, reason, created_ms"
                  " FROM weaver_quota_requests ORDER BY rowid DESC LIMIT ? OFFSET ?",
                  "ii", limit, offset);
    items = json_array();
    while (rc == 0 && (rc = db_step(&q, &e)) > 0) {
        json_array_append_new(items, quota_object(db_text(&q, 0), db_text(&q, 1), db_text(&q, 2),
                                                  db_text(&q, 3), db_int(&q, 4)));
        rc = 0;
    }
    db_query_end(&q, w->db);
    if (rc == 0)
        rc = w_count(w->db, "weaver_quota_requests", &total, &e);
    if (rc < 0) {
        json_decref(items);
        return w_refuse_err(r, &e);
    }
    c->data = w_list(items, total, limit, offset);
    return 0;
}

/* "12", "12.50" */
static bool is_amount(const char *s)
{
    size_t whole = strspn(s, "0123456789"), part = 0;

    if (s[whole] == '.')
        part = 1 + strspn(s + whole + 1, "0123456789");
    return whole > 0 && part != 1 && !s[whole + part] && strlen(s) <= 32;
}

int weaver_quota_request(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    const char *amount = NULL, *reason = "";
    int64_t now = clock_wall_ms();
    char id[UUID_TEXT];
    struct err e = {0};

    if (w_str(c->body, "amount_usd", &amount, r) < 0 || w_str(c->body, "reason", &reason, r) < 0)
        return -1;
    if (!amount || !is_amount(amount) || strlen(reason) > 4096)
        return w_bad(r, "amount_usd must be a decimal number as a string, reason at most 4096 "
                        "characters.");
    if (uuid_new(id, &e) < 0 || db_run(w->db, &e,
                                       "INSERT INTO weaver_quota_requests"
                                       " VALUES (?, ?, ?, ?, ?)",
                                       "tttti", id, c->owner, amount, reason, now) < 0)
        return w_refuse_err(r, &e);
    c->data = quota_object(id, c->owner, amount, reason, now);
    return 0;
}

/* ---- what this server does not have ---- */

static int empty_list(struct weaver_call *c, struct refusal *r)
{
    int64_t limit, offset;

    if (w_page(c, 100, &limit, &offset, r) < 0)
        return -1;
    c->data = w_list(json_array(), 0, limit, offset);
    return 0;
}

int weaver_deployments(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    (void)w;
    return empty_list(c, r);
}

int weaver_deployment_get(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    (void)w;
    return refuse(r, REFUSAL_W_DEPLOYMENT_NOT_FOUND, "There is no deployment '%.64s'.", c->key);
}

int weaver_deploy(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    (void)w, (void)c;
    return refuse(r, REFUSAL_W_DEPLOYMENT_UNAVAILABLE,
                  "This server makes no deployments: a live sampler export is served on /v1 under "
                  "its weaver:// path.");
}

int weaver_datasets(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    (void)w;
    return empty_list(c, r);
}

int weaver_dataset_get(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    (void)w;
    return refuse(r, REFUSAL_W_DATASET_NOT_FOUND,
                  "There is no dataset '%.64s': this server manages no data.", c->key);
}

int weaver_dataset_lengths(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    (void)w, (void)c;
    return refuse(r, REFUSAL_W_DATASET_NOT_FOUND, "This server manages no data.");
}
