#include "service/adapters.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/str.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "model/adapter.h"
#include "model/model.h"
#include "service/body.h"
#include "service/op.h"
#include "service/resident.h"
#include "service/service.h"
#include "service/times.h"

struct adapter_op {
    struct op op; /* first: the checks take a struct op */
    const char *name;
    double scale;
    int dir_fd;              /* of `name`; -1 before it is found */
    struct adapter *adapter; /* counted: what is to be applied; NULL: remove */
    uint64_t load_counter;   /* of the weights it was checked against */
    bool drained;
    json_t *data;
};

/* ---- directories ---- */

static bool is_name(const char *s)
{
    size_t n = strlen(s);

    if (n < 1 || n > ADAPTER_NAME_MAX || !isalnum((unsigned char)s[0]))
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("._-", *s))
            return false;
    return true;
}

/* The adapter's directory, or -1: ERR_NOT_FOUND also where no ADAPTER_DIR is configured. */
static int open_adapter(const struct settings *set, const char *name, struct err *e)
{
    int top, fd;

    if (!set->adapter_dir)
        return err_set(e, ERR_NOT_FOUND, "ADAPTER_DIR is not set");
    top = fs_open_dir(set->adapter_dir, e);
    if (top < 0)
        return -1;
    fd = fs_open_beneath(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, FS_LINKS_INSIDE, e);
    fs_close(top);
    return fd;
}

static int refuse_problem(const struct adapter_problem *p, const struct err *e, struct refusal *r)
{
    static const char *const reasons[] = {
        [ADAPTER_BAD_CONFIG] = "config", [ADAPTER_BAD_WEIGHTS] = "weights",
        [ADAPTER_BAD_SHAPE] = "shape",   [ADAPTER_BAD_MODULE] = "module",
        [ADAPTER_BAD_PAIR] = "pair",
    };

    if (p->fault == ADAPTER_FAILED || p->fault == ADAPTER_OK)
        return refuse_internal(r, e);
    if (p->fault == ADAPTER_BAD_CONFIG || p->fault == ADAPTER_BAD_WEIGHTS)
        return refuse_with(r, REFUSAL_ADAPTER_INVALID,
                           json_pack("{s:s, s:o, s:s}", "reason", reasons[p->fault], "field",
                                     json_text(p->field), "problem", e->msg),
                           "The adapter cannot be used: %s.", e->msg);
    return refuse_with(r, REFUSAL_ADAPTER_INCOMPATIBLE,
                       json_pack("{s:s, s:O}", "reason", reasons[p->fault], "tensors", p->tensors),
                       "The adapter does not fit the resident model: %s.", e->msg);
}

/* ---- checks ---- */

static int check_apply_body(void *ctx, struct refusal *r)
{
    static const char *const keys[] = {"name", "scale"};
    struct adapter_op *op = ctx;
    struct body b = {.object = op->op.req->body};

    if (check_object(ctx, r) < 0)
        return -1;
    body_known_keys(&b, keys, 2);
    body_str(&b, "name", 0, &op->name);
    body_num(&b, "scale", &op->scale);
    if (!op->name && !b.errors)
        body_error(&b, "name", "missing", "must be the name of an adapter");
    return body_refuse(&b, r);
}

static int check_adapter_name(void *ctx, struct refusal *r)
{
    struct adapter_op *op = ctx;
    struct err e = {0};

    if (is_name(op->name))
        op->dir_fd = open_adapter(op->op.s->settings, op->name, &e);
    if (op->dir_fd >= 0)
        return 0;
    return refuse_with(r, REFUSAL_ADAPTER_NOT_FOUND, json_pack("{s:s}", "name", op->name),
                       "There is no adapter '%.128s' in ADAPTER_DIR; GET /api/adapters lists them.",
                       op->name);
}

/* Read here, on the calling thread: the barrier only changes a pointer. */
static int check_adapter(void *ctx, struct refusal *r)
{
    struct adapter_op *op = ctx;
    struct image *im = engine_peek_image(op->op.s->engine);
    struct adapter_problem p = {0};
    struct err e = {0};
    int rc = 0;

    if (!im || !op->op.served) {
        image_unref(im);
        return check_resident(ctx, r);
    }
    op->load_counter = op->op.w->load_counter;
    op->adapter = adapter_read(op->dir_fd, op->name, op->scale, &im->model->config, false, &p, &e);
    if (!op->adapter)
        rc = refuse_problem(&p, &e, r);
    adapter_problem_clear(&p);
    image_unref(im);
    return rc;
}

/* While attached: the holder, or an operator. */
static int check_may_change(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;

    if (!op->w->attachment.present || proof_matches(&op->w->attachment, &op->proof) ||
        op->owner->role == ROLE_OPERATOR)
        return 0;
    return refuse_attached(op, NULL, r);
}

static int check_adapter_lease(void *ctx, struct refusal *r)
{
    return refuse_leased(ctx, "adapter", 0, r);
}

/* The holder may change it inside the own quiesce. */
static int check_pause(void *ctx, struct refusal *r)
{
    const struct op *op = ctx;
    bool own = op->w->hold.on && proof_matches(&op->w->attachment, &op->proof);

    return op->w->owner == OWNER_NONE || (op->w->owner == OWNER_QUIESCE && own)
               ? 0
               : refuse_paused(op->w->owner, r);
}

const struct refusal_rule adapter_apply_rules[] = {
    {"token", check_token},
    {"body", check_apply_body},
    {"MODEL_NOT_LOADED", check_resident},
    {"ADAPTER_NOT_FOUND", check_adapter_name},
    {"ADAPTER_INVALID", check_adapter},
    {"ALREADY_ATTACHED", check_may_change},
    {"MODEL_LEASED", check_adapter_lease},
    {"BARRIER_UNAVAILABLE", check_barrier},
    {"PAUSE_IN_PROGRESS", check_pause},
    {"WEIGHTS_NOT_CLEAN", check_clean},
    {"MODEL_BUSY", check_loads},
    {0},
};

const struct refusal_rule adapter_remove_rules[] = {
    {"token", check_token},
    {"body", check_empty},
    {"MODEL_NOT_LOADED", check_resident},
    {"ALREADY_ATTACHED", check_may_change},
    {"BARRIER_UNAVAILABLE", check_barrier},
    {"PAUSE_IN_PROGRESS", check_pause},
    {"WEIGHTS_NOT_CLEAN", check_clean},
    {"MODEL_BUSY", check_loads},
    {0},
};

static int check_lease_of_apply(void *ctx, struct refusal *r)
{
    return ((const struct adapter_op *)ctx)->adapter ? check_adapter_lease(ctx, r) : 0;
}

/* Again on the engine thread, together with the reservation. */
const struct refusal_rule adapter_barrier_rules[] = {
    {"MODEL_NOT_LOADED", check_resident},
    {"ALREADY_ATTACHED", check_may_change},
    {"MODEL_LEASED", check_lease_of_apply},
    {"PAUSE_IN_PROGRESS", check_pause},
    {"WEIGHTS_NOT_CLEAN", check_clean},
    {"MODEL_BUSY", check_loads},
    {0},
};

/* ---- the change ---- */

/* Other weights came since the adapter was checked against them. */
static bool is_outdated(const struct adapter_op *op)
{
    return op->adapter && op->load_counter != op->op.w->load_counter;
}

static int take_barrier(struct op *base, struct refusal *r)
{
    const struct adapter_op *op = (const struct adapter_op *)base;
    struct weights_state *w = base->s->weights;

    if (is_outdated(op))
        return refuse_paused(OWNER_LOAD, r);
    w->owner = OWNER_ADAPTER;
    w->draining = true;
    if (w->hold.on)
        state_hold_suspend(base->s);
    return 0;
}

static void leave_barrier(struct service *s)
{
    struct weights_state *w = s->weights;

    w->draining = false;
    w->owner = w->hold.on ? OWNER_QUIESCE : OWNER_NONE;
    state_hold_restart(s);
}

static json_t *applied_object(const struct applied_adapter *a)
{
    if (!a->any)
        return json_null();
    return json_pack("{s:s, s:f, s:o, s:i}", "name", a->name, "scale", a->scale, "applied_at",
                     json_time(a->applied_ms), "modules", a->n_modules);
}

static int apply(struct adapter_op *op, struct refusal *r)
{
    struct service *s = op->op.s;
    struct applied_adapter *a = &s->weights->adapter;
    struct served *next = served_new(op->op.served);

    if (!next)
        return refuse_no_memory(r);
    str_copy(next->adapter, sizeof next->adapter, op->adapter->name);
    *a = (struct applied_adapter){.any = true,
                                  .scale = op->adapter->scale,
                                  .applied_ms = clock_wall_ms(),
                                  .n_modules = op->adapter->n_modules};
    str_copy(a->name, sizeof a->name, op->adapter->name);
    engine_set_adapter(s->engine, op->adapter);
    op->adapter = NULL;
    engine_set_served(s->engine, next);
    op->data = applied_object(a);
    return 0;
}

static void remove_applied(struct adapter_op *op)
{
    struct service *s = op->op.s;

    op->data = json_pack("{s:o}", "removed", json_text(s->weights->adapter.name));
    resident_remove_adapter(s);
}

static int finish(struct op *base, struct refusal *r)
{
    struct adapter_op *op = (struct adapter_op *)base;
    const struct weights_state *w = base->s->weights;
    int rc = 0;

    if (!op->drained && check_client(op, r) < 0)
        rc = -1;
    else if (!op->drained)
        rc = refuse_drain(base->s, base->s->settings->drain_timeout_s, r);
    else if (!base->served || is_outdated(op) || w->condition != WEIGHTS_CLEAN)
        rc = refuse_paused(OWNER_LOAD, r);
    else if (op->adapter)
        rc = apply(op, r);
    else
        remove_applied(op);
    leave_barrier(base->s);
    return rc;
}

static int change(struct adapter_op *op, struct refusal *r)
{
    if (op_on_engine(&op->op, adapter_barrier_rules, take_barrier, r) < 0)
        return -1;
    op->drained = op_wait_drained(&op->op, 0);
    return op_on_engine(&op->op, NULL, finish, r);
}

/* ---- the calls ---- */

int adapters_apply(struct service *s, const struct weights_req *req, json_t **data,
                   struct refusal *r)
{
    struct adapter_op op = {.scale = 1, .dir_fd = -1};
    int rc;

    op_begin(&op.op, s, req, "weights_adapter_apply");
    rc = refusal_walk(adapter_apply_rules, &op, r);
    if (rc == 0)
        rc = change(&op, r);
    *data = op.data;
    fs_close(op.dir_fd);
    adapter_unref(op.adapter);
    return op_end(&op.op, 200, rc, r);
}

int adapters_remove(struct service *s, const struct weights_req *req, json_t **data,
                    struct refusal *r)
{
    struct adapter_op op = {0};
    int rc;

    op_begin(&op.op, s, req, "weights_adapter_remove");
    rc = refusal_walk(adapter_remove_rules, &op, r);
    if (rc == 0)
        rc = change(&op, r);
    *data = op.data;
    return op_end(&op.op, 200, rc, r);
}

/* ---- the list ---- */

static int64_t bytes_of(int dir_fd)
{
    struct stat st;

    return fstatat(dir_fd, "adapter_model.safetensors", &st, 0) == 0 ? (int64_t)st.st_size : 0;
}

static json_t *or_null(const json_t *config, const char *key)
{
    json_t *v = json_object_get(config, key);

    return v ? json_incref(v) : json_null();
}

static json_t *entry_object(const char *name, int fd, const struct image *im)
{
    struct adapter_problem p = {0}, unused = {0};
    struct err e = {0}, ignored = {0};
    json_t *config = adapter_config_read(fd, &unused, &ignored);
    json_t *o;

    if (im)
        adapter_read(fd, name, 1, &im->model->config, true, &p, &e);
    else
        err_set(&e, ERR_NOT_FOUND, "no model is loaded");
    o = json_pack("{s:s, s:o, s:o, s:o, s:o, s:I, s:b, s:o}", "name", name, "r",
                  or_null(config, "r"), "lora_alpha", or_null(config, "lora_alpha"),
                  "target_modules", or_null(config, "target_modules"), "base_model_name_or_path",
                  or_null(config, "base_model_name_or_path"), "bytes", (json_int_t)bytes_of(fd),
                  "applicable", im && p.fault == ADAPTER_OK, "problem", json_text(e.msg));
    adapter_problem_clear(&p);
    adapter_problem_clear(&unused);
    json_decref(config);
    return o;
}

static int is_candidate(const struct dirent *d)
{
    return is_name(d->d_name);
}

static json_t *list_dir(const struct service *s)
{
    struct image *im = engine_peek_image(s->engine);
    json_t *list = json_array();
    struct dirent **found = NULL;
    int n = s->settings->adapter_dir
                ? scandir(s->settings->adapter_dir, &found, is_candidate, alphasort)
                : 0;

    for (int i = 0; i < n; i++) {
        struct err e = {0};
        int fd = open_adapter(s->settings, found[i]->d_name, &e);

        if (fd >= 0)
            json_array_append_new(list, entry_object(found[i]->d_name, fd, im));
        fs_close(fd);
        free(found[i]);
    }
    free(found);
    image_unref(im);
    return list;
}

int adapters_list(struct service *s, json_t **data, struct refusal *r)
{
    struct weights_state w;

    (void)r;
    state_read(s, &w, NULL);
    *data = json_pack("{s:o, s:o}", "adapters", list_dir(s), "applied", applied_object(&w.adapter));
    return 0;
}
