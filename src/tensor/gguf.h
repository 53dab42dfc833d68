/* tensor/gguf.h - reads GGUF files, versions 2 and 3, little-endian (docs/formats/gguf.md).
 *
 * Every count, length and offset in the file is a claim and is checked against the file's size
 * before it is used. The metadata section is read into memory, tensor data only on request with
 * pread. A reader belongs to one thread at a time; strings are borrowed from it and are not
 * NUL-terminated. */
#ifndef TENSOR_GGUF_H
#define TENSOR_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct err;
struct gguf;

enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

struct gguf_str {
    const char *s;
    size_t len;
};

struct gguf_tensor {
    struct gguf_str name;
    uint32_t type;    /* ggml type number: gguf_type_name, gguf_dequantise */
    int ndim;         /* 0 .. 4 */
    int64_t shape[4]; /* outermost first: the file's order reversed */
    uint64_t offset;  /* file offset of its bytes */
    uint64_t bytes;
    int64_t elements;
};

/* Owned (gguf_close), or NULL with ERR_FORMAT, ERR_IO, ERR_NOMEM. fd is borrowed and must stay
 * open. */
struct gguf *gguf_open(int fd, struct err *e);
void gguf_close(struct gguf *g); /* NULL is allowed */

uint32_t gguf_version(const struct gguf *g);
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i); /* file order */
const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name);
size_t gguf_n_keys(const struct gguf *g);
struct gguf_str gguf_key_at(const struct gguf *g, size_t i, enum gguf_type *type);

/* Metadata by key: 0, or -1 with ERR_NOT_FOUND (no such key) or ERR_FORMAT (another type); both
 * name it. gguf_get_int takes any integer type and refuses what does not fit. */
int gguf_get_int(const struct gguf *g, const char *key, int64_t *out, struct err *e);
int gguf_get_float(const struct gguf *g, const char *key, double *out, struct err *e);
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e);
bool gguf_has(const struct gguf *g, const char *key);
/* Arrays: the caller frees *out (strings stay borrowed). */
int gguf_get_strings(const struct gguf *g, const char *key, struct gguf_str **out, size_t *n,
                     struct err *e);
int gguf_get_ints(const struct gguf *g, const char *key, int64_t **out, size_t *n, struct err *e);

/* Block formats. NULL or -1 for a type that is not read: the caller names it. */
const char *gguf_type_name(uint32_t type); /* "Q4_K"; NULL unknown */
int gguf_type_block(uint32_t type, int *block_elements, int *block_bytes); /* 0 or -1 */

/* n elements (whole blocks) of float32 from their stored form; type one of F32 F16 BF16 Q4_0 Q4_1
 * Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K. Values are computed in float32: d*q + m and so on, as
 * docs/formats/gguf.md says. */
int gguf_dequantise(uint32_t type, const void *blocks, int64_t n, float *out);

/* Elements [first, first + n) of a tensor, whole blocks, as float32. */
int gguf_read_f32(const struct gguf *g, const struct gguf_tensor *t, int64_t first, int64_t n,
                  float *out, struct err *e);
#endif
