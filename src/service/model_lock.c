/* service/model_lock.c - a row that shall stay: lock and unlock; and the end of a download. */
#include <inttypes.h>

#include "base/err.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/served.h"
#include "service/models.h"
#include "service/refusal.h"
#include "service/service.h"
#include "store/catalogue.h"

int refuse_locked(const struct model_row *row, struct refusal *r)
{
    return refuse_with(r, REFUSAL_MODEL_LOCKED,
                       json_pack("{s:I, s:s}", "locked_model_id", (json_int_t)row->id,
                                 "locked_model_name", row->name),
                       "Model '%s' is locked; unlock it first.", row->name);
}

static bool is_resident(struct service *s, int64_t id)
{
    struct served *served = engine_peek_served(s->engine);
    bool yes = served && served->row_id == id;

    served_unref(served);
    return yes;
}

/* A row that cannot be told is as it was. */
static int set_locked(struct service *s, const struct model_row *row, bool locked, json_t **data,
                      struct refusal *r)
{
    struct err e = {0};

    if (catalogue_set_locked(s->db, row->id, locked, &e) < 0)
        return refuse_internal(r, &e);
    if (models_get(s, row->id, data, r) == 0)
        return 0;
    if (catalogue_set_locked(s->db, row->id, row->locked, &e) < 0)
        log_ev(LOG_WARNING, "catalogue", "row=%" PRId64 " cause=\"%s\"", row->id, e.msg);
    return -1;
}

int models_lock(struct service *s, int64_t id, json_t **data, struct refusal *r)
{
    struct model_row row = {0};
    int rc;

    if (model_find(s, id, &row, r) < 0)
        return -1;
    if (!is_resident(s, id))
        rc = refuse_with(r, REFUSAL_MODEL_NOT_LOADED,
                         json_pack("{s:I, s:s}", "model_id", (json_int_t)id, "status",
                                   model_status_name(row.status)),
                         "Model '%s' is not loaded; only a loaded model can be locked.", row.name);
    else
        rc = row.locked ? refuse_locked(&row, r) : set_locked(s, &row, true, data, r);
    model_row_release(&row);
    return rc;
}

int models_unlock(struct service *s, int64_t id, json_t **data, struct refusal *r)
{
    struct model_row row = {0};
    int rc;

    if (model_find(s, id, &row, r) < 0)
        return -1;
    rc = set_locked(s, &row, false, data, r);
    model_row_release(&row);
    return rc;
}

int models_cancel(struct service *s, int64_t id, json_t **data, struct refusal *r)
{
    struct model_row row = {0};
    struct err e = {0};
    int rc = 0;

    if (model_find(s, id, &row, r) < 0)
        return -1;
    if (row.status == MODEL_DOWNLOADING &&
        catalogue_set_status(s->db, id, MODEL_ERROR, "Download cancelled by user", &e) < 0)
        rc = refuse_internal(r, &e);
    model_row_release(&row);
    return rc == 0 ? models_get(s, id, data, r) : -1;
}
