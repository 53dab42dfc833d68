/* Foreign bytes as a safetensors file. What must hold for a file that is accepted: its tensors
 * cover the data exactly, every one is found by its name, and the canonical header of the same
 * tensors is accepted again with the same names, dtypes, shapes and sizes. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "tensor/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(c)     \
    do {             \
        if (!(c))    \
            abort(); \
    } while (0)

static void check_index(const struct st_index *ix, size_t size)
{
    size_t sum = 0;

    CHECK(ix->data_start + ix->data_bytes == size);
    for (size_t i = 0; i < ix->n; i++) {
        const struct st_tensor *t = &ix->tensors[i];

        CHECK(t->offset + t->bytes <= ix->data_bytes);
        CHECK(st_index_find_n(ix, t->name, t->name_len) == t);
        CHECK(t->name[t->name_len] == 0);
        sum += t->bytes;
    }
    CHECK(sum == ix->data_bytes);
}

static void check_same(const struct st_index *a, const struct st_index *b)
{
    CHECK(a->n == b->n && a->data_bytes == b->data_bytes);
    for (size_t i = 0; i < a->n; i++) {
        const struct st_tensor *x = &a->tensors[i], *y = &b->tensors[i];

        CHECK(x->name_len == y->name_len && memcmp(x->name, y->name, x->name_len) == 0);
        CHECK(x->dtype == y->dtype && x->ndim == y->ndim && x->bytes == y->bytes);
        CHECK(x->ndim == 0 || memcmp(x->shape, y->shape, (size_t)x->ndim * sizeof *x->shape) == 0);
    }
}

/* Plans the same tensors anew, reads the header back. */
static void round_trip(const struct st_index *ix)
{
    struct st_index plan = {0}, back = {0};
    struct buf header = {0};
    struct err e = {0};

    for (size_t i = 0; i < ix->n; i++) {
        const struct st_tensor *t = &ix->tensors[i];

        CHECK(st_index_add(&plan, t->name, t->name_len, t->dtype, t->ndim, t->shape, &e) == 0);
    }
    CHECK(st_index_plan(&plan, &header, &e) == 0);
    CHECK(header.len == plan.data_start && plan.data_start % ST_DATA_ALIGN == 0);
    CHECK(st_index_parse(&back, header.data, header.len, plan.data_start + plan.data_bytes, &e) ==
          0);
    CHECK(back.canonical);
    check_same(ix, &back);
    st_index_release(&plan);
    st_index_release(&back);
    buf_release(&header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_index ix = {0};
    struct err e = {0};

    if (st_index_parse(&ix, data, size, size, &e) < 0) {
        CHECK(e.code == ERR_FORMAT && e.msg[0]);
        return 0;
    }
    check_index(&ix, size);
    round_trip(&ix);
    st_index_release(&ix);
    return 0;
}
