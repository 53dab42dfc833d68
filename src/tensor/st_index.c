#include "tensor/st_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void st_index_release(struct st_index *ix)
{
    free(ix->tensors);
    free(ix->meta);
    free(ix->header);
    arena_release(&ix->mem);
    *ix = (struct st_index){0};
}

struct st_tensor *st_index_push(struct st_index *ix, struct err *e)
{
    if (ix->n == ix->cap) {
        size_t cap = ix->cap ? ix->cap * 2 : 16;
        struct st_tensor *grown = reallocarray(ix->tensors, cap, sizeof *grown);

        if (!grown) {
            err_nomem(e);
            return NULL;
        }
        ix->tensors = grown;
        ix->cap = cap;
    }
    ix->tensors[ix->n] = (struct st_tensor){0};
    return &ix->tensors[ix->n++];
}

int st_index_add(struct st_index *ix, const char *name, size_t name_len, enum dtype dtype, int ndim,
                 const int64_t *shape, struct err *e)
{
    size_t shape_bytes = (size_t)ndim * sizeof *shape;
    struct st_tensor *t = st_index_push(ix, e);
    unsigned char *piece;

    if (!t)
        return -1;
    piece = arena_alloc(&ix->mem, shape_bytes + name_len + 1);
    if (!piece) {
        ix->n--;
        return err_nomem(e);
    }
    if (ndim > 0)
        memcpy(piece, shape, shape_bytes);
    memcpy(piece + shape_bytes, name, name_len);
    piece[shape_bytes + name_len] = 0;
    t->shape = (const int64_t *)(void *)piece;
    t->name = (const char *)piece + shape_bytes;
    t->name_len = name_len;
    t->dtype = dtype;
    t->ndim = ndim;
    return 0;
}

static int compare_bytes(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int c = memcmp(a, b, a_len < b_len ? a_len : b_len);

    return c ? c : (a_len > b_len) - (a_len < b_len);
}

int st_compare_names(const struct st_tensor *a, const struct st_tensor *b)
{
    return compare_bytes(a->name, a->name_len, b->name, b->name_len);
}

static int by_name(const void *a, const void *b)
{
    return st_compare_names(a, b);
}

const char *st_name_str(const char *name, size_t len, char out[96])
{
    size_t n = len > 80 ? 80 : len;

    while (n > 0 && n < len && ((unsigned char)name[n] & 0xc0) == 0x80)
        n--;
    memcpy(out, name, n);
    for (size_t i = 0; i < n; i++)
        if (!out[i])
            out[i] = '?';
    memcpy(out + n, len > n ? "..." : "", len > n ? 4 : 1);
    return out;
}

int st_index_sort(struct st_index *ix, struct err *e)
{
    char name[96];

    if (ix->n > 1)
        qsort(ix->tensors, ix->n, sizeof *ix->tensors, by_name);
    for (size_t i = 1; i < ix->n; i++) {
        const struct st_tensor *t = &ix->tensors[i];

        if (st_compare_names(t - 1, t) == 0)
            return err_set(e, ERR_FORMAT, "duplicate tensor name \"%s\"",
                           st_name_str(t->name, t->name_len, name));
    }
    return 0;
}

const struct st_tensor *st_index_find_n(const struct st_index *ix, const char *name, size_t len)
{
    size_t low = 0, high = ix->n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct st_tensor *t = &ix->tensors[mid];
        int c = compare_bytes(t->name, t->name_len, name, len);

        if (c == 0)
            return t;
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

const struct st_tensor *st_index_find(const struct st_index *ix, const char *name)
{
    return st_index_find_n(ix, name, strlen(name));
}

void st_index_dtypes(const struct st_index *ix, size_t counts[DTYPE_COUNT], char *out, size_t n)
{
    size_t own[DTYPE_COUNT] = {0}, at = 0;

    for (size_t i = 0; i < ix->n; i++)
        own[ix->tensors[i].dtype]++;
    if (n)
        out[0] = 0;
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (own[t] && at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s x %zu", at ? ", " : "",
                                   dtype_name((enum dtype)t), own[t]);
    if (counts)
        memcpy(counts, own, sizeof own);
}
