/* tensor/gguf_impl.h - what the files of the GGUF reader share, inside the room only. */
#ifndef TENSOR_GGUF_IMPL_H
#define TENSOR_GGUF_IMPL_H

#include "tensor/gguf.h"

enum {
    GGUF_KEYS_MAX = 65536,
    GGUF_TENSORS_MAX = 65536,
    GGUF_ALIGN_MAX = 1 << 20,
    GGUF_DIMS_MAX = 4,
};

struct gguf_kv {
    size_t key, key_len; /* offsets into bytes */
    enum gguf_type type; /* of the value, or of the elements when is_array */
    bool is_array;
    uint64_t count; /* elements; 1 for a scalar */
    size_t at;      /* where the value, or the first element, begins */
};

struct gguf {
    int fd;
    uint64_t file_bytes;
    unsigned char
        *bytes; /* the first `have` bytes of the file: all of the metadata once it is open */
    size_t have, cap;
    size_t at; /* the parser's place */
    uint32_t version;
    struct gguf_kv *kv;
    size_t n_kv, cap_kv;
    struct gguf_tensor *tensors;
    size_t n_tensors, cap_tensors;
};

const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key);
size_t gguf_type_bytes(enum gguf_type t);           /* 0 for strings and arrays */
uint64_t gguf_le(const unsigned char *p, size_t n); /* n <= 8 bytes, little-endian */
#endif
