/* service/load_verify.c - read a checkpoint's weights once, hashing them, before anything is
 * paused.
 *
 * Where memory allows (WEIGHTS_LOAD_PREFETCH) the hashed bytes are kept, laid out as an image: what
 * was verified is what is used. Otherwise only the hash is taken, and the file is read again inside
 * the barrier. */
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/log.h"
#include "engine/engine.h"
#include "service/load_op.h"
#include "service/memory.h"
#include "service/metrics.h"
#include "service/service.h"
#include "service/weights.h"
#include "tensor/weights.h"

#define WEIGHTS_FILE "model.safetensors"

static int refuse_header(const char *problem, const char *sentence, struct refusal *r)
{
    return refuse_with(r, REFUSAL_CHECKPOINT_NOT_LOADABLE,
                       json_pack("{s:s, s:s}", "reason", "safetensors_header", "problem", problem),
                       WEIGHTS_FILE " cannot be loaded: %s", sentence);
}

int check_weights_file(void *ctx, struct refusal *r)
{
    struct load_op *op = ctx;
    struct err e = {0};

    switch (ckpt_reader_open(op->at.dir_fd, WEIGHTS_FILE, &op->reader, &e)) {
    case READER_OK:
        return 0;
    case READER_MISSING:
        return refuse_header("missing", "it is missing", r);
    case READER_NOT_REGULAR:
        return refuse_header("not_regular", "it is not a regular file", r);
    default:
        return refuse_internal(r, &e);
    }
}

static void read_header(struct load_op *op)
{
    op->index_ok = st_index_read(&op->index, ckpt_reader_fd(op->reader), &op->index_error) == 0;
}

static void make_staging(struct load_op *op)
{
    const struct image_load how = {.progress = load_given_up, .arg = op};
    struct service *s = op->op.s;
    struct refusal none = {0};
    struct err e = {0};
    size_t bytes = op->index_ok ? weights_bytes(&op->index, &e) : 0;

    if (!s->settings->load_prefetch || !bytes)
        return;
    op->room = memory_refuse(s, bytes, false, &none) == 0;
    refusal_clear(&none);
    if (op->plan || !op->room)
        return;
    if (image_stage_empty(&op->staged, engine_bank(s->engine), &op->index, &how, &e) < 0) {
        log_ev(LOG_INFO, "weights_load_not_staged", "cause=\"%s\"", e.msg);
        op->room = false;
    }
}

int load_given_up(void *ctx, uint64_t done, uint64_t total)
{
    struct load_op *op = ctx;
    struct service *s = op->op.s;

    (void)total;
    if (done > 0 && !op->delayed)
        faults_read_delay(s->faults, &s->stopping);
    op->delayed |= done > 0;
    return atomic_load(&s->stopping) || (op->op.req->gone && atomic_load(op->op.req->gone));
}

static int place_block(void *arg, const void *bytes, size_t offset, size_t n, struct err *e)
{
    struct load_op *op = arg;

    core_loan_update(&op->loan);
    if (load_given_up(op, offset + n, (uint64_t)ckpt_reader_facts(op->reader)->size))
        return err_set(e, ERR_CANCELLED, "given up");
    if (op->staged.weights && !op->index.canonical)
        weights_place(op->staged.weights, &op->index, offset, bytes, n);
    return 0;
}

/* The file became shorter while it was read: what is there now is not what the manifest names. */
static int refuse_shortened(const struct load_op *op, const struct err *e, struct refusal *r)
{
    return refuse_with(r, REFUSAL_CHECKPOINT_HASH_MISMATCH,
                       json_pack("{s:s, s:s, s:n, s:s}", "reason", "file_changed", "expected",
                                 op->manifest.weights_sha256, "actual", "changed", "size"),
                       WEIGHTS_FILE " of %s became shorter while it was read: %s.", op->at.path,
                       e->msg);
}

int check_weights_hash(void *ctx, struct refusal *r)
{
    struct load_op *op = ctx;
    int64_t start = clock_mono_ns();
    struct err e = {0};
    int rc;

    read_header(op);
    make_staging(op);
    op->loan.engine = op->op.s->engine;
    core_loan_update(&op->loan);
    rc = ckpt_reader_hash(
        op->reader, op->staged.weights && op->index.canonical ? op->staged.weights->base : NULL,
        place_block, op, op->sha256, &e);
    core_loan_end(&op->loan);
    op->verify_ms = clock_ms_since(start);
    metrics_verified(op->op.s->metrics, op->verify_ms);
    if (rc < 0 && e.code == ERR_CANCELLED)
        return atomic_load(&op->op.s->stopping) ? refuse_stopping(r) : refuse_client_left(r);
    if (rc < 0)
        return e.code == ERR_FORMAT ? refuse_shortened(op, &e, r) : refuse_internal(r, &e);
    memcpy(op->op.audit.weights_sha256, op->sha256, SHA256_HEX);
    if (strcmp(op->sha256, op->manifest.weights_sha256) == 0)
        return 0;
    return refuse_with(
        r, REFUSAL_CHECKPOINT_HASH_MISMATCH,
        json_pack("{s:s, s:s}", "expected", op->manifest.weights_sha256, "actual", op->sha256),
        WEIGHTS_FILE " of %s is not the file its manifest names: sha256 %s, expected "
                     "%s.",
        op->at.path, op->sha256, op->manifest.weights_sha256);
}

int check_weights_header(void *ctx, struct refusal *r)
{
    const struct load_op *op = ctx;

    const struct err *e = &op->index_error;

    if (op->index_ok)
        return 0;
    return e->code == ERR_NOMEM ? refuse_internal(r, e) : refuse_header(e->msg, e->msg, r);
}
