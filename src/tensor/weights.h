/* tensor/weights.h - the weights image: one mapping that holds the bytes of a canonical
 * model.safetensors.
 *
 * base[0 .. bytes) is header and data exactly as our own file has them (safetensors.h,
 * st_index_plan), so saving is writing the mapping and a tensor is a view into it. A file that is
 * canonical already gives an image equal to it byte for byte; any other (shards, another order or
 * padding) is read into that form. Stored tied duplicates (lm_head beside a tied embedding) stay,
 * as the source has them.
 *
 * Memory is private and anonymous, page-aligned, huge pages advised and every page touched; or the
 * caller gives it (a shared arena), page-aligned and at least weights_bytes() long. The table of
 * tensors lives outside the mapping and is read-only, so it may be read from any thread; who may
 * write the data is the engine's matter. */
#ifndef TENSOR_WEIGHTS_H
#define TENSOR_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"
#include "tensor/safetensors.h"
#include "tensor/tensor.h"

struct err;
struct model_dir;

struct weights {
    unsigned char *base; /* page-aligned; owned unless `lent` */
    size_t bytes;        /* of the file: header + data */
    size_t map_bytes;    /* of the mapping: bytes rounded up to a page */
    size_t data_start;
    struct st_tensor *tensors; /* n of them, in byte order of their names: index.tensors */
    size_t n;
    struct st_index index; /* planned: offsets count from data_start */
    bool lent;             /* the memory is the caller's */
};

/* Size of the image that the tensors of `src` need; 0 with *e when they cannot be laid out. */
size_t weights_bytes(const struct st_index *src, struct err *e);

/* An image laid out for the tensors of `src`: header written, data zero (own memory) or as it was
 * (memory != NULL, lent). Owned, or NULL with ERR_NOMEM, ERR_SPACE (the memory is too small),
 * ERR_FORMAT. */
struct weights *weights_new(const struct st_index *src, void *memory, size_t memory_bytes,
                            struct err *e);
void weights_free(struct weights *w); /* NULL is allowed; lent memory is left alone */

/* Same names, dtypes and shapes, hence the same layout: bytes can be copied from one to the other.
 */
bool weights_same_layout(const struct weights *w, const struct st_index *src);

const struct st_tensor *weights_find(const struct weights *w, const char *name); /* NULL: absent */
void *weights_data(const struct weights *w, const struct st_tensor *t); /* t from w->tensors */
/* View of a tensor; -1 with ERR_NOT_FOUND and its name. */
int weights_view(const struct weights *w, const char *name, struct tensor *out, struct err *e);

/* Puts bytes [offset, offset + n) of the file that `src` indexes to where the image has them;
 * header bytes are dropped. For readers that hash block by block. Blocks may come in any order and
 * from several threads. */
void weights_place(struct weights *w, const struct st_index *src, size_t offset, const void *bytes,
                   size_t n);

struct weights_read {
    /* Called every few megabytes with the bytes done and to do; nonzero stops with ERR_CANCELLED.
     * NULL: no calls. Runs on the calling thread. */
    int (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
    bool hash;               /* fill sha256 (a single file only; ignored for shards) */
    char sha256[SHA256_HEX]; /* of the file's bytes, the same bytes that are in the image; "" if not
                                hashed */
};

/* Reads every tensor of an opened model directory into an image. `memory` as in weights_new; opt
 * may be NULL. A file that became shorter gives ERR_FORMAT. A second thread reads ahead while this
 * one hashes. */
struct weights *weights_read(const struct model_dir *md, void *memory, size_t memory_bytes,
                             struct weights_read *opt, struct err *e);
/* The same into an image that exists and has this layout (the spare). -1: its content is undefined.
 */
int weights_read_into(struct weights *w, const struct model_dir *md, struct weights_read *opt,
                      struct err *e);
#endif
