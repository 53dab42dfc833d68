#include "tensor/weights.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/buf.h"
#include "base/err.h"
#include "tensor/st_index.h"
#include "tensor/weights_map.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* A mapping that begins at a multiple of 2 MiB, so that huge pages fit from the first byte on. */
unsigned char *weights_map(size_t bytes, struct err *e)
{
    size_t reserve;
    unsigned char *at, *aligned;

    if (__builtin_add_overflow(bytes, (size_t)HUGE_PAGE, &reserve)) {
        err_nomem(e);
        return NULL;
    }
    at = mmap(NULL, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
              -1, 0);
    if (at == MAP_FAILED) {
        err_io(e, "reserve %zu bytes for weights", bytes);
        return NULL;
    }
    aligned = at + (HUGE_PAGE - (uintptr_t)at % HUGE_PAGE) % HUGE_PAGE;
    if (aligned > at)
        munmap(at, (size_t)(aligned - at));
    munmap(aligned + bytes, reserve - (size_t)(aligned - at) - bytes);
    madvise(aligned, bytes, MADV_HUGEPAGE); /* advice: where it is refused, small pages do */
    return aligned;
}

int weights_touch(unsigned char *base, size_t bytes, struct err *e)
{
    if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return err_io(e, "take %zu bytes of memory for weights", bytes);
    for (size_t i = 0; i < bytes; i += PAGE) /* a kernel before 5.14 */
        ((volatile unsigned char *)base)[i] = 0;
    return 0;
}

/* A planned index of the same tensors; the names are copied. */
static int plan_like(struct st_index *out, const struct st_index *src, struct buf *header,
                     struct err *e)
{
    *out = (struct st_index){0};
    for (size_t i = 0; i < src->n; i++) {
        const struct st_tensor *t = &src->tensors[i];

        if (st_index_add(out, t->name, t->name_len, t->dtype, t->ndim, t->shape, e) < 0)
            goto fail;
    }
    if (st_index_plan(out, header, e) == 0)
        return 0;

fail:
    st_index_release(out);
    return -1;
}

size_t weights_bytes(const struct st_index *src, struct err *e)
{
    struct st_index plan = {0};
    struct buf header = {0};
    size_t n = 0;

    if (plan_like(&plan, src, &header, e) == 0)
        n = plan.data_start + plan.data_bytes;
    st_index_release(&plan);
    buf_release(&header);
    return n;
}

static int take_memory(struct weights *w, void *memory, size_t memory_bytes, struct err *e)
{
    w->map_bytes = (w->bytes + PAGE - 1) / PAGE * PAGE;
    w->lent = memory != NULL;
    if (!memory)
        return (w->base = weights_map(w->map_bytes, e)) ? 0 : -1;
    if (memory_bytes < w->bytes)
        return err_set(e, ERR_SPACE, "the weights need %zu bytes, the memory given has %zu",
                       w->bytes, memory_bytes);
    w->base = memory;
    return 0;
}

struct weights *weights_lay_out(const struct st_index *src, void *memory, size_t memory_bytes,
                                struct err *e)
{
    struct weights *w = calloc(1, sizeof *w);
    struct buf header = {0};

    if (!w) {
        err_nomem(e);
        return NULL;
    }
    if (plan_like(&w->index, src, &header, e) < 0)
        goto fail;
    w->tensors = w->index.tensors;
    w->n = w->index.n;
    w->data_start = w->index.data_start;
    w->bytes = w->data_start + w->index.data_bytes;
    if (take_memory(w, memory, memory_bytes, e) < 0)
        goto fail;
    memcpy(w->base, header.data, header.len);
    buf_release(&header);
    return w;

fail:
    buf_release(&header);
    weights_free(w);
    return NULL;
}

struct weights *weights_new(const struct st_index *src, void *memory, size_t memory_bytes,
                            struct err *e)
{
    struct weights *w = weights_lay_out(src, memory, memory_bytes, e);

    if (w && !w->lent && weights_touch(w->base, w->map_bytes, e) < 0) {
        weights_free(w);
        return NULL;
    }
    return w;
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    if (w->base && !w->lent)
        munmap(w->base, w->map_bytes);
    st_index_release(&w->index);
    free(w);
}

static bool same_tensor(const struct st_tensor *a, const struct st_tensor *b)
{
    return st_compare_names(a, b) == 0 && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

bool weights_same_layout(const struct weights *w, const struct st_index *src)
{
    if (w->n != src->n)
        return false;
    for (size_t i = 0; i < w->n; i++)
        if (!same_tensor(&w->tensors[i], &src->tensors[i]))
            return false;
    return true;
}

const struct st_tensor *weights_find(const struct weights *w, const char *name)
{
    return st_index_find(&w->index, name);
}

void *weights_data(const struct weights *w, const struct st_tensor *t)
{
    return w->base + w->data_start + t->offset;
}

int weights_view(const struct weights *w, const char *name, struct tensor *out, struct err *e)
{
    const struct st_tensor *t = weights_find(w, name);

    if (!t)
        return err_set(e, ERR_NOT_FOUND, "tensor \"%s\" is missing", name);
    *out = (struct tensor){
        .data = weights_data(w, t), .bytes = t->bytes, .dtype = t->dtype, .ndim = t->ndim};
    memcpy(out->shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
    return 0;
}

/* Both tables are in byte order of the names, so the i-th tensor of one is the i-th of the other.
 */
void weights_place(struct weights *w, const struct st_index *src, size_t offset, const void *bytes,
                   size_t n)
{
    for (size_t i = 0; i < src->n; i++) {
        size_t begin = src->data_start + src->tensors[i].offset,
               end = begin + src->tensors[i].bytes;
        size_t from = begin > offset ? begin : offset, to = end < offset + n ? end : offset + n;

        if (from < to)
            memcpy((char *)weights_data(w, &w->tensors[i]) + (from - begin),
                   (const char *)bytes + (from - offset), to - from);
    }
}
