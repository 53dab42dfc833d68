#include "tensor/gguf_import.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "tensor/gguf_arch.h"
#include "tensor/gguf_tokenizer.h"
#include "tensor/safetensors.h"

enum { STEP = 1 << 18 }; /* elements of one piece: 1 MiB as float32 */

#define WEIGHTS "model.safetensors"
#define PART    ".part" /* while a file is being written */

/* The order in which the names appear; the weights last: a directory that has them is whole. */
static const char *const files[] = {"config.json", "generation_config.json",
                                    "tokenizer_config.json", "tokenizer.json", WEIGHTS};

enum { N_FILES = sizeof files / sizeof *files };

struct import {
    struct gguf_import *job;
    const struct gguf *g;
    struct gguf_params params;
    struct gguf_mapped *mapped; /* in the order of index.tensors */
    size_t n_mapped;
    struct st_index index;
    struct buf header;
    int dir_fd, out_fd;
    struct sha256 *hash;
    float *values;     /* STEP elements, or one head */
    uint16_t *rounded; /* the same number */
    uint64_t done;     /* bytes written */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct gguf_mapped *)a)->name, ((const struct gguf_mapped *)b)->name);
}

static int plan(struct import *im, struct err *e)
{
    if (gguf_arch_map(im->g, &im->params, &im->mapped, &im->n_mapped, e) < 0)
        return -1;
    qsort(im->mapped, im->n_mapped, sizeof *im->mapped, by_name);
    for (size_t i = 0; i < im->n_mapped; i++) {
        const struct gguf_mapped *m = &im->mapped[i];

        if (st_index_add(&im->index, m->name, strlen(m->name), DTYPE_BF16, m->ndim, m->shape, e) <
            0)
            return -1;
    }
    return st_index_plan(&im->index, &im->header, e);
}

/* ---- weights ---- */

static int emit(struct import *im, const void *bytes, size_t n, struct err *e)
{
    if (fs_write_at(im->out_fd, bytes, n, (int64_t)im->done, e) < 0)
        return err_wrap(e, "write " WEIGHTS);
    sha256_update(im->hash, bytes, n);
    im->done += n;
    if (im->job->progress &&
        im->job->progress(im->job->arg, im->done, im->index.data_start + im->index.data_bytes))
        return err_set(e, ERR_CANCELLED, "the import was cancelled");
    return 0;
}

static int emit_plain(struct import *im, const struct gguf_mapped *m, struct err *e)
{
    for (int64_t at = 0; at < m->from->elements; at += STEP) {
        int64_t n = m->from->elements - at < STEP ? m->from->elements - at : STEP;

        if (gguf_read_f32(im->g, m->from, at, n, im->values, e) < 0)
            return -1;
        for (int64_t i = 0; i < n; i++)
            im->rounded[i] = dtype_f32_to_bf16(im->values[i]);
        if (emit(im, im->rounded, (size_t)n * 2, e) < 0)
            return -1;
    }
    return 0;
}

/* Row 2j + s of a head in the file is row s * half + j here: rope turns halves, not neighbours. */
static void put_rows_apart(struct import *im, int64_t rows, int64_t columns)
{
    int64_t half = rows / 2;

    for (int64_t r = 0; r < rows; r++) {
        const float *from = im->values + r * columns;
        uint16_t *to = im->rounded + ((r & 1) * half + r / 2) * columns;

        for (int64_t c = 0; c < columns; c++)
            to[c] = dtype_f32_to_bf16(from[c]);
    }
}

static int emit_heads(struct import *im, const struct gguf_mapped *m, struct err *e)
{
    int64_t rows = im->params.head_dim, columns = m->shape[1], n = rows * columns;

    for (int64_t h = 0; h < m->heads; h++) {
        if (gguf_read_f32(im->g, m->from, h * n, n, im->values, e) < 0)
            return -1;
        put_rows_apart(im, rows, columns);
        if (emit(im, im->rounded, (size_t)n * 2, e) < 0)
            return -1;
    }
    return 0;
}

/* Elements of the largest piece. Each head's rows fill whole blocks, since blocks lie along a row.
 */
static size_t piece(const struct import *im)
{
    size_t most = STEP;

    for (size_t i = 0; i < im->n_mapped; i++) {
        const struct gguf_mapped *m = &im->mapped[i];
        size_t head = m->heads ? (size_t)(m->from->elements / m->heads) : 0;

        most = head > most ? head : most;
    }
    return most;
}

static int write_tensors(struct import *im, struct err *e)
{
    char shown[200];

    if (emit(im, im->header.data, im->header.len, e) < 0)
        return -1;
    for (size_t i = 0; i < im->n_mapped; i++) {
        const struct gguf_mapped *m = &im->mapped[i];

        if ((m->heads ? emit_heads(im, m, e) : emit_plain(im, m, e)) < 0) {
            snprintf(shown, sizeof shown, "tensor \"%s\"", m->name);
            return e->code == ERR_CANCELLED ? -1 : err_wrap(e, "%s", shown);
        }
    }
    return 0;
}

static int write_file(struct import *im, struct err *e)
{
    im->out_fd = openat(im->dir_fd, WEIGHTS PART,
                        O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (im->out_fd < 0)
        return err_io(e, "create " WEIGHTS PART);
    if (write_tensors(im, e) < 0 || fs_sync(im->out_fd, WEIGHTS PART, e) < 0)
        return -1;
    sha256_hex(im->hash, im->job->sha256);
    im->job->file_bytes = im->done;
    im->job->n_tensors = (int)im->n_mapped;
    return 0;
}

static int write_weights(struct import *im, struct err *e)
{
    size_t n = piece(im);
    float *values = calloc(n, sizeof *values);
    uint16_t *rounded = calloc(n, sizeof *rounded);
    struct sha256 *hash = sha256_new();
    int rc;

    im->values = values;
    im->rounded = rounded;
    im->hash = hash;
    rc = values && rounded && hash ? write_file(im, e) : err_nomem(e);
    fs_close(im->out_fd);
    free(values);
    free(rounded);
    sha256_free(hash);
    return rc;
}

/* ---- the small files ---- */

/* Consumes v. */
static int write_json(int dir_fd, const char *name, json_t *v, struct err *e)
{
    struct buf text = {0};
    char part[64];
    int rc = -1;

    if (!v)
        return -1;
    json_write_pretty(&text, v);
    buf_add_char(&text, '\n');
    json_decref(v);
    snprintf(part, sizeof part, "%s" PART, name);
    if (text.failed)
        err_nomem(e);
    else if (fs_create_file(dir_fd, part, text.data, text.len, 0644, e) == 0)
        rc = fs_sync_name(dir_fd, part, e);
    buf_release(&text);
    return rc;
}

static json_t *or_nomem(json_t *v, struct err *e)
{
    if (!v)
        err_nomem(e);
    return v;
}

static int write_companions(struct import *im, struct err *e)
{
    const struct gguf_params *p = &im->params;

    if (write_json(im->dir_fd, "tokenizer.json", gguf_tokenizer(im->g, p, e), e) < 0 ||
        write_json(im->dir_fd, "tokenizer_config.json", gguf_tokenizer_config(im->g, p, e), e) <
            0 ||
        write_json(im->dir_fd, "config.json", or_nomem(gguf_config(p), e), e) < 0)
        return -1;
    return write_json(im->dir_fd, "generation_config.json", or_nomem(gguf_generation_config(p), e),
                      e);
}

/* ---- all or nothing ---- */

static int check_free(int dir_fd, struct err *e)
{
    for (int i = 0; i < N_FILES; i++)
        if (faccessat(dir_fd, files[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            return err_set(e, ERR_CONFLICT, "%s is already there; choose a new directory",
                           files[i]);
    return 0;
}

static void remove_parts(int dir_fd)
{
    char part[64];

    for (int i = 0; i < N_FILES; i++) {
        snprintf(part, sizeof part, "%s" PART, files[i]);
        unlinkat(dir_fd, part, 0);
    }
}

static int reveal(int dir_fd, struct err *e)
{
    char part[64];

    for (int i = 0; i < N_FILES; i++) {
        snprintf(part, sizeof part, "%s" PART, files[i]);
        if (renameat2(dir_fd, part, dir_fd, files[i], RENAME_NOREPLACE) < 0) {
            err_io(e, "name %s", files[i]);
            while (--i >= 0)
                unlinkat(dir_fd, files[i], 0);
            return -1;
        }
    }
    return fs_sync(dir_fd, "the directory", e);
}

static int import_all(struct import *im, struct err *e)
{
    if (gguf_params_read(im->g, &im->params, e) < 0)
        return -1;
    snprintf(im->job->architecture, sizeof im->job->architecture, "%s", im->params.arch);
    if (plan(im, e) < 0 || check_free(im->dir_fd, e) < 0)
        return -1;
    remove_parts(im->dir_fd); /* of an import that was killed */
    if (write_companions(im, e) < 0 || write_weights(im, e) < 0 || reveal(im->dir_fd, e) < 0) {
        remove_parts(im->dir_fd);
        return -1;
    }
    return 0;
}

int gguf_import(struct gguf_import *job, int fd, int dir_fd, struct err *e)
{
    struct import im = {.job = job, .dir_fd = dir_fd, .out_fd = -1};
    struct gguf *g = gguf_open(fd, e);
    int rc = -1;

    if (g) {
        im.g = g;
        rc = import_all(&im, e);
    }
    free(im.mapped);
    buf_release(&im.header);
    st_index_release(&im.index);
    gguf_params_release(&im.params);
    gguf_close(g);
    return rc;
}
