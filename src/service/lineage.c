/* service/lineage.c - from the resident's checkpoint back to its base. Reads manifests only; takes
 * no barrier. The answer is written as text while the chain is walked: a chain may be long. */
#include "store/lineage.h"

#include "base/err.h"
#include "base/json.h"
#include "engine/engine.h"
#include "service/refusal.h"
#include "service/service.h"
#include "service/state.h"
#include "service/times.h"
#include "service/weights.h"
#include "store/schema.h"

static int add_entry(void *arg, const struct lineage_entry *entry, struct err *e)
{
    struct buf *data = arg;

    if (data->len && data->data[data->len - 1] == '}')
        buf_add_char(data, ',');
    lineage_write_entry(data, entry);
    return data->failed ? err_nomem(e) : 0;
}

/* What stands before the entries of the chain. */
static void write_head(struct buf *b, const struct served *served)
{
    json_t *resident = json_pack("{s:s, s:s, s:o, s:I}", "name", served->name, "origin",
                                 served->checkpoint ? "checkpoint" : "model", "manifest_sha256",
                                 json_text(served->manifest_sha256), "commits_since_identity",
                                 (json_int_t)served->commits);
    json_t *base = json_string(served->base_model);

    buf_add_str(b, "{\"resident\":");
    json_write(b, resident);
    buf_add_str(b, ",\"base_model\":");
    json_write(b, base);
    buf_add_str(b, ",\"chain\":[");
    b->failed = b->failed || !resident || !base;
    json_decref(resident);
    json_decref(base);
}

static void write_tail(struct buf *b, const struct lineage_end *end)
{
    buf_printf(b,
               "],\"complete\":%s,\"break\":", end->reason == LINEAGE_COMPLETE ? "true" : "false");
    lineage_write_break(b, end);
    buf_add_str(b, ",\"weights_verified\":false}");
}

static int walk(struct service *s, const struct served *served, struct buf *data, struct refusal *r)
{
    struct lineage_end end = {.reason = LINEAGE_COMPLETE};
    struct err e = {0};
    int rc = 0;

    write_head(data, served);
    if (served->checkpoint)
        rc = lineage_walk(s->roots, s->schema, served->name, (int)s->settings->lineage_max_depth,
                          add_entry, data, &end, &e);
    if (rc == 0)
        write_tail(data, &end);
    if (rc == 0 && data->failed)
        rc = err_nomem(&e);
    lineage_end_release(&end);
    return rc < 0 ? refuse_internal(r, &e) : 0;
}

int weights_lineage(struct service *s, struct buf *data, struct refusal *r)
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
