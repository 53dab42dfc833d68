/* service/plan.c - what a save or a load would do: the refusals of the real call in the same order,
 * from the same tables, and then the facts that are known before anything is changed.
 *
 * A plan holds no slot and no barrier, so what it says is true of the moment it looked. A load's
 * plan reads and hashes the whole file. Docs: docs/decisions/0011-plans.md. */
#include <stdlib.h>

#include "base/err.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "service/load.h"
#include "service/load_op.h"
#include "service/row_load.h"
#include "service/save_op.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weights.h"
#include "store/roots.h"
#include "tensor/weights.h"

/* ---- a save ---- */

static int note_parent(struct op *base, struct refusal *r)
{
    struct save_op *op = (struct save_op *)base;

    (void)r;
    op->parent_match = save_parent_matches(op->manifest, base->served);
    return 0;
}

static int plan_save(struct save_op *op, json_t **data, struct refusal *r)
{
    const struct roots *roots = op->op.s->roots;
    int64_t available = 0;
    struct err e = {0};

    op->image = engine_peek_image(op->op.s->engine);
    if (refusal_walk(save_rules, op, r) < 0 ||
        op_on_engine(&op->op, save_barrier_rules, note_parent, r) < 0)
        return -1;
    if (roots_free_bytes(roots, &available, &e) < 0)
        return refuse_internal(r, &e);
    op->op.audit.parent_check = op->parent_match ? "match" : "mismatch";
    *data = json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:s}", "name", buf_str(&op->name), "root",
                      roots_path(roots, ROOTS_PRIMARY), "path", op->path, "bytes",
                      (json_int_t)op->image->weights->bytes, "free_bytes", (json_int_t)available,
                      "parent_check", op->op.audit.parent_check, "latest", op->dir);
    return 0;
}

int weights_plan_save(struct service *s, const struct weights_req *req, json_t **data,
                      struct refusal *r)
{
    struct save_op op = {0};
    int rc;

    op_begin(&op.op, s, req, "weights_plan_save");
    rc = plan_save(&op, data, r);
    image_unref(op.image);
    buf_release(&op.name);
    return op_end(&op.op, 200, rc, r);
}

/* ---- a load ---- */

/* "swap": nobody waits. "copy": into the mapped memory, after running requests have ended.
 * "reload": the old weights are let go before the new ones are read. */
static const char *way_of(const struct load_op *op)
{
    if (op->room && !(op->in_place && op->op.w->attachment.present))
        return "swap";
    return op->in_place ? "copy" : "reload";
}

static json_t *load_answer(const struct load_op *op, const char *way, size_t bytes)
{
    const struct served *served = op->op.served;

    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:I, s:o, s:I}", "name",
                     op->by_id ? op->row.name : op->manifest.name, "mode", op->op.audit.mode, "way",
                     way, "weights_sha256", json_text(op->by_id ? NULL : op->sha256),
                     "manifest_sha256", json_text(op->by_id ? NULL : op->manifest.sha256), "bytes",
                     (json_int_t)bytes, "verify_ms", json_ms(op->verify_ms), "discards_commits",
                     (json_int_t)(served ? served->commits : 0));
}

static int plan_checkpoint(struct load_op *op, json_t **data, struct refusal *r)
{
    struct err e = {0};

    if (refusal_walk(load_file_rules, op, r) < 0 || refusal_walk(load_mode_rules, op, r) < 0 ||
        op_on_engine(&op->op, load_barrier_rules, NULL, r) < 0)
        return -1;
    *data = load_answer(op, way_of(op), weights_bytes(&op->index, &e));
    return 0;
}

static int plan_row(struct load_op *op, json_t **data, struct refusal *r)
{
    struct row_load l = {.id = op->model_id, .test_memory = true};
    struct row_plan plan = {0};

    op->op.audit.mode = "full_reload";
    if (load_gpu_refuse(op->gpu, r) < 0 || op_on_engine(&op->op, load_barrier_rules, NULL, r) < 0 ||
        row_load_plan(op->op.s, &l, &plan, r) < 0)
        return -1;
    *data = load_answer(op, plan.drops ? "reload" : "swap", plan.bytes);
    return 0;
}

int weights_plan_load(struct service *s, const struct weights_req *req, json_t **data,
                      struct refusal *r)
{
    struct load_op op = {.at = {.dir_fd = -1}, .plan = true};
    int rc;

    op_begin(&op.op, s, req, "weights_plan_load");
    rc = refusal_walk(load_rules, &op, r);
    if (rc == 0)
        rc = op.by_id ? plan_row(&op, data, r) : plan_checkpoint(&op, data, r);
    rc = op_end(&op.op, 200, rc, r);
    load_op_release(&op);
    return rc;
}
