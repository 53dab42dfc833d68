/* service/load_rules.c - why a load is refused. The tables are the documented order; a row changes
 * nothing. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/engine.h"
#include "service/body.h"
#include "service/load.h"
#include "service/load_op.h"
#include "service/memory.h"
#include "service/models.h"
#include "service/service.h"
#include "service/weights.h"
#include "store/roots.h"
#include "store/schema.h"
#include "tensor/weights.h"

/* ---- the request ---- */

/* A NUL in it is not judged here: it belongs to what the text names. */
static const json_t *text_member(struct body *b, const char *key)
{
    const json_t *v = json_object_get(b->object, key);

    if (json_is_string(v))
        return v;
    if (v && !json_is_null(v))
        body_error(b, key, "string_type", "must be a string");
    return NULL;
}

static void parse_way(struct load_op *op, struct body *b)
{
    const json_t *id = json_object_get(b->object, "model_id");
    int ways = 0;

    op->name = text_member(b, "name");
    op->path = text_member(b, "path");
    body_int(b, "model_id", INT64_MIN, &op->model_id);
    op->by_id = id && !json_is_null(id);
    ways = (op->name != NULL) + (op->path != NULL) + op->by_id;
    if (ways != 1 && !b->errors)
        body_error(b, "name", ways ? "too_many" : "missing",
                   ways ? "must stand alone: it, path and model_id are three ways to say one thing"
                        : "must be given, or path, or model_id");
}

static int check_body(void *ctx, struct refusal *r)
{
    static const char *const keys[] = {"name", "path", "model_id", "gpu", "trust_remote_code"};
    struct load_op *op = ctx;
    struct body b = {.object = op->op.req->body};

    if (check_object(ctx, r) < 0)
        return -1;
    body_known_keys(&b, keys, 5);
    op->gpu = json_object_get(b.object, "gpu");
    body_bool(&b, "trust_remote_code", &op->trust_remote_code);
    parse_way(op, &b);
    return body_refuse(&b, r);
}

static int check_schema(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;
    const char *problem = schema_problem(op->op.s->schema);

    if (op->by_id || !problem)
        return 0;
    return refuse_with(r, REFUSAL_INVALID_MANIFEST,
                       json_pack("{s:s, s:s}", "reason", "schema_ownership", "problem", problem),
                       "The manifest schema of this server cannot be used: %s", problem);
}

/* ---- what it names ---- */

static void resolve(struct load_op *op, struct err *e)
{
    const json_t *text = op->name ? op->name : op->path;

    (op->name ? resolve_name : resolve_path)(op->op.s->roots, json_string_value(text),
                                             json_string_length(text), &op->at, e);
    if (op->at.outcome != RESOLVE_OK)
        return;
    memcpy(op->op.audit.run_id, op->at.run_id, sizeof op->op.audit.run_id);
    op->op.audit.step = op->at.step;
}

/* A text as it may stand in a message: up to its first NUL, shortened. */
static const char *shown(const json_t *text)
{
    return json_string_value(text);
}

static int check_named(void *ctx, struct refusal *r)
{
    struct load_op *op = ctx;
    struct err e = {0};
    const char *reason;

    if (op->by_id)
        return model_find(op->op.s, op->model_id, &op->row, r);
    resolve(op, &e);
    reason = resolve_reason(op->at.outcome);
    switch (op->at.outcome) {
    case RESOLVE_BAD_NAME:
        return refuse_with(r, REFUSAL_INVALID_RUN_ID,
                           json_pack("{s:s, s:O}", "reason", reason, "name", (json_t *)op->name),
                           "'%.200s' is not of the form <base_model>:<run_id>:step-<n>.",
                           shown(op->name));
    case RESOLVE_BAD_RUN_ID:
        return refuse_with(r, REFUSAL_INVALID_RUN_ID,
                           json_pack("{s:s}", "reason", "unsafe_segment"),
                           "The run of this checkpoint is no safe path segment.");
    case RESOLVE_OUTSIDE:
    case RESOLVE_SHAPE:
    case RESOLVE_LATEST:
        return refuse_with(r, REFUSAL_INVALID_CHECKPOINT_PATH,
                           json_pack("{s:s, s:O?}", "reason", reason, "path", (json_t *)op->path),
                           "The path must be <run_id>/step-<NNNNNN> or <run_id>/latest below a "
                           "checkpoint root (%s).",
                           reason);
    case RESOLVE_FAILED:
        return refuse_internal(r, &e);
    default:
        return 0;
    }
}

static int check_carrier(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;

    if (!op->by_id || !op->row.checkpoint)
        return 0;
    return refuse_with(r, REFUSAL_CHECKPOINT_NOT_LOADABLE,
                       json_pack("{s:s, s:I, s:s}", "reason", "carrier_row", "model_id",
                                 (json_int_t)op->row.id, "name", op->row.name),
                       "Row %" PRId64
                       " is a checkpoint's own; load it by name or path, so that its "
                       "files are verified.",
                       op->row.id);
}

static int check_one_root(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;
    const struct roots *roots = op->op.s->roots;
    json_t *found;

    if (op->by_id || op->at.outcome != RESOLVE_AMBIGUOUS)
        return 0;
    found = json_array();
    for (int i = 0; i < roots_count(roots); i++)
        if (op->at.roots_mask >> i & 1)
            json_array_append_new(found, json_string(roots_path(roots, i)));
    return refuse_with(r, REFUSAL_CHECKPOINT_AMBIGUOUS,
                       json_pack("{s:s, s:o}", "run_id", op->at.run_id, "roots", found),
                       "The run '%s' exists under more than one root; load it by absolute path.",
                       op->at.run_id);
}

static int check_found(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;

    if (op->by_id || op->at.outcome != RESOLVE_NOT_FOUND)
        return 0;
    return refuse_with(r, REFUSAL_CHECKPOINT_NOT_FOUND,
                       json_pack("{s:[s]}", "searched", op->at.searched),
                       "There is no checkpoint %s under the checkpoint roots.", op->at.searched);
}

static int refuse_manifest(struct load_op *op, enum manifest_fault fault, json_t *errors,
                           const struct err *e, struct refusal *r)
{
    json_t *details =
        json_pack("{s:s, s:s}", "reason", manifest_fault_name(fault), "path", op->at.path);

    json_object_set_new(details, "errors", errors ? errors : json_array());
    return refuse_with(r, REFUSAL_INVALID_MANIFEST, details, "The manifest of %s is not valid: %s",
                       op->at.path, e->msg);
}

static int check_manifest(void *ctx, struct refusal *r)
{
    struct load_op *op = ctx;
    struct manifest_place place = {.run_id = op->at.run_id, .step = op->at.step};
    enum manifest_fault fault;
    json_t *errors = NULL;
    struct err e = {0};

    if (op->by_id)
        return 0;
    if (op->name) {
        place.base_model = json_string_value(op->name);
        place.base_len = op->at.base_len;
    }
    fault = manifest_read(op->at.dir_fd, op->op.s->schema, &place, &op->manifest, &errors, &e);
    if (fault == MANIFEST_OK) {
        str_copy(op->op.audit.checkpoint, sizeof op->op.audit.checkpoint, op->manifest.name);
        memcpy(op->op.audit.manifest_sha256, op->manifest.sha256, SHA256_HEX);
        return 0;
    }
    if (fault == MANIFEST_FAILED)
        return refuse_internal(r, &e);
    if (fault == MANIFEST_RUN_ID)
        return refuse_with(r, REFUSAL_INVALID_RUN_ID,
                           json_pack("{s:s}", "reason", "unsafe_segment"), "%s", e.msg);
    return refuse_manifest(op, fault, errors, &e, r);
}

/* ---- state of the weights: rows 9 to 14, before the hash and again at the barrier ---- */

static int check_no_commit(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;

    return w->condition == WEIGHTS_WRITING ? refuse_not_clean(w, r) : 0;
}

bool load_may_write(const struct op *op)
{
    const struct attachment *a = &op->w->attachment;

    if (a->leaving)
        return false;
    if (proof_matches(a, &op->proof))
        return true;
    return op->owner && op->owner->role == ROLE_OPERATOR &&
           (op->w->condition == WEIGHTS_TORN || a->stale);
}

static int check_attachment(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;

    if (!op->op.w->attachment.present || (!op->by_id && load_may_write(&op->op)))
        return 0;
    return refuse_attached(&op->op, op->by_id ? "full_reload" : NULL, r);
}

static int check_lease(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;

    return refuse_leased(&op->op, "weights_load", op->by_id ? op->model_id : 0, r);
}

static int check_no_pause(void *ctx, struct refusal *r)
{
    const struct weights_state *w = ((const struct op *)ctx)->w;
    bool draining_quiesce = w->owner == OWNER_QUIESCE && !w->hold.on;

    return w->owner == OWNER_LOAD || w->owner == OWNER_ADAPTER || draining_quiesce
               ? refuse_paused(w->owner, r)
               : 0;
}

/* At the barrier an attachment may have come: a full reload may not go on beside it. */
static int check_mode_still(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;

    if (!op->op.w->attachment.present || op->in_place)
        return 0;
    return refuse_attached(&op->op, "full_reload", r);
}

const struct refusal_rule load_rules[] = {
    {"1", check_token},       {"2", check_body},      {"3", check_schema},
    {"4", check_named},       {"5", check_carrier},   {"6", check_one_root},
    {"7", check_found},       {"8", check_manifest},  {"9", check_no_commit},
    {"10", check_attachment}, {"11", check_lease},    {"12", check_loads},
    {"13", check_barrier},    {"14", check_no_pause}, {0},
};

const struct refusal_rule load_barrier_rules[] = {
    {"9", check_no_commit}, {"10", check_attachment}, {"11", check_lease},      {"12", check_loads},
    {"13", check_barrier},  {"14", check_no_pause},   {"18", check_mode_still}, {0},
};

const struct refusal_rule load_file_rules[] = {
    {"15", check_weights_file},
    {"16", check_weights_hash},
    {"17", check_weights_header},
    {0},
};

/* ---- what a full reload needs: rows 18 to 22 ---- */

static int check_mode(void *ctx, struct refusal *r)
{
    struct load_op *op = ctx;
    struct image *im = engine_peek_image(op->op.s->engine);

    op_look(&op->op);
    op->in_place = im && op->op.served && op->index.n > 0 &&
                   strcmp(op->op.served->base_model, op->manifest.base_model) == 0 &&
                   weights_same_layout(im->weights, &op->index);
    if (op->in_place) {
        op->files = image_files_ref(im->files);
    }
    image_unref(im);
    op->op.audit.mode = op->in_place ? "in_place" : "full_reload";
    return check_mode_still(ctx, r);
}

static int check_name_length(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;
    size_t chars = ckpt_name_chars(op->manifest.name);

    if (op->in_place || chars <= CKPT_NAME_MAX_CHARS)
        return 0;
    return refuse_with(r, REFUSAL_INVALID_RUN_ID,
                       json_pack("{s:s, s:s, s:I, s:i}", "reason", "name_too_long", "name",
                                 op->manifest.name, "length", (json_int_t)chars, "max_length",
                                 CKPT_NAME_MAX_CHARS),
                       "The checkpoint's name has %zu characters; a model row holds %d.", chars,
                       CKPT_NAME_MAX_CHARS);
}

int load_refuse_registered(const struct load_op *op, int64_t id, const char *name, const char *what,
                           struct refusal *r)
{
    return refuse_with(r, REFUSAL_LOCAL_PATH_REGISTERED,
                       json_pack("{s:I, s:s, s:s}", "model_id", (json_int_t)id, "model_name", name,
                                 "local_path", op->dir),
                       "Row %" PRId64 ", '%s', has this checkpoint's %s already; delete that row "
                       "first.",
                       id, name, what);
}

/* As store/catalogue.h settles it when the row is made. */
static int check_not_registered(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;
    struct model_row at = {0}, named = {0};
    struct err e = {0};
    int rc = 0;

    if (op->in_place)
        return 0;
    if ((catalogue_get_by_path(op->op.s->db, op->dir, &at, &e) < 0 && e.code != ERR_NOT_FOUND) ||
        (catalogue_get_by_name(op->op.s->db, op->manifest.name, &named, &e) < 0 &&
         e.code != ERR_NOT_FOUND))
        rc = refuse_internal(r, &e);
    else if (at.id && !at.checkpoint)
        rc = load_refuse_registered(op, at.id, at.name, "directory", r);
    else if (named.id && named.id != at.id && (at.id || !catalogue_carrier_lost(&named)))
        rc = load_refuse_registered(op, named.id, named.name, "name", r);
    model_row_release(&at);
    model_row_release(&named);
    return rc;
}

int load_gpu_refuse(const json_t *gpu, struct refusal *r)
{
    const char *name = json_string_value(gpu);

    if (!gpu || json_is_null(gpu) || (name && (!strcmp(name, "auto") || !strcmp(name, "cpu"))))
        return 0;
    return refuse_with(r, REFUSAL_GPU_NOT_FOUND, json_pack("{s:O}", "requested", (json_t *)gpu),
                       "There is no such device: this server computes on the CPU (\"cpu\", "
                       "\"auto\").");
}

static int check_gpu(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;

    return op->in_place ? 0 : load_gpu_refuse(op->gpu, r);
}

/* Staged bytes are in memory already; otherwise the resident's memory comes free before the second
 * read. */
static int check_memory(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;
    struct err e = {0};
    size_t bytes = weights_bytes(&op->index, &e);

    if (op->in_place)
        return 0;
    if (op->room)
        return memory_refuse_test(op->op.s, bytes, r);
    return memory_refuse_instead(op->op.s, bytes, true, r);
}

const struct refusal_rule load_mode_rules[] = {
    {"18", check_mode},
    {"19", check_load_dir},
    {"20", check_name_length},
    {"21", check_not_registered},
    {"22", check_gpu},
    {"22", check_memory},
    {0},
};
