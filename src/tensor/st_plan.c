/* The canonical form: the header of the files that we write, and of every image in memory. */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "tensor/st_index.h"
#include "tensor/tensor.h"

#define OPENING "{\"__metadata__\":{\"format\":\"pt\"}"

static int lay_out(struct st_index *ix, struct err *e)
{
    size_t at = 0;
    char name[96];

    for (size_t i = 0; i < ix->n; i++) {
        struct st_tensor *t = &ix->tensors[i];

        if (tensor_shape_bytes(t->dtype, t->ndim, t->shape, &t->bytes, e) < 0)
            return err_wrap(e, "tensor \"%s\"", st_name_str(t->name, t->name_len, name));
        t->offset = at;
        if (__builtin_add_overflow(at, t->bytes, &at) || at > INT64_MAX)
            return err_set(e, ERR_FORMAT, "the tensors have more than 2^63 bytes together");
    }
    ix->data_bytes = at;
    return 0;
}

static void write_entry(struct buf *b, const struct st_tensor *t)
{
    buf_add_char(b, ',');
    json_write_str(b, t->name, t->name_len);
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(t->dtype));
    for (int i = 0; i < t->ndim; i++)
        buf_printf(b, "%s%" PRId64, i ? "," : "", t->shape[i]);
    buf_printf(b, "],\"data_offsets\":[%zu,%zu]}", t->offset, t->offset + t->bytes);
}

static void write_prefix(unsigned char *to, uint64_t length)
{
    for (int i = 0; i < 8; i++)
        to[i] = (unsigned char)(length >> 8 * i);
}

int st_index_plan(struct st_index *ix, struct buf *header, struct err *e)
{
    size_t start = header->len, n;

    if (st_index_sort(ix, e) < 0 || lay_out(ix, e) < 0)
        return -1;
    buf_add(header, "\0\0\0\0\0\0\0", 8);
    buf_add_str(header, OPENING);
    for (size_t i = 0; i < ix->n; i++)
        write_entry(header, &ix->tensors[i]);
    buf_add_char(header, '}');
    while (!header->failed && (header->len - start) % ST_DATA_ALIGN)
        buf_add_char(header, ' ');
    if (header->failed)
        return err_nomem(e);
    n = header->len - start;
    if (n - 8 > ST_HEADER_MAX)
        return err_set(e, ERR_FORMAT, "the header would have %zu bytes, of at most %d", n - 8,
                       (int)ST_HEADER_MAX);
    write_prefix((unsigned char *)header->data + start, n - 8);
    ix->data_start = n;
    ix->canonical = true;
    return 0;
}

/* Takes n bytes from the header when they are these. */
static bool take(const char **p, const char *end, const char *bytes, size_t n)
{
    if ((size_t)(end - *p) < n || memcmp(*p, bytes, n) != 0)
        return false;
    *p += n;
    return true;
}

/* Compares entry by entry, so that no second header is built. */
static bool take_entries(const struct st_index *ix, const char **p, const char *end)
{
    struct buf entry = {0};
    bool same = true;
    size_t at = 0;

    for (size_t i = 0; i < ix->n && same; i++) {
        const struct st_tensor *t = &ix->tensors[i];

        buf_reset(&entry);
        write_entry(&entry, t);
        same = !entry.failed && t->offset == at && take(p, end, entry.data, entry.len);
        at += t->bytes;
    }
    buf_release(&entry);
    return same;
}

bool st_index_is_canonical(const struct st_index *ix, const void *header)
{
    const char *p = (const char *)header + 8, *end = (const char *)header + ix->data_start;

    if (ix->data_start % ST_DATA_ALIGN || !take(&p, end, OPENING, strlen(OPENING)) ||
        !take_entries(ix, &p, end) || !take(&p, end, "}", 1) || end - p >= ST_DATA_ALIGN)
        return false;
    while (p < end)
        if (*p++ != ' ')
            return false;
    return true;
}
