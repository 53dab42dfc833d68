#include "service/models.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "model/model.h"
#include "service/body.h"
#include "service/jobs.h"
#include "service/leases.h"
#include "service/load.h"
#include "service/memory.h"
#include "service/op.h"
#include "service/resident.h"
#include "service/row_load.h"
#include "service/row_status.h"
#include "service/service.h"
#include "service/times.h"
#include "service/tokens.h"
#include "service/weights.h"
#include "store/catalogue.h"
#include "tensor/weights.h"

/* ---- rows as objects ---- */

static const char *dtype_word(const struct image *im)
{
    switch (im->weights->n ? im->weights->tensors[0].dtype : DTYPE_F32) {
    case DTYPE_BF16:
        return "torch.bfloat16";
    case DTYPE_F16:
        return "torch.float16";
    default:
        return "torch.float32";
    }
}

/* What is known only of a row that is resident. */
static void add_resident_facts(struct service *s, const struct model_row *row, json_t *o)
{
    struct image *im;
    struct served *served = engine_peek(s->engine, &im);

    json_object_set_new(o, "served_name", json_null());
    if (served && im && served->row_id == row->id) {
        json_object_set_new(o, "served_name", json_string(served->name));
        json_object_set_new(o, "num_parameters", json_integer((json_int_t)im->model->n_parameters));
        json_object_set_new(o, "memory_footprint", json_integer((json_int_t)im->weights->bytes));
        json_object_set_new(o, "device", json_string("cpu"));
        json_object_set_new(o, "dtype", json_string(dtype_word(im)));
    }
    served_unref(served);
    image_unref(im);
}

static json_t *count_or_null(int64_t n)
{
    return n < 0 ? json_null() : json_integer(n);
}

json_t *model_object(struct service *s, const struct model_row *row)
{
    json_t *o = json_pack(
        "{s:I, s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "id", (json_int_t)row->id, "name",
        json_text(row->name), "source", row->source, "repo_id", json_text(row->repo_id),
        "local_path", json_text(row->local_path), "params", json_text(row->params), "architecture",
        json_text(row->architecture), "quantization", json_text(row->quantization));

    if (!o)
        return NULL;
    json_object_set_new(o, "disk_size_mb", count_or_null(row->disk_size_mb));
    json_object_set_new(o, "estimated_memory_mb", count_or_null(row->estimated_memory_mb));
    json_object_set_new(o, "status", json_string(model_status_name(row->status)));
    json_object_set_new(o, "error_message", json_text(row->error_message));
    json_object_set_new(o, "locked", json_boolean(row->locked));
    json_object_set_new(o, "download_progress", json_integer(row->download_progress));
    json_object_set_new(o, "created_at", json_time(row->created_ms));
    json_object_set_new(o, "updated_at", json_time(row->updated_ms));
    json_object_set_new(o, "loaded_at", json_time(row->loaded_ms));
    json_object_set_new(o, "revision", json_text(row->revision));
    json_object_set_new(o, "supports_embeddings", json_boolean(row->supports_embeddings));
    json_object_set_new(o, "lease", leases_live(s->leases, row->id));
    json_object_set_new(o, "checkpoint", json_boolean(row->checkpoint));
    add_resident_facts(s, row, o);
    return o;
}

int model_refuse_absent(int64_t id, struct refusal *r)
{
    return refuse_with(r, REFUSAL_MODEL_NOT_FOUND, json_pack("{s:I}", "model_id", (json_int_t)id),
                       "There is no model %" PRId64 "; GET /api/models lists them.", id);
}

int model_find(struct service *s, int64_t id, struct model_row *row, struct refusal *r)
{
    struct err e = {0};

    if (catalogue_get(s->db, id, row, &e) == 0) {
        row_status_correct(s, row, 1);
        return 0;
    }
    return e.code == ERR_NOT_FOUND ? model_refuse_absent(id, r) : refuse_internal(r, &e);
}

int models_list(struct service *s, json_t **data, struct refusal *r)
{
    struct model_row *rows;
    struct err e = {0};
    int n;

    if (catalogue_list(s->db, &rows, &n, &e) < 0)
        return refuse_internal(r, &e);
    row_status_correct(s, rows, n);
    *data = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(*data, model_object(s, &rows[i]));
    catalogue_list_release(rows, n);
    return 0;
}

int models_get(struct service *s, int64_t id, json_t **data, struct refusal *r)
{
    struct model_row row = {0};

    if (model_find(s, id, &row, r) < 0)
        return -1;
    *data = model_object(s, &row);
    model_row_release(&row);
    return 0;
}

/* ---- load ---- */

struct claim {
    struct op op; /* first: the checks take a struct op */
    struct weights_req req;
    struct model_row row;
    const json_t *gpu; /* of any type, borrowed; NULL: not given */
    int64_t unloaded;  /* unload: the row that was resident */
};

static int check_not_carrier(void *ctx, struct refusal *r)
{
    const struct claim *c = ctx;

    if (!c->row.checkpoint)
        return 0;
    return refuse_with(r, REFUSAL_CHECKPOINT_NOT_LOADABLE,
                       json_pack("{s:s, s:I, s:s}", "reason", "carrier_row", "model_id",
                                 (json_int_t)c->row.id, "name", c->row.name),
                       "This row belongs to the checkpoint '%s'; load it with POST "
                       "/api/weights/load by name or path, so that its files are verified.",
                       c->row.name);
}

static int check_not_loaded(void *ctx, struct refusal *r)
{
    const struct claim *c = ctx;
    const struct served *served = c->op.served;

    if (!served || served->row_id != c->row.id)
        return 0;
    return refuse_with(r, REFUSAL_MODEL_ALREADY_LOADED,
                       json_pack("{s:I}", "model_id", (json_int_t)c->row.id),
                       "Model %" PRId64 " is resident as '%s'. To reload its own files: POST "
                       "/api/weights/load {\"model_id\": %" PRId64 "}.",
                       c->row.id, served->name, c->row.id);
}

static int check_not_downloading(void *ctx, struct refusal *r)
{
    const struct claim *c = ctx;

    if (c->row.status != MODEL_DOWNLOADING)
        return 0;
    return refuse_with(r, REFUSAL_MODEL_BUSY,
                       json_pack("{s:s, s:I, s:s}", "reason", "downloading", "model_id",
                                 (json_int_t)c->row.id, "status", "downloading"),
                       "Model '%s' is still being downloaded.", c->row.name);
}

static int check_load_lease(void *ctx, struct refusal *r)
{
    const struct claim *c = ctx;

    return refuse_leased(&c->op, "load", c->row.id, r);
}

static int check_gpu(void *ctx, struct refusal *r)
{
    const struct claim *c = ctx;

    return load_gpu_refuse(c->gpu, r);
}

static int check_quantization(void *ctx, struct refusal *r)
{
    const char *q = ((const struct claim *)ctx)->row.quantization;

    if (!q || strcmp(q, "FP16") == 0 || strcmp(q, "FP32") == 0)
        return 0;
    return refuse_with(r, REFUSAL_UNSUPPORTED_QUANTIZATION, json_pack("{s:s}", "quantization", q),
                       "Quantization %s is not supported; register the model with FP16 (weights as "
                       "they are stored).",
                       q);
}

static int check_row_memory(void *ctx, struct refusal *r)
{
    const struct claim *c = ctx;
    size_t need = c->row.estimated_memory_mb > 0 ? (size_t)c->row.estimated_memory_mb << 20 : 0;

    return memory_refuse_instead(c->op.s, need, false, r);
}

static int check_unattached(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;

    return op->w->attachment.present ? refuse_attached(op, NULL, r) : 0;
}

static const struct refusal_rule load_rules[] = {
    {"CHECKPOINT_NOT_LOADABLE", check_not_carrier},
    {"MODEL_ALREADY_LOADED", check_not_loaded},
    {"MODEL_BUSY", check_not_downloading},
    {"MODEL_BUSY", check_loads},
    {"MODEL_LEASED", check_load_lease},
    {"INSUFFICIENT_MEMORY", check_row_memory},
    {"GPU_NOT_FOUND", check_gpu},
    {"UNSUPPORTED_QUANTIZATION", check_quantization},
    {"ALREADY_ATTACHED", check_unattached},
    {"WEIGHTS_NOT_CLEAN", check_clean},
    {"PAUSE_IN_PROGRESS", check_load_barrier},
    {0},
};

static int claim_load(struct op *op, struct refusal *r)
{
    (void)r;
    op->s->weights->loading_row = ((struct claim *)op)->row.id;
    resident_log_discarded(op->served);
    return 0;
}

struct background {
    struct service *s;
    struct row_load load;
};

static void load_in_background(void *arg)
{
    struct background *b = arg;
    struct refusal r = {0};

    if (row_load_run(b->s, &b->load, &r) < 0)
        log_ev(LOG_ERROR, "model_load_failed", "row=%" PRId64 " code=%s cause=\"%s\"", b->load.id,
               refusal_wire_code(r.code), r.message);
    refusal_clear(&r);
    free(b);
}

static int start_load(struct service *s, int64_t id, struct refusal *r)
{
    struct background *b = calloc(1, sizeof *b);
    struct err e = {0};

    if (!b)
        return refuse_no_memory(r);
    *b = (struct background){s, {.id = id}};
    if (jobs_start(s->jobs, load_in_background, b, &e) == 0)
        return 0;
    free(b);
    return refuse_internal(r, &e);
}

static int release_claim(struct op *op, struct refusal *r)
{
    (void)r;
    op->s->weights->loading_row = op->s->weights->unloading_row = 0;
    return 0;
}

static int parse_load_body(struct claim *c, const json_t *body, const json_t *errors,
                           struct refusal *r)
{
    static const char *const keys[] = {"gpu"};
    struct body b = {.object = body};

    if (!body)
        return refuse_with(r, REFUSAL_VALIDATION_ERROR,
                           json_pack("{s:O?}", "errors", (json_t *)errors),
                           "The request body must be one JSON object.");
    body_known_keys(&b, keys, 1);
    c->gpu = json_object_get(body, "gpu");
    return body_refuse(&b, r);
}

/* An unaudited, open route: only the state of the weights is looked at. */
static void claim_begin(struct claim *c, struct service *s, const char *lease)
{
    *c = (struct claim){.req = {.lease = lease}};
    op_begin(&c->op, s, &c->req, NULL);
}

int models_load(struct service *s, int64_t id, const char *lease, const json_t *body,
                const json_t *errors, json_t **data, struct refusal *r)
{
    struct claim c;
    struct err e = {0};
    int rc = -1;

    claim_begin(&c, s, lease);
    if (parse_load_body(&c, body, errors, r) < 0 || model_find(s, id, &c.row, r) < 0)
        goto done;
    if (op_on_engine(&c.op, load_rules, claim_load, r) < 0)
        goto done;
    /* Before the answer: who asks for the row next finds it loading. */
    if (row_status_set(s, id, MODEL_LOADING, &e) < 0)
        rc = e.code == ERR_NOT_FOUND ? model_refuse_absent(id, r) : refuse_internal(r, &e);
    else
        rc = start_load(s, id, r);
    if (rc < 0) {
        row_status_note(s, id, c.row.status, c.row.error_message);
        op_on_engine(&c.op, NULL, release_claim, r);
        goto done;
    }
    c.row.status = MODEL_LOADING;
    *data = model_object(s, &c.row);

done:
    model_row_release(&c.row);
    return op_end(&c.op, 202, rc, r);
}

/* ---- unload ---- */

static int check_loaded(void *ctx, struct refusal *r)
{
    const struct claim *c = ctx;

    if (c->op.served && c->op.served->row_id == c->row.id)
        return 0;
    return refuse_with(r, REFUSAL_MODEL_NOT_LOADED,
                       json_pack("{s:I, s:s}", "model_id", (json_int_t)c->row.id, "status",
                                 model_status_name(c->row.status)),
                       "Model '%s' is not loaded.", c->row.name);
}

static int check_unload_lease(void *ctx, struct refusal *r)
{
    const struct claim *c = ctx;

    return refuse_leased(&c->op, "unload", c->row.id, r);
}

static const struct refusal_rule unload_rules[] = {
    {"MODEL_NOT_LOADED", check_loaded},
    {"MODEL_BUSY", check_loads},
    {"MODEL_LEASED", check_unload_lease},
    {"ALREADY_ATTACHED", check_unattached},
    {"WEIGHTS_NOT_CLEAN", check_clean},
    {"PAUSE_IN_PROGRESS", check_load_barrier},
    {0},
};

static int drop(struct op *op, struct refusal *r)
{
    (void)r;
    resident_log_discarded(op->served);
    op->s->weights->unloading_row = ((struct claim *)op)->row.id;
    resident_drop(op->s);
    return 0;
}

/* As it is now, or without memory for that as it was found, and not loaded. */
static json_t *unloaded_object(struct service *s, struct model_row *found)
{
    struct refusal ignored = {0};
    json_t *o = NULL;

    if (models_get(s, found->id, &o, &ignored) < 0) {
        found->status = MODEL_READY;
        found->loaded_ms = -1;
        o = model_object(s, found);
    }
    refusal_clear(&ignored);
    return o;
}

int models_unload(struct service *s, int64_t id, const char *lease, json_t **data,
                  struct refusal *r)
{
    struct claim c;
    int rc = -1;

    claim_begin(&c, s, lease);
    if (model_find(s, id, &c.row, r) < 0 || op_on_engine(&c.op, unload_rules, drop, r) < 0)
        goto done;
    /* Running requests end on their own image; its memory is free when the answer goes out. */
    engine_wait_images(s->engine, 0, (int64_t)(s->settings->graceful_unload_timeout_s * 1000));
    resident_note_rows(s, id, 0);
    rc = op_on_engine(&c.op, NULL, release_claim, r);
    if (rc == 0)
        *data = unloaded_object(s, &c.row);

done:
    model_row_release(&c.row);
    return op_end(&c.op, 200, rc, r);
}

int models_permit(struct service *s, const char *authorization, struct refusal *r)
{
    if (!s->settings->needs_token || tokens_find(s->tokens, authorization))
        return 0;
    return refuse(r, REFUSAL_UNAUTHORIZED,
                  "This server listens beyond loopback, so a change of its models needs a token: "
                  "Authorization: Bearer <token>.");
}

/* ---- start ---- */

static int find_row(struct service *s, const char *which, struct model_row *row)
{
    char *end;
    long long id = strtoll(which, &end, 10);
    struct err e = {0};

    if (*which && !*end && id > 0 && catalogue_get(s->db, id, row, &e) == 0)
        return 0;
    return catalogue_get_by_name(s->db, which, row, &e);
}

int models_auto_load(struct service *s, const char *which, struct refusal *r)
{
    struct claim c;
    struct row_load l = {0};
    int rc;

    claim_begin(&c, s, NULL);
    if (find_row(s, which, &c.row) < 0 || c.row.checkpoint) { /* which may be the row's number */
        rc = load_at_start(s, c.row.checkpoint ? c.row.name : which, r);
    } else {
        l.id = c.row.id;
        rc = op_on_engine(&c.op, load_rules, claim_load, r);
        if (rc == 0)
            rc = row_load_run(s, &l, r);
    }
    model_row_release(&c.row);
    return op_end(&c.op, 200, rc, r);
}
