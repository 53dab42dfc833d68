#include "train/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"
#include "tensor/tensor.h"
#include "tensor/weights.h"

static const char *const prefixes[SECTIONS] = {"exp_avg.", "exp_avg_sq.", "master."};

/* ---- moments and masters ---- */

static int plan_file(struct optim *o, const struct st_index *params, struct err *e)
{
    struct buf name = {0};
    int rc = -1;

    for (int s = 0; s < SECTIONS && o->array[s]; s++)
        for (size_t i = 0; i < params->n; i++) {
            const struct st_tensor *t = &params->tensors[i];

            buf_reset(&name);
            buf_printf(&name, "%s%s", prefixes[s], t->name);
            if (name.failed) {
                err_nomem(e);
                goto done;
            }
            if (st_index_add(&o->file, name.data, name.len, DTYPE_F32, t->ndim, t->shape, e) < 0)
                goto done;
        }
    rc = st_index_plan(&o->file, &o->header, e);

done:
    buf_release(&name);
    return rc;
}

static int copy_pieces(struct optim *o, const struct params *p, struct err *e)
{
    size_t bytes = (size_t)p->n_pieces * sizeof *p->piece;

    o->piece = malloc(bytes + 1);
    if (!o->piece)
        return err_nomem(e);
    memcpy(o->piece, p->piece, bytes);
    o->n_pieces = p->n_pieces;
    o->floats = p->floats;
    return 0;
}

struct optim *optim_new(const struct params *p, bool masters, struct err *e)
{
    struct optim *o = calloc(1, sizeof *o);

    if (!o) {
        err_nomem(e);
        return NULL;
    }
    atomic_init(&o->refs, 1);
    pthread_mutex_init(&o->lock, NULL);
    o->fresh = true;
    for (int s = 0; s < (masters ? SECTIONS : SECTION_MASTER); s++)
        if (!(o->array[s] = params_array(p, e)))
            goto fail;
    if (plan_file(o, &p->index, e) == 0 && copy_pieces(o, p, e) == 0)
        return o;

fail:
    optim_unref(o);
    return NULL;
}

void optim_unref(struct optim *o)
{
    if (!o || atomic_fetch_sub(&o->refs, 1) > 1)
        return;
    for (int s = 0; s < SECTIONS; s++)
        weights_free(o->array[s]);
    st_index_release(&o->file);
    buf_release(&o->header);
    pthread_mutex_destroy(&o->lock);
    free(o->piece);
    free(o);
}

float *optim_floats(const struct optim *o, enum section s)
{
    return o->array[s] ? params_floats(o->array[s]) : NULL;
}

/* ---- reading ---- */

static int check_tensor(const struct st_tensor *want, const struct st_index *file, struct err *e)
{
    const struct st_tensor *have = st_index_find_n(file, want->name, want->name_len);
    char want_text[64], have_text[96];

    if (!have)
        return err_set(e, ERR_FORMAT, "optimizer tensor %.200s is missing", want->name);
    if (have->dtype != DTYPE_F32)
        return err_set(e, ERR_FORMAT, "optimizer tensor %.200s is %s, must be F32", want->name,
                       dtype_name(have->dtype));
    if (have->ndim == want->ndim &&
        memcmp(have->shape, want->shape, (size_t)want->ndim * sizeof *want->shape) == 0)
        return 0;
    tensor_shape_str(want->ndim, want->shape, want_text, sizeof want_text);
    tensor_shape_str(have->ndim, have->shape, have_text, sizeof have_text);
    return err_set(e, ERR_FORMAT, "optimizer tensor %.120s has shape %s, the run has %s",
                   want->name, have_text, want_text);
}

static int check_file(const struct optim *o, const struct st_index *file, struct err *e)
{
    for (size_t i = 0; i < o->file.n; i++)
        if (check_tensor(&o->file.tensors[i], file, e) < 0)
            return -1;
    for (size_t i = 0; i < file->n; i++)
        if (!st_index_find_n(&o->file, file->tensors[i].name, file->tensors[i].name_len))
            return err_set(e, ERR_FORMAT, "optimizer tensor %.200s belongs to no parameter",
                           file->tensors[i].name);
    return 0;
}

/* The sections' floats are the file's data, one after the other. */
static void *place_of(const struct optim *o, const struct st_tensor *t)
{
    size_t at = t->offset / sizeof(float);

    return optim_floats(o, (enum section)(at / o->floats)) + at % o->floats;
}

int optim_read(struct optim *o, int fd, struct err *e)
{
    struct st_index file = {0};
    int rc = -1;

    if (st_index_read(&file, fd, e) < 0)
        return -1;
    if (check_file(o, &file, e) < 0)
        goto done;
    for (size_t i = 0; i < o->file.n; i++) {
        const struct st_tensor *to = &o->file.tensors[i],
                               *from = st_index_find_n(&file, to->name, to->name_len);

        if (fs_read_at(fd, place_of(o, to), to->bytes, (int64_t)(file.data_start + from->offset),
                       e) < 0)
            goto done;
    }
    o->fresh = false;
    rc = 0;

done:
    st_index_release(&file);
    return rc;
}
