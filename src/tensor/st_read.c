/* Reads the header of a safetensors file: bytes -> entries -> one index that covers the data
 * exactly. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "tensor/st_index.h"
#include "tensor/st_json.h"
#include "tensor/tensor.h"

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

struct header {
    struct st_json j;
    struct st_index *ix;
    struct arena scratch; /* decoded strings of the item at hand */
};

struct entry {
    unsigned has;
    enum dtype dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int64_t begin, end;
};

static bool is(const char *key, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(key, word, len) == 0;
}

static int read_dtype(struct st_json *j, struct arena *mem, struct entry *en)
{
    const char *text;
    char shown[96];
    size_t len;

    if (st_json_string(j, mem, &text, &len) < 0)
        return -1;
    if (dtype_parse(text, len, &en->dtype) < 0)
        return err_set(j->e, ERR_FORMAT, "dtype \"%s\" is unknown", st_name_str(text, len, shown));
    return 0;
}

static int read_shape(struct st_json *j, struct entry *en)
{
    if (st_json_expect(j, '[') < 0)
        return -1;
    if (st_json_accept(j, ']'))
        return 0;
    do {
        if (en->ndim == TENSOR_MAX_DIM)
            return err_set(j->e, ERR_FORMAT, "the shape has more than %d dimensions",
                           TENSOR_MAX_DIM);
        if (st_json_int(j, &en->shape[en->ndim++]) < 0)
            return -1;
    } while (st_json_accept(j, ','));
    return st_json_expect(j, ']');
}

static int read_offsets(struct st_json *j, struct entry *en)
{
    if (st_json_expect(j, '[') < 0 || st_json_int(j, &en->begin) < 0 ||
        st_json_expect(j, ',') < 0 || st_json_int(j, &en->end) < 0)
        return -1;
    return st_json_expect(j, ']');
}

/* One "key": value inside an entry. A key that the format does not know is read over. */
static int read_field(struct st_json *j, struct arena *mem, struct entry *en)
{
    unsigned bit = 0;
    const char *key;
    size_t len;

    if (st_json_string(j, mem, &key, &len) < 0 || st_json_expect(j, ':') < 0)
        return -1;
    if (is(key, len, "dtype"))
        bit = HAS_DTYPE;
    else if (is(key, len, "shape"))
        bit = HAS_SHAPE;
    else if (is(key, len, "data_offsets"))
        bit = HAS_OFFSETS;
    if (en->has & bit)
        return err_set(j->e, ERR_FORMAT, "duplicate key \"%s\"", key);
    en->has |= bit;
    switch (bit) {
    case HAS_DTYPE:
        return read_dtype(j, mem, en);
    case HAS_SHAPE:
        return read_shape(j, en);
    case HAS_OFFSETS:
        return read_offsets(j, en);
    default:
        return st_json_skip(j);
    }
}

static int read_fields(struct st_json *j, struct arena *mem, struct entry *en)
{
    if (st_json_expect(j, '{') < 0)
        return -1;
    if (st_json_accept(j, '}'))
        return 0;
    do {
        if (read_field(j, mem, en) < 0)
            return -1;
    } while (st_json_accept(j, ','));
    return st_json_expect(j, '}');
}

/* Offsets and sizes are checked when all names are known: a name that occurs twice is the better
 * message. */
static int read_entry(struct header *h, const char *name, size_t len)
{
    struct st_index *ix = h->ix;
    struct entry en = {0};
    char shown[96];

    if (read_fields(&h->j, &h->scratch, &en) < 0)
        return err_wrap(h->j.e, "tensor \"%s\"", st_name_str(name, len, shown));
    if (en.has != HAS_ALL)
        return err_set(h->j.e, ERR_FORMAT, "tensor \"%s\": %s is missing",
                       st_name_str(name, len, shown),
                       !(en.has & HAS_DTYPE)   ? "dtype"
                       : !(en.has & HAS_SHAPE) ? "shape"
                                               : "data_offsets");
    if (st_index_add(ix, name, len, en.dtype, en.ndim, en.shape, h->j.e) < 0)
        return -1;
    ix->tensors[ix->n - 1].offset = (size_t)en.begin;
    ix->tensors[ix->n - 1].bytes = (size_t)en.end; /* the end, until check_extent */
    return 0;
}

/* Turns begin and end into offset and bytes. */
static int check_extent(struct st_tensor *t, size_t data_bytes, struct err *e)
{
    size_t begin = t->offset, end = t->bytes, need = 0;

    if (begin > end)
        return err_set(e, ERR_FORMAT, "data_offsets [%zu, %zu] run backwards", begin, end);
    if (end > data_bytes)
        return err_set(e, ERR_FORMAT,
                       "data_offsets end at %zu, but the file holds only %zu bytes of data", end,
                       data_bytes);
    if (tensor_shape_bytes(t->dtype, t->ndim, t->shape, &need, e) < 0)
        return -1;
    if (need != end - begin)
        return err_set(e, ERR_FORMAT, "dtype and shape need %zu bytes, data_offsets give %zu", need,
                       end - begin);
    t->bytes = need;
    return 0;
}

static int check_extents(struct st_index *ix, struct err *e)
{
    char name[96];

    for (size_t i = 0; i < ix->n; i++)
        if (check_extent(&ix->tensors[i], ix->data_bytes, e) < 0)
            return err_wrap(e, "tensor \"%s\"",
                            st_name_str(ix->tensors[i].name, ix->tensors[i].name_len, name));
    return 0;
}

static int add_meta(struct st_index *ix, const struct st_meta *m, struct err *e)
{
    if (ix->n_meta == ix->cap_meta) {
        size_t cap = ix->cap_meta ? ix->cap_meta * 2 : 4;
        struct st_meta *grown = reallocarray(ix->meta, cap, sizeof *grown);

        if (!grown)
            return err_nomem(e);
        ix->meta = grown;
        ix->cap_meta = cap;
    }
    ix->meta[ix->n_meta++] = *m;
    return 0;
}

static int read_meta(struct st_json *j, struct st_index *ix)
{
    if (ix->has_meta)
        return err_set(j->e, ERR_FORMAT, "duplicate key \"__metadata__\"");
    ix->has_meta = true;
    if (st_json_expect(j, '{') < 0)
        return err_wrap(j->e, "__metadata__");
    if (st_json_accept(j, '}'))
        return 0;
    do {
        struct st_meta m = {0};

        if (st_json_string(j, &ix->mem, &m.key, &m.key_len) < 0 || st_json_expect(j, ':') < 0 ||
            st_json_string(j, &ix->mem, &m.value, &m.value_len) < 0)
            return err_wrap(j->e, "__metadata__");
        if (add_meta(ix, &m, j->e) < 0)
            return -1;
    } while (st_json_accept(j, ','));
    return st_json_expect(j, '}');
}

/* The name is decoded into scratch memory first: st_index_add keeps the only lasting copy. */
static int read_item(struct header *h)
{
    const char *name;
    size_t len;

    arena_reset(&h->scratch);
    if (st_json_string(&h->j, &h->scratch, &name, &len) < 0 || st_json_expect(&h->j, ':') < 0)
        return -1;
    return is(name, len, "__metadata__") ? read_meta(&h->j, h->ix) : read_entry(h, name, len);
}

static int read_items(struct header *h)
{
    if (h->j.p == h->j.end || *h->j.p != '{')
        return st_json_fail(&h->j, "'{'");
    h->j.p++;
    if (st_json_accept(&h->j, '}'))
        return st_json_end(&h->j);
    do {
        if (read_item(h) < 0)
            return -1;
    } while (st_json_accept(&h->j, ','));
    return st_json_expect(&h->j, '}') < 0 ? -1 : st_json_end(&h->j);
}

static int by_offset(const void *a, const void *b, void *tensors)
{
    const struct st_tensor *x = (const struct st_tensor *)tensors + *(const uint32_t *)a;
    const struct st_tensor *y = (const struct st_tensor *)tensors + *(const uint32_t *)b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Tensors in order of their data: each begins where the one before ends, the last one ends the
 * file. */
static int check_order(const struct st_index *ix, const uint32_t *order, struct err *e)
{
    char name[96];
    size_t at = 0;

    for (size_t i = 0; i < ix->n; i++) {
        const struct st_tensor *t = &ix->tensors[order[i]];

        if (t->offset != at)
            return err_set(
                e, ERR_FORMAT,
                "tensor \"%s\" begins at %zu of the data, but the one before ends at %zu: %s",
                st_name_str(t->name, t->name_len, name), t->offset, at,
                t->offset < at ? "they overlap" : "there is a hole");
        at += t->bytes;
    }
    if (at != ix->data_bytes)
        return err_set(e, ERR_FORMAT, "%zu bytes after the last tensor belong to nothing",
                       ix->data_bytes - at);
    return 0;
}

static int check_coverage(const struct st_index *ix, struct err *e)
{
    uint32_t *order = calloc(ix->n + 1, sizeof *order); /* a header has room for fewer than 2^32 */
    int rc;

    if (!order)
        return err_nomem(e);
    for (size_t i = 0; i < ix->n; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, ix->n, sizeof *order, by_offset, ix->tensors);
    rc = check_order(ix, order, e);
    free(order);
    return rc;
}

/* The claim in the first 8 bytes against the size of the file. */
static int check_length(const unsigned char *bytes, size_t len, uint64_t file_bytes, size_t *header,
                        struct err *e)
{
    uint64_t n = 0;

    if (file_bytes < 8 || len < 8)
        return err_set(e, ERR_FORMAT,
                       "the file has %" PRIu64 " bytes, too few for a safetensors header",
                       file_bytes);
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)bytes[i] << 8 * i;
    if (n > ST_HEADER_MAX)
        return err_set(e, ERR_FORMAT,
                       "the header claims %" PRIu64
                       " bytes, of at most %d; this may not be a safetensors file",
                       n, (int)ST_HEADER_MAX);
    if (n > file_bytes - 8)
        return err_set(e, ERR_FORMAT,
                       "the header claims %" PRIu64 " bytes, but only %" PRIu64 " follow", n,
                       file_bytes - 8);
    *header = (size_t)n;
    return 0;
}

int st_index_parse(struct st_index *ix, const void *bytes, size_t len, uint64_t file_bytes,
                   struct err *e)
{
    struct header h = {.j.e = e, .ix = ix};
    size_t header = 0;
    int rc;

    *ix = (struct st_index){0};
    if (check_length(bytes, len, file_bytes, &header, e) < 0)
        return -1;
    if (len < 8 + header)
        return err_set(e, ERR_ARG, "%zu bytes of a header of %zu", len, 8 + header);
    ix->data_start = 8 + header;
    ix->data_bytes = (size_t)(file_bytes - ix->data_start);
    h.j.start = h.j.p = (const unsigned char *)bytes + 8;
    h.j.end = h.j.start + header;
    rc = read_items(&h);
    arena_release(&h.scratch);
    if (rc < 0 || st_index_sort(ix, e) < 0 || check_extents(ix, e) < 0 ||
        check_coverage(ix, e) < 0) {
        st_index_release(ix);
        return -1;
    }
    ix->canonical = st_index_is_canonical(ix, bytes);
    return 0;
}

static int read_at(int fd, void *to, size_t n, size_t offset, struct err *e)
{
    for (size_t got = 0; got < n;) {
        ssize_t r = pread(fd, (char *)to + got, n - got, (off_t)(offset + got));

        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_io(e, "read the header");
        if (r == 0)
            return err_set(e, ERR_FORMAT, "the file became shorter while its header was read");
        got += (size_t)r;
    }
    return 0;
}

int st_index_read(struct st_index *ix, int fd, struct err *e)
{
    unsigned char prefix[8] = {0};
    size_t header = 0;
    struct stat st;
    char *bytes;

    *ix = (struct st_index){0};
    if (fstat(fd, &st) < 0)
        return err_io(e, "stat");
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_FORMAT, "not a regular file");
    if (st.st_size >= 8 && read_at(fd, prefix, 8, 0, e) < 0)
        return -1;
    if (check_length(prefix, 8, (uint64_t)st.st_size, &header, e) < 0)
        return -1;
    bytes = malloc(8 + header);
    if (!bytes)
        return err_nomem(e);
    memcpy(bytes, prefix, 8);
    if (read_at(fd, bytes + 8, header, 8, e) < 0 ||
        st_index_parse(ix, bytes, 8 + header, (uint64_t)st.st_size, e) < 0) {
        free(bytes);
        return -1;
    }
    ix->header = bytes;
    return 0;
}
