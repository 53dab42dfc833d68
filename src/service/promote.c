/* service/promote.c - a checkpoint of the training API becomes an ordinary one, with a manifest, so
 * that lineage runs across both faces.
 *
 * A full model's weights are written as they are; an adapter is merged into its base. The refusals
 * of a save apply, except those about the resident, which is not touched. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "engine/image.h"
#include "model/adapter.h"
#include "service/memory.h"
#include "service/save_op.h"
#include "service/service.h"
#include "service/weaver/bases.h"
#include "service/weaver/merged.h"
#include "service/weaver/samplers.h"
#include "service/weights.h"
#include "store/catalogue.h"
#include "store/name.h"
#include "tensor/weights.h"

struct promotion {
    struct save_op save; /* first: the checks take it */
    struct w_sampler *source;
    struct model_row base;
    struct merged merged;
};

static int refuse_source(const struct refusal *own, const char *name, struct refusal *r)
{
    json_t *details =
        json_pack("{s:s, s:s}", "checkpoint", name, "reason", refusal_wire_code(own->code));

    if (own->code == REFUSAL_W_OUT_OF_MEMORY)
        return refuse_with(r, REFUSAL_INSUFFICIENT_MEMORY, details, "%s", own->message);
    if (own->code == REFUSAL_W_CHECKPOINT_CORRUPT)
        return refuse_with(r, REFUSAL_CHECKPOINT_NOT_LOADABLE, details, "%s", own->message);
    if (own->code == REFUSAL_W_INTERNAL_ERROR)
        return refuse_with(r, REFUSAL_INTERNAL_ERROR, details, "%s", own->message);
    return refuse_with(r, REFUSAL_CHECKPOINT_NOT_FOUND, details, "%s", own->message);
}

/* A full model has all its weights, but its lineage has no root then. */
static int refuse_base(const char *base, const char *name, struct refusal *r)
{
    struct refusal own = {0};
    int rc;

    refuse(&own, REFUSAL_W_BASE_MODEL_NOT_FOUND,
           "The base '%.200s' of this checkpoint is not in the catalogue any more: register it "
           "under that name.",
           base);
    rc = refuse_source(&own, name, r);
    refusal_clear(&own);
    return rc;
}

/* The lineage root of what the run began with: a checkpoint's is the base in its name. */
static void name_base(struct promotion *p)
{
    const char *base = p->base.repo_id ? p->base.repo_id : p->base.name;
    struct ckpt_name name;

    if (p->base.checkpoint && ckpt_name_parse(base, strlen(base), &name))
        snprintf(p->save.base_model, sizeof p->save.base_model, "%.*s", (int)name.base_len, base);
    else
        str_copy(p->save.base_model, sizeof p->save.base_model, base);
}

/* As for a save: what the weights had for a name before, null for a catalogue model. */
static bool parent_matches(const struct promotion *p)
{
    const json_t *parent = json_object_get(p->save.manifest, "parent");

    if (!p->base.checkpoint)
        return json_is_null(parent);
    return json_is_string(parent) && strcmp(json_string_value(parent), p->base.name) == 0;
}

int check_promoted(void *ctx, struct refusal *r)
{
    struct promotion *p = ctx;
    struct service *s = p->save.op.s;
    const char *name = json_string_value(json_object_get(p->save.op.req->body, "checkpoint"));
    struct refusal own = {0};
    struct err e = {0};
    int64_t row;
    int rc;

    if (!s->weaver)
        return refuse_internal(
            r, &(struct err){.code = ERR_NOT_FOUND, .msg = "this server has no training API"});
    p->source = w_sampler_of_path(s->weaver, name, &own);
    row = p->source ? p->source->row_id : 0;
    rc = p->source ? w_base_row(s->weaver, &row, p->source->base_model, &own) : -1;
    if (rc < 0) {
        refuse_source(&own, name, r);
        refusal_clear(&own);
        return -1;
    }
    if (catalogue_get(s->db, row, &p->base, &e) < 0)
        return e.code == ERR_NOT_FOUND ? refuse_base(p->source->base_model, name, r)
                                       : refuse_internal(r, &e);
    p->save.image = image_ref(p->source->image);
    name_base(p);
    return 0;
}

static int merge(struct promotion *p, struct refusal *r)
{
    const atomic_bool *stop = &p->save.op.s->stopping;
    size_t bytes = p->source->image->weights->bytes;
    struct err e = {0};

    if (!p->source->adapter)
        return 0;
    if (memory_refuse(p->save.op.s, bytes, false, r) < 0)
        return -1;
    if (merged_make(&p->merged, p->source->image, p->source->adapter, stop, &e) < 0)
        return e.code == ERR_NOMEM ? memory_refuse_failed(bytes, &e, r) : refuse_internal(r, &e);
    p->save.config = &p->merged.config;
    return 0;
}

static int promote(struct promotion *p, struct refusal *r)
{
    struct weights *w;
    struct err e = {0};

    if (refusal_walk(promote_rules, p, r) < 0 || merge(p, r) < 0)
        return -1;
    w = p->merged.weights ? p->merged.weights : p->source->image->weights;
    p->save.source = ckpt_source_memory(w->base, w->bytes);
    p->save.created_ms = clock_wall_ms();
    p->save.pause_end_ns = clock_mono_ns();
    p->save.parent_match = parent_matches(p);
    return save_write_files(&p->save, &e) < 0 ? save_refuse_write(&p->save, &e, r) : 0;
}

int weights_promote(struct service *s, const struct weights_req *req, json_t **data,
                    struct refusal *r)
{
    struct promotion p = {0};
    int rc;

    op_begin(&p.save.op, s, req, "weights_promote");
    rc = promote(&p, r);
    *data = rc == 0 ? save_answer(&p.save) : NULL;
    if (*data)
        json_object_set_new(*data, "checkpoint", json_string(p.source->model_path));
    save_fill_audit(&p.save);
    image_unref(p.save.image);
    buf_release(&p.save.name);
    w_sampler_unref(p.source);
    merged_release(&p.merged);
    model_row_release(&p.base);
    return op_end(&p.save.op, 201, rc, r);
}
