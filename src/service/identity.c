#include "service/identity.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "model/adapter.h"
#include "service/leases.h"
#include "service/op.h"
#include "service/refusal.h"
#include "service/row_load.h"
#include "service/service.h"
#include "service/state.h"
#include "service/weaver/names.h"
#include "service/weights.h"
#include "store/catalogue.h"
#include "tensor/weights.h"

enum { AUTO_LOAD_MS = 180000 };

/* ---- rows 1 to 5: what the name means ---- */

int identity_refuse_torn(struct service *s, struct refusal *r)
{
    if (!state_torn(s))
        return 0;
    refuse(r, REFUSAL_V1_WEIGHTS_TORN,
           "The weights are torn: a write began and did not finish. Serving stops until a load "
           "succeeds (POST /api/weights/load).");
    r->retry_after_s = s->settings->retry_torn_s;
    return -1;
}

static int refuse_carrier(const char *model, struct refusal *r)
{
    return refuse_param(
        r, REFUSAL_V1_MODEL_NOT_FOUND, "model",
        "The checkpoint '%s' is not resident and is never loaded on demand; load it "
        "with POST /api/weights/load {\"name\": \"%s\"}.",
        model, model);
}

static int refuse_renamed(const char *model, const struct served *served, struct refusal *r)
{
    return refuse_param(r, REFUSAL_V1_MODEL_NOT_FOUND, "model",
                        "The model '%s' is resident as '%s'. Request that name, or POST "
                        "/api/weights/load {\"model_id\": %" PRId64 "} to reload the original.",
                        model, served->name, served->row_id);
}

static int judge_row(const char *model, const struct model_row *row, const struct served *served,
                     struct identity_match *m, struct refusal *r)
{
    if (row->checkpoint)
        return refuse_carrier(model, r);
    if (served && served->row_id == row->id)
        return refuse_renamed(model, served, r);
    *m = (struct identity_match){.row_id = row->id};
    return 0;
}

int identity_find(struct service *s, const char *model, struct identity_match *m, struct refusal *r)
{
    struct served *served = engine_peek_served(s->engine);
    struct model_row row = {0};
    struct err e = {0};
    int rc = 0;

    if (identity_refuse_torn(s, r) < 0)
        rc = -1;
    else if (served && strcmp(served->name, model) == 0)
        *m = (struct identity_match){.row_id = served->row_id, .resident = true};
    else if (catalogue_get_by_name(s->db, model, &row, &e) == 0)
        rc = judge_row(model, &row, served, m, r);
    else if (e.code == ERR_NOT_FOUND)
        rc = refuse_param(r, REFUSAL_V1_MODEL_NOT_FOUND, "model",
                          "The model '%s' does not exist; GET /v1/models lists the names.", model);
    else
        rc = refuse_internal(r, &e);
    model_row_release(&row);
    served_unref(served);
    return rc;
}

/* ---- rows 7 to 13: load another row ---- */

struct auto_load {
    struct op op; /* first: the checks take a struct op */
    int64_t row_id;
    enum load_policy policy;
    bool resident; /* it became the resident meanwhile */
};

static int check_policy(void *ctx, struct refusal *r)
{
    const struct auto_load *a = ctx;

    if (a->policy != LOAD_POLICY_REFUSE)
        return 0;
    if (a->op.w->loading_row != a->row_id)
        return refuse_param(r, REFUSAL_V1_MODEL_NOT_RESIDENT, "model",
                            "This model is not resident, and X-miLLM-Load-Policy is refuse.");
    refuse_param(r, REFUSAL_V1_MODEL_LOADING, "model", "This model is being loaded.");
    r->retry_after_s = a->op.s->settings->retry_load_s;
    return -1;
}

static int check_saved(void *ctx, struct refusal *r)
{
    const struct served *served = ((const struct op *)ctx)->served;

    if (!served || served->commits == 0)
        return 0;
    return refuse_param(r, REFUSAL_V1_WEIGHTS_UNSAVED, "model",
                        "'%s' carries %" PRId64 " commits that are not saved, and loading another "
                        "model would discard them. Save them (POST /api/weights/save), or load "
                        "deliberately (POST /api/weights/load).",
                        served->name, served->commits);
}

static int check_lease(void *ctx, struct refusal *r)
{
    const struct auto_load *a = ctx;
    const struct lease_ask ask = {.id = a->op.req->lease,
                                  .operation = "load",
                                  .target = a->row_id,
                                  .code = REFUSAL_V1_MODEL_LEASED};

    return leases_refuse(a->op.s->leases, &ask, r);
}

/* The catalogue is asked on the calling thread only, not between two steps of the engine. */
static int check_unlocked(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;
    struct model_row row = {0};
    struct err e = {0};
    int rc = 0;

    if (op->image || !op->served)
        return 0;
    if (catalogue_get(op->s->db, op->served->row_id, &row, &e) < 0)
        return e.code == ERR_NOT_FOUND ? 0 : refuse_internal(r, &e);
    if (row.locked)
        rc = refuse_param(r, REFUSAL_V1_MODEL_LOCKED, "model",
                          "The resident model '%s' is locked; POST /api/models/%" PRId64
                          "/unlock lets others be loaded.",
                          op->served->name, op->served->row_id);
    model_row_release(&row);
    return rc;
}

static int check_unattached(void *ctx, struct refusal *r)
{
    const struct attachment *a = &((const struct op *)ctx)->w->attachment;

    if (!a->present)
        return 0;
    return refuse_param(r, REFUSAL_V1_ALREADY_ATTACHED, "model",
                        "The resident weights are attached by '%s', so no other model is loaded.",
                        a->identity);
}

static int check_idle(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;
    const struct settings *set = op->s->settings;

    if (!op->w->loading_row && !op->w->unloading_row && op->w->owner != OWNER_LOAD &&
        op->w->owner != OWNER_ADAPTER)
        return 0;
    refuse(r, REFUSAL_V1_MODEL_BUSY, "A model is being loaded or unloaded; try again soon.");
    r->retry_after_s = op->w->unloading_row ? set->retry_unload_s : set->retry_load_s;
    return -1;
}

static int check_torn(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;

    return op->w->condition == WEIGHTS_TORN ? identity_refuse_torn(op->s, r) : 0;
}

static const struct refusal_rule auto_load_rules[] = {
    {"1", check_torn},      {"7", check_policy},      {"8", check_saved}, {"9", check_lease},
    {"10", check_unlocked}, {"11", check_unattached}, {"12", check_idle}, {0},
};

static int claim(struct op *op, struct refusal *r)
{
    struct auto_load *a = (struct auto_load *)op;

    (void)r;
    a->resident = op->served && op->served->row_id == a->row_id;
    if (!a->resident)
        op->s->weights->loading_row = a->row_id;
    return 0;
}

/* The refusal of a load in the words of the /v1 face. */
static int refuse_as_v1(struct service *s, struct refusal *r)
{
    char message[REFUSAL_MESSAGE_MAX];

    memcpy(message, r->message, sizeof message);
    if (atomic_load(&s->stopping)) {
        refuse(r, REFUSAL_V1_MODEL_BUSY, "%s", message);
        r->retry_after_s = s->settings->retry_load_s;
        return -1;
    }
    switch (r->code) {
    case REFUSAL_INSUFFICIENT_MEMORY:
        refuse(r, REFUSAL_V1_INSUFFICIENT_MEMORY, "%s", message);
        r->retry_after_s = s->settings->retry_memory_s;
        return -1;
    case REFUSAL_MODEL_BUSY:
        refuse(r, REFUSAL_V1_MODEL_BUSY, "%s", message);
        r->retry_after_s = s->settings->retry_load_s;
        return -1;
    case REFUSAL_MODEL_NOT_FOUND:
        return refuse_param(r, REFUSAL_V1_MODEL_NOT_FOUND, "model", "%s", message);
    default:
        return refuse(r, REFUSAL_V1_MODEL_LOAD_FAILED, "%s", message);
    }
}

static int check_quantization(struct service *s, int64_t id, struct refusal *r)
{
    struct model_row row = {0};
    struct err e = {0};
    int rc = 0;

    if (catalogue_get(s->db, id, &row, &e) == 0 && row.quantization && row.quantization[0] == 'Q')
        rc = refuse(r, REFUSAL_V1_UNSUPPORTED_QUANTIZATION, "Quantization %s is not supported.",
                    row.quantization);
    model_row_release(&row);
    return rc;
}

static int auto_load(struct service *s, const struct identity_match *m, enum load_policy policy,
                     const atomic_bool *gone, struct refusal *r)
{
    const struct weights_req nobody = {.lease = m->lease};
    struct auto_load a = {.row_id = m->row_id, .policy = policy};
    struct row_load l = {.id = m->row_id, .gone = gone, .timeout_ms = AUTO_LOAD_MS};
    int rc;

    op_begin(&a.op, s, &nobody, NULL);
    rc = refusal_walk(auto_load_rules, &a.op, r);
    if (rc == 0)
        rc = check_quantization(s, m->row_id, r);
    if (rc == 0)
        rc = op_on_engine(&a.op, auto_load_rules, claim, r);
    if (rc == 0 && !a.resident && row_load_run(s, &l, r) < 0)
        rc = refuse_as_v1(s, r);
    return op_end(&a.op, 200, rc, r);
}

int identity_take(struct service *s, const struct identity_match *m, enum load_policy policy,
                  const atomic_bool *gone, struct identity_pin *out, struct refusal *r)
{
    *out = (struct identity_pin){0};
    if (!m->resident && auto_load(s, m, policy, gone, r) < 0)
        return -1;
    out->served = engine_peek(s->engine, &out->image);
    if (out->served && out->image) {
        out->load_counter = out->served->load_counter;
        return 0;
    }
    identity_release(out);
    if (identity_refuse_torn(s, r) < 0)
        return -1;
    refuse(r, REFUSAL_V1_MODEL_NOT_LOADED, "No model is loaded.");
    r->retry_after_s = s->settings->retry_not_loaded_s;
    return -1;
}

/* Every load gives the count one of its own, so it says which weights are meant. */
static int take_counted(struct service *s, uint64_t load_counter, struct identity_pin *out,
                        struct refusal *r)
{
    const struct identity_match resident = {.resident = true};

    if (identity_refuse_torn(s, r) < 0 ||
        identity_take(s, &resident, LOAD_POLICY_REFUSE, NULL, out, r) < 0)
        return -1;
    if (out->load_counter == load_counter)
        return 0;
    identity_release(out);
    return refuse_param(r, REFUSAL_V1_MODEL_NOT_RESIDENT, "model",
                        "Other weights are resident than those that this row belongs to.");
}

/* What refused its load may have come after another request's load of the same model. */
static bool came_meanwhile(struct service *s, const char *model, struct identity_match *m)
{
    struct refusal ignored = {0};
    bool came = identity_find(s, model, m, &ignored) == 0 && m->resident;

    refusal_clear(&ignored);
    return came;
}

int identity_resolve(struct service *s, const struct identity_ask *ask, struct identity_pin *out,
                     struct refusal *r)
{
    struct identity_match match = {0};

    if (ask->load_counter)
        return take_counted(s, ask->load_counter, out, r);
    if (weaver_names(ask->model))
        return weaver_pin(s, ask, out, r);
    if (identity_find(s, ask->model, &match, r) < 0)
        return -1;
    match.lease = ask->lease;
    if (identity_take(s, &match, ask->policy, ask->gone, out, r) == 0)
        return 0;
    if (match.resident || !came_meanwhile(s, ask->model, &match))
        return -1;
    refusal_clear(r);
    return identity_take(s, &match, ask->policy, ask->gone, out, r);
}

void identity_release(struct identity_pin *pin)
{
    served_unref(pin->served);
    image_unref(pin->image);
    adapter_unref(pin->adapter);
    *pin = (struct identity_pin){0};
}

/* ---- the name in answers ---- */

static const char *origin_of(const struct served *served)
{
    if (weaver_names(served->name))
        return "export";
    return served->checkpoint ? "checkpoint" : "model";
}

void identity_header(const struct served *served, struct buf *b)
{
    buf_add_char(b, '"');
    for (const char *p = served->name; *p; p++) {
        unsigned char c = (unsigned char)*p;

        if (c < 0x20 || c > 0x7e || c == '%' || c == '"' || c == '\\')
            buf_printf(b, "%%%02X", c);
        else
            buf_add_char(b, (char)c);
    }
    buf_printf(b, "\";origin=%s;commits=%" PRId64, origin_of(served), served->commits);
}

static const char *or_unrecorded(const char *s)
{
    return s && *s ? s : "unrecorded";
}

void identity_fingerprint(struct service *s, const struct served *served, const struct image *im,
                          struct buf *b)
{
    enum dtype dtype = im->weights->n ? im->weights->tensors[0].dtype : DTYPE_F32;
    struct model_row row = {0};
    struct err e = {0};

    catalogue_get(s->db, served->row_id, &row, &e);
    buf_printf(b, "millm:%s@%s:%s/%s:transformers", served->name, or_unrecorded(row.revision),
               dtype == DTYPE_BF16  ? "bfloat16"
               : dtype == DTYPE_F16 ? "float16"
                                    : "float32",
               or_unrecorded(row.quantization));
    model_row_release(&row);
}

/* ---- the list ---- */

static bool listed(const struct model_row *row, bool resident)
{
    bool state =
        row->status == MODEL_READY || row->status == MODEL_LOADING || row->status == MODEL_LOADED;

    return resident || (state && !row->checkpoint);
}

static bool any_locked(const struct model_row *rows, int n)
{
    for (int i = 0; i < n; i++)
        if (rows[i].locked)
            return true;
    return false;
}

int identity_list(struct service *s, identity_entry_fn *fn, void *arg, struct refusal *r)
{
    struct served *served = engine_peek_served(s->engine);
    struct model_row *rows;
    struct err e = {0};
    bool locked;
    int n;

    if (catalogue_list(s->db, &rows, &n, &e) < 0) {
        served_unref(served);
        return refuse_internal(r, &e);
    }
    locked = any_locked(rows, n);
    for (int i = 0; i < n; i++) {
        bool resident = served && served->row_id == rows[i].id;
        int64_t created = rows[i].loaded_ms ? rows[i].loaded_ms : rows[i].created_ms;
        struct identity_entry entry = {.id = resident ? served->name : rows[i].name,
                                       .owned_by = rows[i].repo_id ? rows[i].repo_id : "miLLM",
                                       .created = created / 1000,
                                       .locked_out = locked && !rows[i].locked};

        if (listed(&rows[i], resident))
            fn(arg, &entry);
    }
    catalogue_list_release(rows, n);
    served_unref(served);
    return 0;
}
