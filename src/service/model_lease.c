/* service/model_lease.c - the lease routes of a model: bodies, refusals in order, and the step on
 * the engine thread that keeps a lease and the resident together. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "service/body.h"
#include "service/leases.h"
#include "service/models.h"
#include "service/op.h"
#include "service/service.h"
#include "service/weights.h"
#include "store/catalogue.h"
#include "store/name.h"

struct lease_op {
    struct op op; /* first: the checks take a struct op */
    struct weights_req req;
    struct model_row row;
    char *holder, *reason; /* owned, trimmed */
    int64_t ttl_s;
    bool for_batch;
    json_t *data;
};

/* ---- the body ---- */

static int refuse_param_of(const char *param, struct refusal *r, const char *what)
{
    return refuse_with(r, REFUSAL_INVALID_LEASE_REQUEST, json_pack("{s:s}", "param", param),
                       "%s %s.", param, what);
}

static int check_keys(const json_t *body, const json_t *errors, const char *const *keys, int n,
                      struct refusal *r)
{
    struct body b = {.object = body};

    if (!body)
        return refuse_with(r, REFUSAL_VALIDATION_ERROR,
                           json_pack("{s:O?}", "errors", (json_t *)errors),
                           "The request body must be one JSON object.");
    body_known_keys(&b, keys, n);
    return body_refuse(&b, r);
}

/* A text of 1 to `most` characters after trimming; owned. */
static int read_text(const json_t *body, const char *key, int most, char **out, struct refusal *r)
{
    const json_t *v = json_object_get(body, key);
    const char *from = json_string_value(v);
    char what[64];
    size_t n;

    snprintf(what, sizeof what, "must be a text of 1 to %d characters", most);
    if (!from || json_holds_nul(v))
        return refuse_param_of(key, r, what);
    while (isspace((unsigned char)*from))
        from++;
    n = strlen(from);
    while (n && isspace((unsigned char)from[n - 1]))
        n--;
    free(*out);
    *out = strndup(from, n);
    if (!*out)
        return refuse_no_memory(r);
    return n && ckpt_name_chars(*out) <= (size_t)most ? 0 : refuse_param_of(key, r, what);
}

static int read_ttl(const struct settings *set, const json_t *body, int64_t *out, struct refusal *r)
{
    const json_t *v = json_object_get(body, "ttl_seconds");
    char what[64];

    *out = set->lease_default_ttl_s;
    if (!v || json_is_null(v))
        return 0;
    snprintf(what, sizeof what, "must be a whole number from 1 to %d", set->lease_max_ttl_s);
    if (!json_is_integer(v) || !json_is_whole(v, out) || *out < 1 || *out > set->lease_max_ttl_s)
        return refuse_param_of("ttl_seconds", r, what);
    return 0;
}

static int check_id_given(const char *lease, struct refusal *r)
{
    return lease ? 0 : refuse_param_of("X-miLLM-Lease", r, "must hold the lease's id");
}

/* ---- acquire ---- */

static int check_is_resident(void *ctx, struct refusal *r)
{
    const struct lease_op *op = ctx;
    const struct served *served = op->op.served;
    json_t *details;

    if (served && served->row_id == op->row.id)
        return 0;
    details = json_object();
    json_object_set_new(details, "resident_model_id",
                        served ? json_integer((json_int_t)served->row_id) : json_null());
    json_object_set_new(details, "resident_model_name",
                        served ? json_string(served->name) : json_null());
    return refuse_with(r, REFUSAL_MODEL_NOT_RESIDENT, details,
                       "Model '%s' is not resident; only the loaded model can be leased.",
                       op->row.name);
}

static int check_free(void *ctx, struct refusal *r)
{
    const struct lease_op *op = ctx;

    return refuse_leased(&op->op, "lease", op->row.id, r);
}

/* A load that owns the barrier may replace the resident, too. */
static int check_not_leaving(void *ctx, struct refusal *r)
{
    const struct lease_op *op = ctx;

    if (check_loads(ctx, r) < 0)
        return -1;
    if (op->op.w->owner != OWNER_LOAD)
        return 0;
    return refuse_with(r, REFUSAL_MODEL_BUSY, json_pack("{s:s}", "reason", "load_in_progress"),
                       "A load is in progress; try again when it is done.");
}

static const struct refusal_rule lease_rules[] = {
    {"MODEL_NOT_RESIDENT", check_is_resident},
    {"MODEL_LEASED", check_free},
    {"MODEL_BUSY", check_not_leaving},
    {0},
};

static int acquire(struct op *base, struct refusal *r)
{
    struct lease_op *op = (struct lease_op *)base;
    const struct lease_terms terms = {op->holder, op->reason, op->ttl_s, op->for_batch};

    return leases_acquire(base->s->leases, op->row.id, base->served->name, &terms, &op->data, r);
}

static int parse_terms(struct lease_op *op, struct service *s, const json_t *body,
                       const json_t *errors, struct refusal *r)
{
    static const char *const keys[] = {"holder", "reason", "ttl_seconds"};
    const struct settings *set = s->settings;

    if (check_keys(body, errors, keys, 3, r) < 0 ||
        read_text(body, "holder", set->lease_holder_max_chars, &op->holder, r) < 0 ||
        read_text(body, "reason", set->lease_reason_max_chars, &op->reason, r) < 0)
        return -1;
    return read_ttl(set, body, &op->ttl_s, r);
}

int models_lease_take(struct service *s, int64_t id, const json_t *body, const json_t *errors,
                      bool for_batch, json_t **data, struct refusal *r)
{
    struct lease_op op = {.for_batch = for_batch};
    int rc = -1;

    op_begin(&op.op, s, &op.req, NULL);
    if (parse_terms(&op, s, body, errors, r) == 0 && model_find(s, id, &op.row, r) == 0)
        rc = op_on_engine(&op.op, lease_rules, acquire, r);
    *data = op.data;
    model_row_release(&op.row);
    free(op.holder);
    free(op.reason);
    return op_end(&op.op, 201, rc, r);
}

/* ---- look, renew, end ---- */

int models_lease_get(struct service *s, int64_t id, json_t **data, struct refusal *r)
{
    struct model_row row = {0};

    if (model_find(s, id, &row, r) < 0)
        return -1;
    model_row_release(&row);
    *data = json_pack("{s:o, s:o}", "lease", leases_live(s->leases, id), "last_ended",
                      leases_last_ended(s->leases, id));
    return 0;
}

int models_lease_renew(struct service *s, int64_t id, const char *lease, const json_t *body,
                       const json_t *errors, json_t **data, struct refusal *r)
{
    static const char *const keys[] = {"ttl_seconds"};
    int64_t ttl_s;

    if (check_keys(body, errors, keys, 1, r) < 0 || check_id_given(lease, r) < 0 ||
        read_ttl(s->settings, body, &ttl_s, r) < 0)
        return -1;
    return leases_renew(s->leases, id, lease, ttl_s, data, r);
}

int models_lease_end(struct service *s, int64_t id, const char *lease, json_t **data,
                     struct refusal *r)
{
    if (check_id_given(lease, r) < 0)
        return -1;
    return leases_release(s->leases, id, lease, data, r);
}
