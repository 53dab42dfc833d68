#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

/* Product of the dimensions; a 0 anywhere makes it 0, however large the others are. */
static int element_count(int ndim, const int64_t *shape, int64_t *out, struct err *e)
{
    bool overflow = false, empty = false;
    int64_t n = 1;

    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return err_set(e, ERR_FORMAT, "shape[%d] = %" PRId64 " is negative", i, shape[i]);
        empty |= shape[i] == 0;
        overflow |= __builtin_mul_overflow(n, shape[i], &n);
    }
    if (overflow && !empty)
        return err_set(e, ERR_FORMAT, "the shape has more than 2^63 elements");
    *out = empty ? 0 : n;
    return 0;
}

int tensor_shape_bytes(enum dtype t, int ndim, const int64_t *shape, size_t *out, struct err *e)
{
    int64_t n = 0, bits = 0;

    if (ndim < 0 || ndim > TENSOR_MAX_DIM)
        return err_set(e, ERR_FORMAT, "%d dimensions, of at most %d", ndim, TENSOR_MAX_DIM);
    if (element_count(ndim, shape, &n, e) < 0)
        return -1;
    if (__builtin_mul_overflow(n, (int64_t)dtype_bits(t), &bits))
        return err_set(e, ERR_FORMAT,
                       "%" PRId64 " elements of %s are more bytes than a file can hold", n,
                       dtype_name(t));
    if (bits % 8)
        return err_set(e, ERR_FORMAT, "%" PRId64 " elements of %s do not fill whole bytes", n,
                       dtype_name(t));
    *out = (size_t)bits / 8;
    return 0;
}

int64_t tensor_elements(const struct tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
}

void tensor_shape_str(int ndim, const int64_t *shape, char *out, size_t n)
{
    size_t at = 0;

    at += (size_t)snprintf(out, n, "[");
    for (int i = 0; i < ndim && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (at < n)
        snprintf(out + at, n - at, "]");
}

void tensor_to_f32(const struct tensor *t, int64_t first, int64_t n, float *out)
{
    const unsigned char *from =
        (const unsigned char *)t->data + (size_t)first * dtype_bytes(t->dtype);

    if (t->dtype == DTYPE_F32) {
        memcpy(out, from, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t v;

        memcpy(&v, from + 2 * i, sizeof v);
        out[i] = t->dtype == DTYPE_BF16 ? dtype_bf16_to_f32(v) : dtype_f16_to_f32(v);
    }
}
