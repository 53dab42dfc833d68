#include "train/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/stopping.h"
#include "tensor/tensor.h"
#include "tensor/weights.h"

static const char *const prefixes[SECTIONS] = {"exp_avg.", "exp_avg_sq.", "master."};

/* ---- moments and masters ---- */

static int add_section(struct optim_file *f, int section, const struct st_index *params,
                       struct buf *name, struct err *e)
{
    for (size_t i = 0; i < params->n; i++) {
        const struct st_tensor *t = &params->tensors[i];

        buf_reset(name);
        buf_printf(name, "%s%s", prefixes[section], t->name);
        if (name->failed)
            return err_nomem(e);
        if (st_index_add(&f->index, name->data, name->len, DTYPE_F32, t->ndim, t->shape, e) < 0)
            return -1;
    }
    return 0;
}

static int plan_file(struct optim *o, const char *file, enum section first, int sections,
                     const struct st_index *params, struct err *e)
{
    struct optim_file *f = &o->file[o->n_files++];
    struct buf name = {0};
    int rc = 0;

    f->name = file;
    f->first = first;
    for (int s = 0; rc == 0 && s < sections; s++)
        rc = add_section(f, (int)first + s, params, &name, e);
    if (rc == 0)
        rc = st_index_plan(&f->index, &f->header, e);
    buf_release(&name);
    return rc;
}

/* Masters lie apart, so that a save hashes them beside the moments. */
static int plan_files(struct optim *o, const struct st_index *params, struct err *e)
{
    if (plan_file(o, TRAIN_MOMENTS_FILE, SECTION_M, 2, params, e) < 0)
        return -1;
    return o->array[SECTION_MASTER] ? plan_file(o, TRAIN_MASTERS_FILE, SECTION_MASTER, 1, params, e)
                                    : 0;
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
    for (int s = 0; s < SECTIONS; s++)
        pthread_mutex_init(&o->lock[s], NULL);
    o->fresh = true;
    for (int s = 0; s < (masters ? SECTIONS : SECTION_MASTER); s++)
        if (!(o->array[s] = params_array(p, e)))
            goto fail;
    if (plan_files(o, &p->index, e) == 0 && copy_pieces(o, p, e) == 0)
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
    for (int i = 0; i < o->n_files; i++) {
        st_index_release(&o->file[i].index);
        buf_release(&o->file[i].header);
    }
    for (int s = 0; s < SECTIONS; s++)
        pthread_mutex_destroy(&o->lock[s]);
    free(o->piece);
    free(o);
}

float *optim_floats(const struct optim *o, enum section s)
{
    return o->array[s] ? params_floats(o->array[s]) : NULL;
}

/* ---- reading ---- */

/* The files of a save, opened: each tensor is in one of them. */
struct sources {
    const int *fds;
    int n;
    struct st_index index[FROZEN_FILES];
};

static const struct st_tensor *find_source(const struct sources *from, const struct st_tensor *want,
                                           int *file)
{
    const struct st_tensor *t = NULL;

    for (*file = 0; *file < from->n; ++*file)
        if ((t = st_index_find_n(&from->index[*file], want->name, want->name_len)))
            break;
    return t;
}

static int check_tensor(const struct st_tensor *want, const struct sources *from, struct err *e)
{
    int file;
    const struct st_tensor *have = find_source(from, want, &file);
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

/* A tensor that no parameter has, or that an earlier file had already. */
static int check_strangers(const struct optim *o, const struct sources *from, int file,
                           struct err *e)
{
    const struct st_index *ix = &from->index[file];

    for (size_t i = 0; i < ix->n; i++) {
        const struct st_tensor *t = &ix->tensors[i];
        bool known = false;
        int first;

        for (int k = 0; k < o->n_files && !known; k++)
            known = st_index_find_n(&o->file[k].index, t->name, t->name_len) != NULL;
        if (!known)
            return err_set(e, ERR_FORMAT, "optimizer tensor %.200s belongs to no parameter",
                           t->name);
        find_source(from, t, &first);
        if (first != file)
            return err_set(e, ERR_FORMAT, "optimizer tensor %.200s is there twice", t->name);
    }
    return 0;
}

static int check_sources(const struct optim *o, const struct sources *from, struct err *e)
{
    for (int k = 0; k < o->n_files; k++)
        for (size_t i = 0; i < o->file[k].index.n; i++)
            if (check_tensor(&o->file[k].index.tensors[i], from, e) < 0)
                return -1;
    for (int i = 0; i < from->n; i++)
        if (check_strangers(o, from, i, e) < 0)
            return -1;
    return 0;
}

/* The sections' floats are a file's data, one after the other. */
static void *place_of(const struct optim *o, const struct optim_file *f, const struct st_tensor *t)
{
    size_t at = t->offset / sizeof(float);

    return optim_floats(o, (enum section)((size_t)f->first + at / o->floats)) + at % o->floats;
}

/* In pieces, each after a look at *stop. */
static int read_part(int fd, char *to, size_t bytes, int64_t at, const atomic_bool *stop,
                     struct err *e)
{
    enum { READ_BYTES = 16 << 20 };

    for (size_t n; bytes > 0; bytes -= n, to += n, at += (int64_t)n) {
        n = bytes < READ_BYTES ? bytes : READ_BYTES;
        if (stopping_check(stop, e) < 0 || fs_read_at(fd, to, n, at, e) < 0)
            return -1;
    }
    return 0;
}

static int read_file(const struct optim *o, const struct optim_file *f, const struct sources *from,
                     const atomic_bool *stop, struct err *e)
{
    for (size_t i = 0; i < f->index.n; i++) {
        const struct st_tensor *to = &f->index.tensors[i];
        int file;
        const struct st_tensor *have = find_source(from, to, &file);
        int64_t at = (int64_t)(from->index[file].data_start + have->offset);

        if (read_part(from->fds[file], place_of(o, f, to), to->bytes, at, stop, e) < 0)
            return -1;
    }
    return 0;
}

int optim_read(struct optim *o, const int *fds, int n, const atomic_bool *stop, struct err *e)
{
    struct sources from = {.fds = fds};
    int rc = 0;

    while (rc == 0 && from.n < n) {
        rc = st_index_read(&from.index[from.n], fds[from.n], e);
        from.n += rc == 0;
    }
    if (rc == 0)
        rc = check_sources(o, &from, e);
    for (int i = 0; rc == 0 && i < o->n_files; i++)
        rc = read_file(o, &o->file[i], &from, stop, e);
    if (rc == 0)
        o->fresh = false;
    while (from.n > 0)
        st_index_release(&from.index[--from.n]);
    return rc;
}
