#include "service/row_load.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "model/config.h"
#include "model/model.h"
#include "service/memory.h"
#include "service/models.h"
#include "service/refusal.h"
#include "service/resident.h"
#include "service/row_status.h"
#include "service/service.h"
#include "service/state.h"
#include "store/catalogue.h"
#include "tensor/model_dir.h"
#include "tensor/weights.h"

struct row_work {
    struct service *s;
    struct row_load *l;
    struct model_row row;
    struct model_dir md;
    struct model_config *config;
    int dir_fd;
    int64_t deadline_ns;
    struct image *image;
    struct served *served;
    int64_t old_row;
    bool delayed; /* a test build's delay is over */
};

/* Only while nothing is changed: once the old model is let go, the load runs to its end. */
static bool client_left(const struct row_work *w)
{
    return !w->l->dropped && w->l->gone && atomic_load(w->l->gone);
}

/* A server that is being stopped needs no model, whatever was let go for it. */
static int may_go_on(void *arg, uint64_t done, uint64_t total)
{
    struct row_work *w = arg;

    (void)total;
    if (done > 0 && !w->delayed)
        faults_read_delay(w->s->faults, &w->s->stopping);
    w->delayed |= done > 0;
    if (client_left(w) || atomic_load(&w->s->stopping))
        return 1;
    return w->deadline_ns && clock_mono_ns() > w->deadline_ns;
}

static int refuse_load(const struct row_work *w, const struct err *e, const char *reason,
                       struct refusal *r)
{
    json_t *details;

    if (e->code == ERR_CANCELLED && client_left(w))
        return refuse_client_left(r);
    if (e->code == ERR_CANCELLED && atomic_load(&w->s->stopping))
        return refuse_stopping(r);
    details = json_pack("{s:I, s:s}", "model_id", (json_int_t)w->l->id, "error", e->msg);
    if (e->code == ERR_NOMEM) {
        json_decref(details);
        return memory_refuse_failed(w->md.all.data_bytes, e, r);
    }
    if (reason)
        json_object_set_new(details, "reason", json_string(reason));
    return refuse_with(r, REFUSAL_MODEL_LOAD_FAILED, details, "Model '%s' cannot be loaded: %s",
                       w->row.name, e->msg);
}

static int open_dir(struct row_work *w, struct refusal *r)
{
    const struct model_dir_rules rules = {.f32_ok = true};
    const char *reason = NULL;
    struct err e = {0};

    w->config = malloc(sizeof *w->config);
    if (!w->config)
        err_nomem(&e);
    else if ((w->dir_fd = fs_open_dir(w->row.local_path ? w->row.local_path : "", &e)) >= 0 &&
             model_open_dir(w->dir_fd, &rules, &w->md, w->config, &reason, &e) == 0)
        return 0;
    return refuse_load(w, &e, reason, r);
}

static void drop_resident(struct engine *en, void *arg)
{
    struct row_work *w = arg;
    struct served *served = engine_served(en);

    w->old_row = served ? served->row_id : 0;
    if (w->l->writer)
        state_load_begins(w->s, w->l->writer);
    resident_drop(w->s);
    state_changed(w->s);
}

/* Memory for both images, or (plan->drops) for the new one once the old one is gone. */
static int find_room(const struct row_work *w, struct row_plan *plan, struct refusal *r)
{
    struct service *s = w->s;
    struct err e = {0};
    size_t bytes = weights_bytes(&w->md.all, &e);

    *plan = (struct row_plan){.bytes = bytes};
    if (bytes == 0)
        return refuse_load(w, &e, NULL, r);
    if (memory_refuse(s, bytes, w->l->test_memory, r) == 0)
        return 0;
    refusal_clear(r);
    plan->drops = memory_resident_bytes(s) > 0;
    return memory_refuse_instead(s, bytes, w->l->test_memory, r);
}

static int make_room(struct row_work *w, struct refusal *r)
{
    struct service *s = w->s;
    struct row_plan plan;

    if (find_room(w, &plan, r) < 0)
        return -1;
    if (!plan.drops)
        return resident_wait_room(s, r);
    engine_call(s->engine, drop_resident, w);
    w->l->dropped = true;
    resident_note_rows(s, w->old_row, 0);
    engine_wait_images(s->engine, 0, (int64_t)(s->settings->graceful_unload_timeout_s * 1000));
    return 0;
}

static int read_image(struct row_work *w, struct refusal *r)
{
    struct image_load how = {
        .progress = may_go_on, .arg = w, .f32_ok = true, .with_code = w->row.trust_remote_code};
    struct err e = {0};
    char *path = fs_path_of(w->dir_fd, &e);

    if (path)
        w->image = image_load_opened(engine_bank(w->s->engine), &w->md, w->config, w->dir_fd, path,
                                     &how, &e);
    free(path);
    if (w->image && !(w->l->dropped && faults_take(w->s->faults, "load_name")))
        w->served = resident_of_row(&w->row);
    if (w->image && !w->served)
        err_nomem(&e);
    return w->served ? 0 : refuse_load(w, &e, how.reason, r);
}

static void swap(struct engine *en, void *arg)
{
    struct row_work *w = arg;
    struct served *before = engine_served(en);

    if (before)
        w->old_row = before->row_id;
    resident_become(w->s, w->image, w->served, OTHER_MODEL);
    w->image = NULL;
    w->served = NULL;
    w->s->weights->loading_row = 0;
    state_hold_end(w->s);
    if (w->s->weights->owner == OWNER_LOAD)
        w->s->weights->owner = OWNER_NONE;
    w->s->weights->draining = false;
    state_changed(w->s);
}

static void give_up(struct engine *en, void *arg)
{
    struct row_work *w = arg;

    (void)en;
    w->s->weights->loading_row = 0;
    if (w->s->weights->owner == OWNER_LOAD)
        w->s->weights->owner = OWNER_NONE;
    w->s->weights->draining = false;
    state_changed(w->s);
}

static void note_facts(struct row_work *w)
{
    int64_t memory_mb = (int64_t)(w->md.all.data_bytes >> 20) + 1;
    struct err e = {0};

    resident_note_rows(w->s, w->old_row, w->row.id);
    log_ev(LOG_INFO, "model_loaded", "row=%" PRId64 " ms=%.1f", w->row.id, w->l->ms);
    if (w->row.estimated_memory_mb == memory_mb)
        return;
    w->row.estimated_memory_mb = memory_mb;
    if (catalogue_set_facts(w->s->db, &w->row, &e) < 0)
        log_ev(LOG_WARNING, "catalogue_facts", "row=%" PRId64 " cause=\"%s\"", w->row.id, e.msg);
}

/* The row goes to error, unless it is the resident all the same (then it stays loaded) or nothing
 * is wrong with it: the client left, or the server is being stopped. */
static void note_failure(struct row_work *w, const struct refusal *r)
{
    struct served *now = engine_peek_served(w->s->engine);
    bool fine = r->code == REFUSAL_CLIENT_CLOSED_REQUEST || atomic_load(&w->s->stopping);
    enum model_status status = now && now->row_id == w->row.id ? MODEL_LOADED
                               : fine                          ? MODEL_READY
                                                               : MODEL_ERROR;

    if (w->row.id)
        row_status_note(w->s, w->row.id, status, status == MODEL_ERROR ? r->message : NULL);
    served_unref(now);
}

/* The row says that it is being loaded, and cannot be deleted from then on. */
static int claim_row(struct row_work *w, struct refusal *r)
{
    struct err e = {0};

    if (model_find(w->s, w->l->id, &w->row, r) < 0)
        return -1;
    if (w->row.status == MODEL_LOADING) /* each change of a row waits for the disk */
        return 0;
    if (row_status_set(w->s, w->l->id, MODEL_LOADING, &e) == 0)
        return 0;
    model_row_release(&w->row); /* nothing is wrong with the row: it does not go to error */
    return e.code == ERR_NOT_FOUND ? model_refuse_absent(w->l->id, r) : refuse_internal(r, &e);
}

static int work(struct row_work *w, struct refusal *r)
{
    if (claim_row(w, r) < 0)
        return -1;
    str_copy(w->l->name, sizeof w->l->name, w->row.name);
    if (open_dir(w, r) < 0 || make_room(w, r) < 0 || read_image(w, r) < 0)
        return -1;
    engine_call(w->s->engine, swap, w);
    return 0;
}

static void release(struct row_work *w)
{
    image_unref(w->image);
    served_unref(w->served);
    model_dir_close(&w->md);
    model_row_release(&w->row);
    fs_close(w->dir_fd);
    free(w->config);
}

int row_load_run(struct service *s, struct row_load *l, struct refusal *r)
{
    struct row_work w = {.s = s, .l = l, .dir_fd = -1};
    int64_t start = clock_mono_ns();
    int rc;

    if (l->timeout_ms)
        w.deadline_ns = start + l->timeout_ms * 1000000;
    rc = work(&w, r);
    l->ms = clock_ms_since(start);
    if (rc == 0) {
        note_facts(&w);
    } else {
        note_failure(&w, r);
        engine_call(s->engine, give_up, &w);
    }
    release(&w);
    return rc;
}

int row_load_plan(struct service *s, struct row_load *l, struct row_plan *out, struct refusal *r)
{
    struct row_work w = {.s = s, .l = l, .dir_fd = -1};
    int rc = model_find(s, l->id, &w.row, r);

    if (rc == 0)
        rc = open_dir(&w, r) < 0 ? -1 : find_room(&w, out, r);

    release(&w);
    return rc;
}
