/* tensor/tensor.h - a typed, shaped view of bytes that somebody else holds, and the size of a
 * shape. */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/dtype.h"

struct err;

enum { TENSOR_MAX_DIM = 8 };

struct tensor {
    void *data;   /* borrowed; aligned only as far as the file it came from was */
    size_t bytes; /* of the whole tensor */
    enum dtype dtype;
    int ndim;                      /* 0 (a scalar, one element) .. TENSOR_MAX_DIM */
    int64_t shape[TENSOR_MAX_DIM]; /* row-major, dense, outermost first: [V,C] is shape {V,C} */
};

/* Bytes of a dense tensor. -1 with ERR_FORMAT: a negative dimension, a product over 2^63-1, a type
 * of less than a byte that does not fill whole bytes. Dimensions after a 0 are not limited. */
int tensor_shape_bytes(enum dtype t, int ndim, const int64_t *shape, size_t *out, struct err *e);
int64_t tensor_elements(const struct tensor *t);

/* "[259, 16]" into out, cut at n. */
void tensor_shape_str(int ndim, const int64_t *shape, char *out, size_t n);

/* Elements [first, first + n) of a BF16, F16 or F32 tensor as float32. */
void tensor_to_f32(const struct tensor *t, int64_t first, int64_t n, float *out);
#endif
