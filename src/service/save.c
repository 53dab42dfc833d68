/* service/save.c - write the resident's weights as a checkpoint, without stopping serving.
 *
 * The snapshot is an instant between two steps: refusals that depend on state, and the pin of the
 * image. Files are written from that image on the calling thread while serving goes on; a writer in
 * place copies first what is not written yet (engine/snapshot.h). Then the resident is renamed,
 * unless a load replaced the weights meanwhile. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "engine/companions.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "engine/snapshot.h"
#include "service/metrics.h"
#include "service/save_op.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weights.h"
#include "store/manifest.h"
#include "store/roots.h"
#include "tensor/weights.h"

/* ---- the instant ---- */

bool save_parent_matches(const json_t *manifest, const struct served *served)
{
    const json_t *parent = json_object_get(manifest, "parent");

    if (!served->checkpoint)
        return json_is_null(parent);
    return json_is_string(parent) && strcmp(json_string_value(parent), served->name) == 0;
}

static int take_snapshot(struct op *base, struct refusal *r)
{
    struct save_op *op = (struct save_op *)base;
    struct weights_state *w = base->s->weights;
    int64_t start = clock_mono_ns();
    struct err e = {0};

    op->renamed = served_new(base->served);
    if (!op->renamed)
        return refuse_no_memory(r);
    op->snapshot = snapshot_begin(base->s->engine, engine_resident(base->s->engine), &e);
    if (!op->snapshot)
        return refuse_internal(r, &e);
    image_unref(op->image);
    op->image = image_ref(engine_resident(base->s->engine));
    op->created_ms = clock_wall_ms();
    op->commits_ever = w->commits_ever;
    op->load_counter = w->load_counter;
    op->parent_match = save_parent_matches(op->manifest, base->served);
    str_copy(op->base_model, sizeof op->base_model, base->served->base_model);
    w->save = (struct save_slot){.busy = true, .started_ms = op->created_ms};
    str_copy(w->save.name, sizeof w->save.name, buf_str(&op->name));
    state_save_stage(base->s, publish_stage_name(PUBLISH_PREPARE));
    state_hold_restart(base->s);
    op->pause_end_ns = clock_mono_ns();
    op->snapshot_ms = (double)(op->pause_end_ns - start) / 1e6;
    metrics_snapshot(base->s->metrics, op->snapshot_ms);
    return 0;
}

/* ---- writing ---- */

/* On a helper's thread, or the one that publishes. */
static int read_snapshot(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    struct save_op *op = arg;

    core_loan_wait(&op->loan);
    return snapshot_read(op->snapshot, to, offset, n, e);
}

static void note_stage(void *arg, enum publish_stage stage, int64_t done, int64_t total)
{
    struct save_op *op = arg;

    (void)total;
    core_loan_update(&op->loan);
    if (done == 0 && op->snapshot)
        state_save_stage(op->op.s, publish_stage_name(stage));
}

/* config.json as a checkpoint has it: both spellings of the dtype that is in the file, no
 * quantization. */
static int write_config(const struct image *im, const char *text, size_t n, struct buf *out,
                        struct err *e)
{
    const char *dtype = im->weights->tensors[0].dtype == DTYPE_F16    ? "float16"
                        : im->weights->tensors[0].dtype == DTYPE_BF16 ? "bfloat16"
                                                                      : "float32";
    json_t *config = json_parse(text, n, e);

    if (!json_is_object(config)) {
        json_decref(config);
        return err_set(e, ERR_FORMAT, "config.json of the resident is not a JSON object");
    }
    json_object_set_new(config, "dtype", json_string(dtype));
    json_object_set_new(config, "torch_dtype", json_string(dtype));
    json_object_del(config, "quantization_config");
    json_write_pretty(out, config);
    buf_add_char(out, '\n');
    json_decref(config);
    return out->failed ? err_nomem(e) : 0;
}

/* The companions as files to publish: an owned array. `config` keeps the rewritten config.json. */
static struct publish_file *companion_files(const struct save_op *op, struct buf *config, int *n,
                                            struct err *e)
{
    const struct image *im = op->image;
    const struct companions *c = im->files->companions;
    int count = companions_count(c);
    struct publish_file *files = calloc((size_t)count + 1, sizeof *files);

    if (!files) {
        err_nomem(e);
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        struct companion one = companions_at(c, i);

        files[i] = (struct publish_file){.name = one.name, .bytes = one.data, .n = one.bytes};
        if (strcmp(one.name, "config.json") != 0)
            continue;
        if (op->config)
            one = (struct companion){one.name, op->config->data, op->config->len};
        if (write_config(im, one.data, one.bytes, config, e) < 0) {
            free(files);
            return NULL;
        }
        files[i].bytes = config->data;
        files[i].n = config->len;
    }
    *n = count;
    return files;
}

static int publish_checkpoint(struct save_op *op, const struct publish_file *files, int n_files,
                              struct err *e)
{
    struct service *s = op->op.s;
    struct manifest_draft draft = {
        .caller = op->manifest, .base_model = op->base_model, .created_ms = op->created_ms};
    struct publish_req req = {
        .root_fd = roots_dir(s->roots, ROOTS_PRIMARY, e),
        .run_dir = op->run_id,
        .final_name = op->dir,
        .weights_name = "model.safetensors",
        .weights = op->source.read ? op->source
                                   : (struct ckpt_source){(int64_t)snapshot_bytes(op->snapshot),
                                                          read_snapshot, op},
        .files = files,
        .n_files = n_files,
        .manifest_name = MANIFEST_FILE,
        .manifest = manifest_write,
        .manifest_arg = &draft,
        .move_latest = true,
        .progress = note_stage,
        .progress_arg = op,
        .stop = s->cut,
        .leftovers = s->leftovers,
        .faults = s->faults,
    };
    int rc;

    if (req.root_fd < 0)
        return -1;
    op->loan.engine = s->engine;
    core_loan_update(&op->loan);
    rc = publish(&req, &op->result, e);
    core_loan_end(&op->loan);
    close(req.root_fd);
    return rc;
}

int save_write_files(struct save_op *op, struct err *e)
{
    struct buf config = {0};
    int n = 0, rc = -1;
    struct publish_file *files = companion_files(op, &config, &n, e);

    if (files)
        rc = publish_checkpoint(op, files, n, e);
    op->write_ms = clock_ms_since(op->pause_end_ns);
    if (rc == 0)
        metrics_saved(op->op.s->metrics, op->result.bytes, op->write_ms);
    free(files);
    buf_release(&config);
    return rc;
}

/* ---- afterwards ---- */

/* The resident takes the checkpoint's name; commits that ended since the snapshot are not in the
 * files. */
static void rename_resident(struct save_op *op)
{
    struct service *s = op->op.s;
    struct served *now = engine_served(s->engine), *next = op->renamed;

    if (!now || s->weights->load_counter != op->load_counter)
        return;
    op->renamed = NULL;
    served_fill(next, now);
    str_copy(next->name, sizeof next->name, buf_str(&op->name));
    next->checkpoint = true;
    next->commits = s->weights->commits_ever - op->commits_ever;
    memcpy(next->weights_sha256, op->result.weights_sha256, sizeof next->weights_sha256);
    memcpy(next->manifest_sha256, op->result.manifest_sha256, sizeof next->manifest_sha256);
    engine_set_served(s->engine, next);
    op->identity_set = true;
}

static void note_last_save(struct save_op *op)
{
    struct last_save *l = &op->op.s->weights->last_save;

    *l = (struct last_save){.any = true,
                            .bytes = op->result.bytes,
                            .saved_ms = clock_wall_ms(),
                            .identity_set = op->identity_set,
                            .parent_match = op->parent_match};
    str_copy(l->name, sizeof l->name, buf_str(&op->name));
    str_copy(l->path, sizeof l->path, op->path);
    memcpy(l->weights_sha256, op->result.weights_sha256, sizeof l->weights_sha256);
    memcpy(l->manifest_sha256, op->result.manifest_sha256, sizeof l->manifest_sha256);
}

static int finish(struct op *base, struct refusal *r)
{
    struct save_op *op = (struct save_op *)base;

    (void)r;
    base->s->weights->save = (struct save_slot){0};
    if (!op->result.published)
        return 0;
    rename_resident(op);
    note_last_save(op);
    return 0;
}

json_t *save_answer(const struct save_op *op)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:o, s:o, s:s, s:s, s:b}", "name",
                     buf_str(&op->name), "path", op->path, "weights_sha256",
                     op->result.weights_sha256, "manifest_sha256", op->result.manifest_sha256,
                     "bytes", (json_int_t)op->result.bytes, "snapshot_ms", json_ms(op->snapshot_ms),
                     "write_ms", json_ms(op->write_ms), "parent_check",
                     op->parent_match ? "match" : "mismatch", "latest", op->dir, "identity_set",
                     op->identity_set);
}

int save_refuse_write(const struct save_op *op, const struct err *e, struct refusal *r)
{
    const char *stage = publish_stage_name(op->result.stage < PUBLISH_N_STAGES ? op->result.stage
                                                                               : PUBLISH_PREPARE);
    json_t *details;

    if (op->result.exists)
        return refuse_with(r, REFUSAL_CHECKPOINT_EXISTS,
                           json_pack("{s:s, s:s}", "name", buf_str(&op->name), "path", op->path),
                           "%s exists already; a published checkpoint never changes.", op->path);
    details = op->result.published ? save_answer(op) : json_object();
    json_object_set_new(details, "stage", json_string(stage));
    json_object_set_new(details, "errno", e->sys ? json_integer(e->sys) : json_null());
    json_object_set_new(details, "published", json_boolean(op->result.published));
    json_object_set_new(details, "path", json_string(op->path));
    if (op->result.published)
        return refuse_with(r, REFUSAL_CHECKPOINT_WRITE_FAILED, details,
                           "The checkpoint %s is published and valid, but stage '%s' failed: %s",
                           op->path, stage, e->msg);
    return refuse_with(r, REFUSAL_CHECKPOINT_WRITE_FAILED, details,
                       "Writing %s failed at stage '%s': %s. %s", op->path, stage, e->msg,
                       op->result.left
                           ? "What was written could not be removed; that is tried again."
                           : "Nothing was left behind.");
}

static int save(struct save_op *op, struct refusal *r)
{
    struct err e = {0};
    int rc;

    op->image = engine_peek_image(op->op.s->engine);
    if (refusal_walk(save_rules, op, r) < 0 ||
        op_on_engine(&op->op, save_barrier_rules, take_snapshot, r) < 0)
        return -1;
    rc = save_write_files(op, &e);
    snapshot_end(op->snapshot);
    op->snapshot = NULL;
    op_on_engine(&op->op, NULL, finish, r);
    return rc < 0 ? save_refuse_write(op, &e, r) : 0;
}

void save_fill_audit(struct save_op *op)
{
    struct audit_line *a = &op->op.audit;

    if (!op->result.published)
        return;
    a->identity_set = op->identity_set;
    a->parent_check = op->parent_match ? "match" : "mismatch";
    memcpy(a->weights_sha256, op->result.weights_sha256, sizeof a->weights_sha256);
    memcpy(a->manifest_sha256, op->result.manifest_sha256, sizeof a->manifest_sha256);
}

int weights_save(struct service *s, const struct weights_req *req, json_t **data, struct refusal *r)
{
    struct save_op op = {0};
    int rc;

    op_begin(&op.op, s, req, "weights_save");
    rc = save(&op, r);
    *data = rc == 0 ? save_answer(&op) : NULL;
    save_fill_audit(&op);
    if (rc == 0 && !op.parent_match)
        log_ev(LOG_WARNING, "weights_parent_mismatch", "checkpoint=%s", buf_str(&op.name));
    image_unref(op.image);
    served_unref(op.renamed);
    buf_release(&op.name);
    return op_end(&op.op, 201, rc, r);
}
