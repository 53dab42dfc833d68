/* service/load.c - put a verified checkpoint, or a catalogue row's own files, in the place of the
 * resident weights.
 *
 * Three ways in: a swap of the image between two steps (nothing attached: nobody waits), a copy
 * into the memory of the resident (something is attached, or memory could not hold a second image;
 * running requests end first), and a reload that lets the old weights go before it reads the new
 * ones (too little memory, another shape). Only the last two can leave the weights torn. Docs:
 * docs/api/weights.md, docs/decisions/0010-barrier-message.md. */
#include "service/load.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/str.h"
#include "engine/engine.h"
#include "engine/image_bank.h"
#include "engine/snapshot.h"
#include "service/dir_facts.h"
#include "service/load_op.h"
#include "service/load_write.h"
#include "service/memory.h"
#include "service/resident.h"
#include "service/row_load.h"
#include "service/row_status.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weights.h"
#include "tensor/weights.h"

enum { LOAD_TRIES = 8 };

/* ---- refusals inside the barrier ---- */

static int check_unchanged(struct load_op *op, struct refusal *r)
{
    const char *changed = ckpt_reader_changed(op->reader);

    if (!changed)
        return 0;
    return refuse_with(r, REFUSAL_CHECKPOINT_HASH_MISMATCH,
                       json_pack("{s:s, s:s, s:n, s:s}", "reason", "file_changed", "expected",
                                 op->manifest.weights_sha256, "actual", "changed", changed),
                       "model.safetensors of %s changed after it was verified (%s); nothing was "
                       "written.",
                       op->at.path, changed);
}

static int check_same_resident(struct load_op *op, struct refusal *r)
{
    const struct served *served = op->op.served;
    const struct image *im = op->op.image;

    if (!op->in_place ||
        (im && served && strcmp(served->base_model, op->manifest.base_model) == 0 &&
         weights_same_layout(im->weights, &op->index)))
        return 0;
    return refuse_paused(OWNER_LOAD, r); /* another load came in between */
}

static int refuse_torn_load(struct load_op *op, const char *stage, const struct err *e,
                            struct refusal *r)
{
    return refuse_with(r, REFUSAL_WEIGHTS_LOAD_FAILED,
                       json_pack("{s:s, s:s, s:s}", "stage", stage, "mode",
                                 op->in_place ? "in_place" : "full_reload", "weights_state",
                                 "torn"),
                       "The load failed after the first write (%s): %s. The weights are torn; load "
                       "any checkpoint, or {\"model_id\": N}.",
                       stage, e->msg);
}

/* ---- the barrier ---- */

static void take_barrier(struct load_op *op)
{
    struct weights_state *w = op->op.s->weights;

    w->owner = OWNER_LOAD;
    w->draining = true;
    op->serial = w->attachment.serial;
    if (w->hold.on)
        state_hold_suspend(op->op.s);
}

/* `kept`: a holder that had quiesced gets its hold back, with the timer anew. */
static void leave_barrier(struct load_op *op, bool kept)
{
    struct weights_state *w = op->op.s->weights;

    w->draining = false;
    w->owner = w->hold.on ? OWNER_QUIESCE : OWNER_NONE;
    if (w->hold.on && !kept)
        state_hold_end(op->op.s);
    state_hold_restart(op->op.s);
}

static const char *who(const struct load_op *op)
{
    return op->op.owner ? op->op.owner->identity : "server";
}

static void begin_writing(struct load_op *op)
{
    resident_remove_adapter(op->op.s);
    state_load_begins(op->op.s, who(op));
}

static void become_torn(struct load_op *op)
{
    op->op.s->weights->condition = WEIGHTS_TORN;
    leave_barrier(op, false);
    log_ev(LOG_ERROR, "weights_torn", "checkpoint=\"%s\" why=load_failed", op->op.audit.checkpoint);
}

static struct served *name_of(const struct load_op *op, int64_t row)
{
    struct served next = {.checkpoint = true, .row_id = row};

    if (faults_take(op->op.s->faults, "load_name"))
        return NULL;
    str_copy(next.name, sizeof next.name, op->manifest.name);
    str_copy(next.base_model, sizeof next.base_model, op->manifest.base_model);
    memcpy(next.manifest_sha256, op->manifest.sha256, sizeof next.manifest_sha256);
    memcpy(next.weights_sha256, op->sha256, sizeof next.weights_sha256);
    return served_new(&next);
}

/* ---- a swap ---- */

static int swap(struct op *base, struct refusal *r)
{
    struct load_op *op = (struct load_op *)base;
    struct served *before = engine_served(base->s->engine);
    struct served *next;

    if (before) /* else it was let go already */
        op->old_row = before->row_id;
    next = name_of(op, op->in_place ? op->old_row : op->carrier);
    if (!next) {
        leave_barrier(op, true);
        return refuse_no_memory(r);
    }
    resident_become(base->s, op->image, next, op->in_place ? SAME_MODEL : OTHER_MODEL);
    op->image = NULL;
    leave_barrier(op, false);
    return 0;
}

/* ---- the reservation: which way, decided together with the state-dependent refusals ---- */

static int reserve(struct op *base, struct refusal *r)
{
    struct load_op *op = (struct load_op *)base;

    if (check_client(op, r) < 0 || check_same_resident(op, r) < 0 || check_unchanged(op, r) < 0)
        return -1;
    op->again = false;
    op->through_arena = op->in_place && (base->w->attachment.present || !op->image);
    if (op->in_place && !op->through_arena)
        return swap(base, r);
    take_barrier(op);
    return 0;
}

/* ---- in place, into the resident's memory ---- */

static int write_in_place(struct op *base, struct refusal *r)
{
    struct load_op *op = (struct load_op *)base;
    struct image *im = engine_resident(base->s->engine);
    bool kept = proof_matches(&base->w->attachment, &base->proof);
    struct err e = {0};
    int64_t start;
    struct served *next;

    op->again = base->w->attachment.serial != op->serial || base->w->attachment.leaving;
    if (op->again) {
        leave_barrier(op, kept);
        return 0;
    }
    next = name_of(op, base->served->row_id);
    if (!op->drained || check_unchanged(op, r) < 0 || !next ||
        snapshot_detach_all(base->s->engine, im, &e) < 0) {
        leave_barrier(op, true);
        served_unref(next);
        if (!op->drained && check_client(op, r) < 0)
            return -1;
        if (!op->drained)
            return refuse_drain(base->s, base->s->settings->drain_timeout_s, r);
        return r->code ? -1 : memory_refuse_failed(im->weights->bytes, &e, r);
    }
    begin_writing(op);
    image_bank_forget(im->bank, im);
    start = clock_mono_ns();
    if (load_write(op, im, &e) < 0) {
        become_torn(op);
        served_unref(next);
        return refuse_torn_load(op, "copy", &e, r);
    }
    op->write_ms = clock_ms_since(start);
    resident_rewritten(base->s, next);
    leave_barrier(op, kept);
    return 0;
}

static int load_through_arena(struct load_op *op, struct refusal *r)
{
    op->drained = op_wait_drained(&op->op, op->serial);
    return op_on_engine(&op->op, NULL, write_in_place, r);
}

/* ---- full reload ---- */

static int cancel_barrier(struct op *base, struct refusal *r)
{
    (void)r;
    leave_barrier((struct load_op *)base, true);
    return 0;
}

static int register_carrier(struct load_op *op, struct refusal *r)
{
    struct model_row row = {0};
    struct err e = {0};
    bool ordinary = false;

    op->carrier_new = catalogue_get_by_path(op->op.s->db, op->dir, &row, &e) < 0;
    model_row_release(&row);
    if (op->carrier_new && e.code != ERR_NOT_FOUND)
        return refuse_internal(r, &e);
    if (catalogue_carrier(op->op.s->db, op->manifest.name, op->dir, true, &op->carrier, &ordinary,
                          &e) == 0) {
        row_status_forget(op->op.s, op->carrier);
        return 0;
    }
    if (e.code != ERR_CONFLICT)
        return refuse_internal(r, &e);
    return load_refuse_registered(op, op->carrier, op->manifest.name,
                                  ordinary ? "directory" : "name", r);
}

/* The old weights are let go: from here on a failure leaves the weights torn. */
static int let_go(struct op *base, struct refusal *r)
{
    struct load_op *op = (struct load_op *)base;

    (void)r;
    op->old_row = base->served ? base->served->row_id : 0;
    begin_writing(op);
    resident_drop(base->s);
    return 0;
}

static int fail_torn(struct op *base, struct refusal *r)
{
    (void)r;
    become_torn((struct load_op *)base);
    return 0;
}

/* Two passes: there is no memory for both images, so the file is read again after the old one is
 * gone. */
static int reload_in_two_passes(struct load_op *op, struct refusal *r)
{
    struct service *s = op->op.s;
    struct err e = {0};

    op_on_engine(&op->op, NULL, let_go, r);
    engine_wait_images(s->engine, 0, (int64_t)(s->settings->graceful_unload_timeout_s * 1000));
    op->image = load_read_again(op, &e);
    if (op->image && op_on_engine(&op->op, NULL, swap, r) == 0)
        return 0;
    if (op->image)
        err_nomem(&e);
    op_on_engine(&op->op, NULL, fail_torn, r);
    resident_note_rows(s, op->old_row, 0);
    return refuse_torn_load(op, "read", &e, r);
}

/* What its row tells of a model is not in the manifest: it is read from the files once. */
static void note_facts(struct load_op *op)
{
    struct model_row row = {0};
    struct dir_facts f;
    struct err e = {0};

    if (catalogue_get(op->op.s->db, op->carrier, &row, &e) == 0 && !row.supports_embeddings) {
        dir_facts_read(&f, op->dir, op->trust_remote_code);
        dir_facts_to_row(&f, &row);
        dir_facts_release(&f);
        if (catalogue_set_facts(op->op.s->db, &row, &e) < 0)
            log_ev(LOG_WARNING, "catalogue_facts", "row=%" PRId64 " cause=\"%s\"", row.id, e.msg);
    }
    model_row_release(&row);
}

static int load_full(struct load_op *op, struct refusal *r)
{
    struct err e = {0};
    int rc = register_carrier(op, r);

    if (rc < 0) {
        op_on_engine(&op->op, NULL, cancel_barrier, r);
        return -1;
    }
    rc = op->image ? op_on_engine(&op->op, NULL, swap, r) : reload_in_two_passes(op, r);
    if (rc == 0) {
        resident_note_rows(op->op.s, op->old_row, op->carrier);
        note_facts(op);
    } else if (!op->carrier_new) {
        resident_note_rows(op->op.s, 0, op->carrier);
    } else if (catalogue_delete(op->op.s->db, op->carrier, &e) < 0) {
        log_ev(LOG_WARNING, "carrier_row", "cause=\"%s\"", e.msg);
        resident_note_rows(op->op.s, 0, op->carrier); /* it stays, and can be deleted */
    }
    return rc;
}

/* ---- a checkpoint ---- */

/* Running requests may still hold an image of this very file: it becomes the resident again, and no
 * image more is alive. Not the resident itself: loading it again is the way to mend it. */
static bool take_alive(struct load_op *op)
{
    struct engine *en = op->op.s->engine;
    struct image *resident = engine_peek_image(en);

    op->image = image_bank_find(engine_bank(en), op->sha256, op->files, resident);
    image_unref(resident);
    if (!op->image)
        return false;
    image_staging_release(&op->staged);
    log_ev(LOG_INFO, "weights_load_image_alive", "checkpoint=\"%s\" epoch=%" PRIu64,
           op->manifest.name, op->image->epoch);
    return true;
}

static int adopt_staged(struct load_op *op, struct refusal *r)
{
    const char *reason = NULL;
    struct err e = {0};

    if (take_alive(op) || !op->staged.weights)
        return 0;
    op->image = image_adopt(&op->staged, op->files, &reason, &e);
    if (!op->image)
        return refuse_internal(r, &e);
    image_bank_know(op->image->bank, op->image, op->sha256);
    return op->op.w->attachment.present ? 0 : resident_wait_room(op->op.s, r);
}

static int load_checkpoint(struct load_op *op, struct refusal *r)
{
    int64_t start;

    if (refusal_walk(load_file_rules, op, r) < 0 || refusal_walk(load_mode_rules, op, r) < 0 ||
        adopt_staged(op, r) < 0)
        return -1;
    faults_verify_delay(op->op.s->faults);
    for (int i = 0; i < LOAD_TRIES; i++) {
        int rc;

        start = clock_mono_ns();
        if (op_on_engine(&op->op, load_barrier_rules, reserve, r) < 0)
            return -1;
        rc = op->through_arena ? load_through_arena(op, r) : op->in_place ? 0 : load_full(op, r);
        if (rc < 0 || !op->again) {
            if (op->write_ms == 0)
                op->write_ms = clock_ms_since(start);
            return rc;
        }
    }
    return refuse_paused(OWNER_LOAD, r);
}

/* ---- a catalogue row ---- */

static int claim_row(struct op *base, struct refusal *r)
{
    struct load_op *op = (struct load_op *)base;

    if (check_client(op, r) < 0)
        return -1;
    base->s->weights->loading_row = op->model_id;
    resident_log_discarded(base->served);
    return 0;
}

static int load_row(struct load_op *op, struct refusal *r)
{
    struct row_load l = {
        .id = op->model_id, .gone = op->op.req->gone, .test_memory = true, .writer = who(op)};
    struct err e = {0};

    op->op.audit.mode = "full_reload";
    str_copy(op->op.audit.checkpoint, sizeof op->op.audit.checkpoint, op->row.name);
    if (load_gpu_refuse(op->gpu, r) < 0 ||
        op_on_engine(&op->op, load_barrier_rules, claim_row, r) < 0)
        return -1;
    if (row_load_run(op->op.s, &l, r) == 0) {
        op->write_ms = l.ms;
        return 0;
    }
    if (!l.dropped)
        return -1;
    memcpy(e.msg, r->message, sizeof e.msg - 1);
    op_on_engine(&op->op, NULL, fail_torn, r);
    return refuse_torn_load(op, "load", &e, r);
}

/* ---- the call ---- */

void load_op_release(struct load_op *op)
{
    resolved_release(&op->at);
    manifest_release(&op->manifest);
    model_row_release(&op->row);
    ckpt_reader_close(op->reader);
    st_index_release(&op->index);
    image_staging_release(&op->staged);
    image_files_unref(op->files);
    image_unref(op->image);
    free(op->dir);
}

static json_t *answer(const struct load_op *op)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:s, s:i}", "name",
                     op->by_id ? op->row.name : op->manifest.name, "mode",
                     op->in_place ? "in_place" : "full_reload", "weights_sha256",
                     json_text(op->by_id ? NULL : op->sha256), "manifest_sha256",
                     json_text(op->by_id ? NULL : op->manifest.sha256), "verify_ms",
                     json_ms(op->verify_ms), "write_ms", json_ms(op->write_ms), "weights_state",
                     condition_name(WEIGHTS_CLEAN), "steps_since_load", 0);
}

static int run(struct load_op *op, const struct refusal_rule *rules, struct refusal *r)
{
    if (refusal_walk(rules, op, r) < 0)
        return -1;
    return op->by_id ? load_row(op, r) : load_checkpoint(op, r);
}

int weights_load(struct service *s, const struct weights_req *req, json_t **data, struct refusal *r)
{
    struct load_op op = {.at = {.dir_fd = -1}};
    int rc;

    op_begin(&op.op, s, req, "weights_load");
    rc = run(&op, load_rules, r);
    *data = rc == 0 ? answer(&op) : NULL;
    rc = op_end(&op.op, 200, rc, r);
    load_op_release(&op);
    return rc;
}

int load_at_start(struct service *s, const char *name, struct refusal *r)
{
    static const struct weights_req nobody;
    enum { REQUEST_RULES = 2 }; /* token and body: there is no caller */
    struct load_op op = {.at = {.dir_fd = -1}};
    json_t *text = json_string(name);
    int rc;

    op_begin(&op.op, s, &nobody, "weights_load");
    op.name = text;
    rc = text
             ? run(&op, load_rules + REQUEST_RULES, r)
             : refuse(r, REFUSAL_INTERNAL_ERROR, "Out of memory, or AUTO_LOAD_MODEL is not UTF-8.");
    rc = op_end(&op.op, 200, rc, r);
    load_op_release(&op);
    json_decref(text);
    return rc;
}
