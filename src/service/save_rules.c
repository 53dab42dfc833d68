/* service/save_rules.c - why a save is refused. The tables are the documented order; a row changes
 * nothing. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/image.h"
#include "service/body.h"
#include "service/memory.h"
#include "service/save_op.h"
#include "service/service.h"
#include "service/weights.h"
#include "store/roots.h"
#include "store/schema.h"
#include "tensor/weights.h"

/* ---- the request ---- */

static int check_body(void *ctx, struct refusal *r)
{
    static const char *const keys[] = {"manifest"};
    struct save_op *op = ctx;
    struct body b = {.object = op->op.req->body};

    if (check_object(ctx, r) < 0)
        return -1;
    body_known_keys(&b, keys, 1);
    op->manifest = json_object_get(op->op.req->body, "manifest");
    if (!op->manifest)
        body_error(&b, "manifest", "missing", "is required");
    return body_refuse(&b, r);
}

static int check_promote_body(void *ctx, struct refusal *r)
{
    static const char *const keys[] = {"checkpoint", "manifest"};
    struct save_op *op = ctx;
    struct body b = {.object = op->op.req->body};
    const char *checkpoint = NULL;

    if (check_object(ctx, r) < 0)
        return -1;
    body_known_keys(&b, keys, 2);
    op->manifest = json_object_get(op->op.req->body, "manifest");
    if (!op->manifest)
        body_error(&b, "manifest", "missing", "is required");
    body_str(&b, "checkpoint", 0, &checkpoint);
    if (!checkpoint && !b.errors)
        body_error(&b, "checkpoint", "missing", "must be the path or id of a training checkpoint");
    return body_refuse(&b, r);
}

static int check_schema(void *ctx, struct refusal *r)
{
    const char *problem = schema_problem(((const struct op *)ctx)->s->schema);

    if (!problem)
        return 0;
    return refuse_with(r, REFUSAL_INVALID_MANIFEST,
                       json_pack("{s:s, s:s}", "reason", "schema_ownership", "problem", problem),
                       "The manifest schema of this server cannot be used: %s", problem);
}

static int check_server_fields(void *ctx, struct refusal *r)
{
    struct save_op *op = ctx;
    struct err e = {0};
    json_t *fields = schema_server_fields(op->op.s->schema, op->manifest, &e);

    if (!fields)
        return refuse_internal(r, &e);
    if (json_array_size(fields) == 0) {
        json_decref(fields);
        return 0;
    }
    return refuse_with(r, REFUSAL_MANIFEST_FIELD_NOT_CALLERS, json_pack("{s:o}", "fields", fields),
                       "The server writes %s itself; leave out the fields in details.fields.",
                       json_string_value(json_array_get(fields, 0)));
}

static int refuse_schema(json_t *errors, struct refusal *r)
{
    const json_t *first = json_array_get(errors, 0);

    return refuse_with(
        r, REFUSAL_INVALID_MANIFEST, json_pack("{s:s, s:o}", "reason", "schema", "errors", errors),
        "The manifest is not valid: %s: %s", json_string_value(json_object_get(first, "path")),
        json_string_value(json_object_get(first, "message")));
}

static int check_manifest(void *ctx, struct refusal *r)
{
    struct save_op *op = ctx;
    struct err e = {0};
    json_t *errors = schema_check(op->op.s->schema, op->manifest, SCHEMA_CALLER, &e);

    if (!errors)
        return refuse_internal(r, &e);
    if (json_array_size(errors))
        return refuse_schema(errors, r);
    json_decref(errors);
    op->run_id = json_string_value(json_object_get(op->manifest, "run_id"));
    if (!op->run_id || !json_is_whole(json_object_get(op->manifest, "step"), &op->step))
        return refuse(r, REFUSAL_INTERNAL_ERROR, "The manifest schema accepts no run_id or step.");
    str_copy(op->op.audit.run_id, sizeof op->op.audit.run_id, op->run_id);
    op->op.audit.step = op->step;
    return 0;
}

static int check_run_id(void *ctx, struct refusal *r)
{
    struct save_op *op = ctx;
    const json_t *v = json_object_get(op->manifest, "run_id");

    if (ckpt_run_id_may_save(json_string_value(v), json_string_length(v)))
        return 0;
    return refuse_with(r, REFUSAL_INVALID_RUN_ID,
                       json_pack("{s:s, s:O, s:s}", "reason", "pattern", "run_id", (json_t *)v,
                                 "pattern", CKPT_RUN_PATTERN),
                       "run_id must match %s.", CKPT_RUN_PATTERN);
}

/* ---- the resident and the disk ---- */

static int check_engine(void *ctx, struct refusal *r)
{
    const struct save_op *op = ctx;

    if (op->image && op->image->weights->n > 0)
        return 0;
    return refuse_with(r, REFUSAL_ENGINE_UNSUPPORTED, json_pack("{s:s}", "engine", "transformers"),
                       "The resident model has no parameter tensors to save.");
}

static void name_checkpoint(struct save_op *op)
{
    buf_reset(&op->name);
    ckpt_name_write(&op->name, *op->base_model ? op->base_model : op->op.served->base_model,
                    op->run_id, op->step);
    ckpt_path(op->path, op->run_id, op->step);
    ckpt_step_dir(op->dir, op->step);
    str_copy(op->op.audit.checkpoint, sizeof op->op.audit.checkpoint, buf_str(&op->name));
}

/* Something else than a run directory has its name, a link that leads out of the root for one: the
 * stage `prepare` says so. */
static bool is_in_the_way(const struct err *e)
{
    return e->sys == ENOTDIR || e->sys == EXDEV || e->sys == ELOOP;
}

static int check_step_free(void *ctx, struct refusal *r)
{
    struct save_op *op = ctx;
    struct err e = {0};
    bool exists = false;

    name_checkpoint(op);
    if (roots_step_exists(op->op.s->roots, op->run_id, op->step, &exists, &e) < 0 &&
        !is_in_the_way(&e))
        return refuse_internal(r, &e);
    if (!exists)
        return 0;
    return refuse_with(r, REFUSAL_CHECKPOINT_EXISTS,
                       json_pack("{s:s, s:s}", "name", buf_str(&op->name), "path", op->path),
                       "%s exists already; a published checkpoint never changes. Save another step "
                       "or another run_id.",
                       op->path);
}

static int check_ambiguous(void *ctx, struct refusal *r)
{
    const struct save_op *op = ctx;
    const struct roots *roots = op->op.s->roots;
    struct err e = {0};
    json_t *found;
    uint32_t mask;

    if (roots_find_run(roots, op->run_id, "latest", &mask, &e) < 0)
        return refuse_internal(r, &e);
    mask &= ~(1u << ROOTS_PRIMARY);
    if (!mask)
        return 0;
    found = json_array();
    for (int i = 0; i < roots_count(roots); i++)
        if (mask >> i & 1)
            json_array_append_new(found, json_string(roots_path(roots, i)));
    return refuse_with(r, REFUSAL_CHECKPOINT_AMBIGUOUS,
                       json_pack("{s:s, s:o}", "run_id", op->run_id, "roots", found),
                       "The run '%s' exists under a read root; saving it here too would make both "
                       "unloadable by name. Use another run_id.",
                       op->run_id);
}

static int check_name_length(void *ctx, struct refusal *r)
{
    const struct save_op *op = ctx;
    size_t chars = ckpt_name_chars(buf_str(&op->name));

    if (chars <= CKPT_NAME_MAX_CHARS)
        return 0;
    return refuse_with(r, REFUSAL_INVALID_RUN_ID,
                       json_pack("{s:s, s:s, s:I, s:i}", "reason", "name_too_long", "name",
                                 buf_str(&op->name), "length", (json_int_t)chars, "max_length",
                                 CKPT_NAME_MAX_CHARS),
                       "The checkpoint's name would have %zu characters, of at most %d; use a "
                       "shorter run_id.",
                       chars, CKPT_NAME_MAX_CHARS);
}

static int check_storage(void *ctx, struct refusal *r)
{
    const struct save_op *op = ctx;
    const struct settings *set = op->op.s->settings;
    double estimate = (double)op->image->weights->bytes + (double)set->save_overhead_mb * 1048576;
    double required = estimate * set->save_free_space_factor;
    struct err e = {0};
    int64_t available;
    json_t *details;

    if (roots_free_bytes(op->op.s->roots, &available, &e) < 0)
        return refuse_internal(r, &e);
    if ((double)available >= required)
        return 0;
    details = json_pack(
        "{s:I, s:o, s:I, s:f, s:I}", "free_bytes", (json_int_t)available, "required_bytes",
        required < 9e18 ? json_integer((json_int_t)ceil(required)) : json_real(required),
        "estimate_bytes", (json_int_t)estimate, "factor", set->save_free_space_factor,
        "overhead_mb", (json_int_t)set->save_overhead_mb);
    return refuse_with(r, REFUSAL_INSUFFICIENT_STORAGE, details,
                       "%.0f bytes are free under the checkpoint directory, %.0f are needed.",
                       (double)available, required);
}

static int check_memory(void *ctx, struct refusal *r)
{
    const struct save_op *op = ctx;

    return memory_refuse(op->op.s, op->image->weights->bytes - op->image->weights->data_start, true,
                         r);
}

static int check_save_slot(void *ctx, struct refusal *r)
{
    return ((const struct op *)ctx)->w->save.busy ? refuse_paused(OWNER_SAVE, r) : 0;
}

const struct refusal_rule save_rules[] = {
    {"1", check_token},        {"1a", check_body},
    {"2", check_schema},       {"3", check_attached},
    {"4", check_holder},       {"5", check_server_fields},
    {"6", check_manifest},     {"7", check_run_id},
    {"8", check_resident},     {"9", check_engine},
    {"10", check_step_free},   {"11", check_ambiguous},
    {"12", check_name_length}, {"13", check_storage},
    {"14", check_memory},      {0},
};

const struct refusal_rule promote_rules[] = {
    {"1", check_token},         {"1a", check_promote_body}, {"2", check_schema},
    {"5", check_server_fields}, {"6", check_manifest},      {"7", check_run_id},
    {"9", check_promoted},      {"10", check_step_free},    {"11", check_ambiguous},
    {"12", check_name_length},  {"13", check_storage},      {0},
};

const struct refusal_rule save_barrier_rules[] = {
    {"3", check_attached}, {"4", check_holder},
    {"8", check_resident}, {"15", check_save_slot},
    {"16", check_barrier}, {"17", check_load_barrier},
    {"17'", check_clean},  {0},
};
