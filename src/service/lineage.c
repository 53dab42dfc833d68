/* service/lineage.c - from the resident's checkpoint back to its base. Reads manifests only; takes
 * no barrier. */
#include "store/lineage.h"

#include "base/err.h"
#include "engine/engine.h"
#include "service/refusal.h"
#include "service/service.h"
#include "service/state.h"
#include "service/times.h"
#include "service/weights.h"
#include "store/manifest.h"
#include "store/schema.h"

static int add_entry(void *chain, const struct lineage_entry *entry, struct err *e)
{
    const struct manifest *m = entry->manifest;
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:o, s:n}", "name", m->name,
                          "run_id", m->run_id, "step", (json_int_t)m->step, "path", entry->path,
                          "root", entry->root, "manifest_sha256", m->sha256, "weights_sha256",
                          m->weights_sha256, "parent", json_text(m->parent), "merged_adapter");

    return json_array_append_new(chain, o) < 0 ? err_nomem(e) : 0;
}

static json_t *break_object(const struct lineage_end *end)
{
    if (end->reason == LINEAGE_COMPLETE)
        return json_null();
    return json_pack("{s:s, s:s}", "at", buf_str(&end->at), "reason",
                     lineage_break_name(end->reason));
}

static json_t *answer(const struct served *served, json_t *chain, const struct lineage_end *end)
{
    json_t *resident = json_pack("{s:s, s:s, s:o, s:I}", "name", served->name, "origin",
                                 served->checkpoint ? "checkpoint" : "model", "manifest_sha256",
                                 json_text(served->manifest_sha256), "commits_since_identity",
                                 (json_int_t)served->commits);

    return json_pack("{s:o, s:s, s:o, s:b, s:o, s:b}", "resident", resident, "base_model",
                     served->base_model, "chain", chain, "complete",
                     end->reason == LINEAGE_COMPLETE, "break", break_object(end),
                     "weights_verified", 0);
}

static int walk(struct service *s, const struct served *served, json_t **data, struct refusal *r)
{
    struct lineage_end end = {.reason = LINEAGE_COMPLETE};
    json_t *chain = json_array();
    struct err e = {0};

    if (served->checkpoint &&
        lineage_walk(s->roots, s->schema, served->name, (int)s->settings->lineage_max_depth,
                     add_entry, chain, &end, &e) < 0) {
        json_decref(chain);
        return refuse_internal(r, &e);
    }
    *data = answer(served, chain, &end);
    lineage_end_release(&end);
    return 0;
}

int weights_lineage(struct service *s, json_t **data, struct refusal *r)
{
    struct served *served = engine_peek_served(s->engine);
    const char *problem = schema_problem(s->schema);
    int rc;

    if (!served)
        return refuse(r, REFUSAL_MODEL_NOT_LOADED,
                      "No model is loaded; POST /api/models/{id}/load first.");
    if (served->checkpoint && problem)
        rc = refuse_with(r, REFUSAL_INVALID_MANIFEST,
                         json_pack("{s:s, s:s}", "reason", "schema_ownership", "problem", problem),
                         "The manifest schema of this server cannot be used: %s", problem);
    else
        rc = walk(s, served, data, r);
    served_unref(served);
    return rc;
}
