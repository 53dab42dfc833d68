#include "service/load_write.h"

#include <string.h>

#include "base/err.h"
#include "base/faults.h"
#include "base/fs.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "service/load_op.h"
#include "service/service.h"
#include "tensor/weights.h"

enum { CHUNK = 8 << 20 };

/* A test build fails once when this many bytes have been written; -1: never. */
static int64_t fail_after(const struct load_op *op)
{
    int64_t n = -1;

    return faults_take_count(op->op.s->faults, "load_after_bytes", &n) ? n : -1;
}

static int read_tensor(int fd, size_t at, unsigned char *to, size_t n, int64_t *written,
                       int64_t limit, struct err *e)
{
    while (n > 0) {
        size_t part = n < CHUNK ? n : CHUNK;

        if (fs_read_at(fd, to, part, (int64_t)at, e) < 0)
            return -1;
        *written += (int64_t)part;
        if (limit >= 0 && *written >= limit)
            return err_set(e, ERR_IO, "a read error that this test build was asked for");
        at += part;
        to += part;
        n -= part;
    }
    return 0;
}

static int write_from_file(struct load_op *op, struct image *to, struct err *e)
{
    int fd = ckpt_reader_fd(op->reader);
    int64_t limit = fail_after(op), written = 0;

    for (size_t i = 0; i < op->index.n; i++) {
        const struct st_tensor *from = &op->index.tensors[i];
        const struct st_tensor *t = weights_find(to->weights, from->name);

        if (!t || t->bytes != from->bytes)
            return err_set(e, ERR_FORMAT, "tensor %s does not fit", from->name);
        if (read_tensor(fd, op->index.data_start + from->offset, weights_data(to->weights, t),
                        t->bytes, &written, limit, e) < 0)
            return -1;
    }
    return 0;
}

int load_write(struct load_op *op, struct image *to, struct err *e)
{
    const struct weights *from = op->image ? op->image->weights : NULL;

    if (!from)
        return write_from_file(op, to, e);
    pool_memcpy(engine_pool(op->op.s->engine), to->weights->base + to->weights->data_start,
                from->base + from->data_start, from->bytes - from->data_start);
    return 0;
}

struct second_pass {
    struct load_op *op;
    int64_t limit;
};

static int place_block(void *arg, const void *bytes, size_t offset, size_t n, struct err *e)
{
    const struct second_pass *p = arg;

    weights_place(p->op->staged.weights, &p->op->index, offset, bytes, n);
    if (p->limit >= 0 && (int64_t)(offset + n) >= p->limit)
        return err_set(e, ERR_IO, "a read error that this test build was asked for");
    return 0;
}

struct image *load_read_again(struct load_op *op, struct err *e)
{
    struct second_pass p = {op, fail_after(op)};
    const char *reason = NULL;
    char sha256[SHA256_HEX];

    if (image_stage_empty(&op->staged, engine_bank(op->op.s->engine), &op->index, e) < 0 ||
        ckpt_reader_hash(op->reader, NULL, place_block, &p, sha256, e) < 0)
        return NULL;
    if (strcmp(sha256, op->sha256) != 0) {
        err_set(e, ERR_CONFLICT, "the file is not the one that was verified");
        return NULL;
    }
    return image_adopt(&op->staged, op->files, &reason, e);
}
