#include "service/load_write.h"

#include <string.h>

#include "base/err.h"
#include "base/faults.h"
#include "base/pool.h"
#include "base/stopping.h"
#include "engine/engine.h"
#include "service/load_op.h"
#include "service/service.h"
#include "tensor/weights.h"

/* A test build fails once when this many bytes have been written; -1: never. */
static int64_t fail_after(const struct load_op *op)
{
    int64_t n = -1;

    return faults_take_count(op->op.s->faults, "load_after_bytes", &n) ? n : -1;
}

/* The file is read and hashed again, since memory could not hold what was verified. */
struct second_pass {
    const struct service *s;
    const struct st_index *index;
    struct weights *to;
    int64_t limit;
};

static int place_block(void *arg, const void *bytes, size_t offset, size_t n, struct err *e)
{
    const struct second_pass *p = arg;

    if (stopping_check(&p->s->stopping, e) < 0)
        return -1;
    weights_place(p->to, p->index, offset, bytes, n);
    if (p->limit >= 0 && (int64_t)(offset + n) >= p->limit)
        return err_set(e, ERR_IO, "a read error that this test build was asked for");
    return 0;
}

/* Into weights of the layout that was verified. -1 also when other bytes came than were verified:
 * some of them are then in `to`. */
static int write_from_file(struct load_op *op, struct weights *to, struct err *e)
{
    struct second_pass p = {op->op.s, &op->index, to, fail_after(op)};
    char sha256[SHA256_HEX];

    if (ckpt_reader_hash(op->reader, NULL, place_block, &p, sha256, e) < 0)
        return -1;
    if (strcmp(sha256, op->sha256) != 0)
        return err_set(e, ERR_CONFLICT, "the file is not the one that was verified");
    return 0;
}

int load_write(struct load_op *op, struct image *to, struct err *e)
{
    const struct weights *from = op->image ? op->image->weights : NULL;

    if (!from && write_from_file(op, to->weights, e) < 0)
        return -1;
    if (from)
        pool_memcpy(engine_pool(op->op.s->engine), to->weights->base + to->weights->data_start,
                    from->base + from->data_start, from->bytes - from->data_start);
    if (image_damaged(to))
        return err_set(e, ERR_IO, "a client has cut the shared memory of the weights short");
    return 0;
}

struct image *load_read_again(struct load_op *op, struct err *e)
{
    const char *reason = NULL;

    if (image_stage_empty(&op->staged, engine_bank(op->op.s->engine), &op->index, NULL, e) < 0 ||
        write_from_file(op, op->staged.weights, e) < 0)
        return NULL;
    return image_adopt(&op->staged, op->files, &reason, e);
}
