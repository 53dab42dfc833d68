/* tensor/safetensors.h - the index of a safetensors file, and the header of our own files.
 *
 * The format (docs/formats/safetensors.md): 8 bytes little-endian length N, N bytes of JSON, then
 * data. Every number in a file is a claim: it is checked against the file's real size before memory
 * is taken, and a file is refused with ERR_FORMAT unless its tensors cover the data area exactly,
 * without hole or overlap. Files are read with pread, never mapped: a file that shrinks gives an
 * error, not a signal.
 *
 * An index is owned by its struct (st_index_release) and is read-only after it was made, so any
 * number of threads may read it. Names may hold any Unicode character, U+0000 too: use name_len
 * where that matters. */
#ifndef TENSOR_SAFETENSORS_H
#define TENSOR_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "tensor/dtype.h"

struct err;
struct buf;
struct tensor;

enum {
    ST_HEADER_MAX = 100000000, /* bytes of JSON */
    ST_DATA_ALIGN = 4096,      /* our own files: data begins at a multiple of this */
};

struct st_tensor {
    const char *name; /* UTF-8 with a NUL after it; lives in the index */
    size_t name_len;
    const int64_t *shape; /* ndim entries, outermost first; lives in the index */
    size_t offset;        /* of the first byte, from data_start */
    size_t bytes;
    enum dtype dtype;
    int ndim;
    int file; /* which file of a model directory holds it; 0 for a single file */
};

struct st_meta {
    const char *key, *value; /* live in the index */
    size_t key_len, value_len;
};

struct st_index {
    struct st_tensor *tensors; /* n of them, in byte order of their names */
    size_t n, cap;
    struct st_meta *meta; /* __metadata__, in file order */
    size_t n_meta, cap_meta;
    bool has_meta;
    size_t data_start; /* file offset of the data area: 8 + N */
    size_t data_bytes;
    char
        *header; /* the file's first data_start bytes as they were read; NULL for a planned index */
    bool canonical;   /* the header is byte for byte the one st_index_plan makes */
    struct arena mem; /* names and shapes */
};

/* Reads and checks the header of the regular file `fd` (borrowed; its offset does not move). -1
 * with ERR_FORMAT and a message that says what is wrong and names the tensor, or ERR_IO, ERR_NOMEM.
 */
int st_index_read(struct st_index *ix, int fd, struct err *e);

/* The same for the first `len` bytes of a file whose whole size is file_bytes (tests, fuzzing,
 * peeks). */
int st_index_parse(struct st_index *ix, const void *bytes, size_t len, uint64_t file_bytes,
                   struct err *e);
void st_index_release(struct st_index *ix); /* a zeroed index is allowed */

/* NULL: no such tensor. Borrowed from the index. */
const struct st_tensor *st_index_find(const struct st_index *ix, const char *name);
const struct st_tensor *st_index_find_n(const struct st_index *ix, const char *name, size_t len);

/* Building: add tensors in any order (name, dtype, shape; offset and bytes are computed), then
 * plan. */
int st_index_add(struct st_index *ix, const char *name, size_t name_len, enum dtype dtype, int ndim,
                 const int64_t *shape, struct err *e);
/* The canonical form: tensors in byte order of their names, data in the same order without gaps
 * from data_start, compact JSON with "__metadata__":{"format":"pt"} first, spaces up to a multiple
 * of 4096. Sets offsets, bytes, data_start, data_bytes and appends the header (data_start bytes,
 * the length prefix included) to `header`. -1 with ERR_FORMAT: a name twice, sizes that overflow;
 * ERR_NOMEM. */
int st_index_plan(struct st_index *ix, struct buf *header, struct err *e);

/* How many tensors have each dtype, as "BF16 x 270, F32 x 1"; counts may be NULL. */
void st_index_dtypes(const struct st_index *ix, size_t counts[DTYPE_COUNT], char *out, size_t n);
#endif
