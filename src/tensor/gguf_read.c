/* The structure of a GGUF file: header, metadata, tensor table. Values are looked up in
 * gguf_meta.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "tensor/gguf_impl.h"
#include "tensor/st_index.h"

enum { READ_STEP = 1 << 18 };

uint64_t gguf_le(const unsigned char *p, size_t n)
{
    uint64_t v = 0;

    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

size_t gguf_type_bytes(enum gguf_type t)
{
    static const unsigned char bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
        [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};

    return t < sizeof bytes ? bytes[t] : 0;
}

static int pread_all(const struct gguf *g, void *to, size_t n, uint64_t offset, struct err *e)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(g->fd, (char *)to + got, n - got, (off_t)(offset + got));

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_io(e, "read the GGUF file");
        if (k == 0)
            return err_set(e, ERR_FORMAT, "the GGUF file became shorter while it was read");
        got += (size_t)k;
    }
    return 0;
}

/* The buffer grows with what was parsed, so a false count never takes memory. */
static int load_to(struct gguf *g, size_t end, struct err *e)
{
    size_t want = end + READ_STEP;

    if (want > g->file_bytes)
        want = (size_t)g->file_bytes;
    if (want > g->cap) {
        size_t cap = g->cap * 2 > want ? g->cap * 2 : want;
        unsigned char *grown;

        if (cap > g->file_bytes)
            cap = (size_t)g->file_bytes;
        grown = realloc(g->bytes, cap);
        if (!grown)
            return err_nomem(e);
        g->bytes = grown;
        g->cap = cap;
    }
    if (pread_all(g, g->bytes + g->have, want - g->have, g->have, e) < 0)
        return -1;
    g->have = want;
    return 0;
}

/* Makes bytes [at, at + n) present. */
static int need(struct gguf *g, uint64_t n, struct err *e)
{
    if (n > g->file_bytes - g->at)
        return err_set(e, ERR_FORMAT,
                       "the GGUF file ends at byte %" PRIu64 ", %" PRIu64
                       " more are claimed at %zu",
                       g->file_bytes, n, g->at);
    return g->at + n <= g->have ? 0 : load_to(g, g->at + (size_t)n, e);
}

static int take(struct gguf *g, size_t n, uint64_t *out, struct err *e)
{
    if (need(g, n, e) < 0)
        return -1;
    *out = gguf_le(g->bytes + g->at, n);
    g->at += n;
    return 0;
}

/* A string: 8 bytes of length, then the bytes. Gives its place in the buffer. */
static int take_string(struct gguf *g, size_t *at, size_t *len, struct err *e)
{
    uint64_t n = 0;

    if (take(g, 8, &n, e) < 0 || need(g, n, e) < 0)
        return -1;
    *at = g->at;
    *len = (size_t)n;
    g->at += (size_t)n;
    return 0;
}

static int skip_strings(struct gguf *g, uint64_t count, struct err *e)
{
    size_t at, len;

    for (uint64_t i = 0; i < count; i++)
        if (take_string(g, &at, &len, e) < 0)
            return -1;
    return 0;
}

static int skip_value(struct gguf *g, const struct gguf_kv *kv, struct err *e)
{
    size_t each = gguf_type_bytes(kv->type);
    uint64_t n;

    if (kv->type == GGUF_STRING)
        return skip_strings(g, kv->count, e);
    if (each == 0)
        return err_set(e, ERR_FORMAT, "value type %d is %s", (int)kv->type,
                       kv->type == GGUF_ARRAY ? "an array inside an array, which is not read"
                                              : "unknown");
    if (__builtin_mul_overflow(kv->count, each, &n))
        return err_set(e, ERR_FORMAT, "an array claims %" PRIu64 " elements", kv->count);
    if (need(g, n, e) < 0)
        return -1;
    if (kv->type == GGUF_BOOL)
        for (size_t i = 0; i < n; i++)
            if (g->bytes[g->at + i] > 1)
                return err_set(e, ERR_FORMAT, "a truth value is %d", g->bytes[g->at + i]);
    g->at += (size_t)n;
    return 0;
}

static int read_kv(struct gguf *g, struct gguf_kv *kv, struct err *e)
{
    char shown[96] = "";
    uint64_t type = 0;

    if (take_string(g, &kv->key, &kv->key_len, e) < 0)
        return err_wrap(e, "metadata key");
    st_name_str((const char *)g->bytes + kv->key, kv->key_len, shown);
    if (take(g, 4, &type, e) < 0)
        return err_wrap(e, "metadata \"%s\"", shown);
    kv->is_array = type == GGUF_ARRAY;
    kv->count = 1;
    if (kv->is_array && (take(g, 4, &type, e) < 0 || take(g, 8, &kv->count, e) < 0))
        return err_wrap(e, "metadata \"%s\"", shown);
    kv->type = (enum gguf_type)(type > GGUF_F64 ? GGUF_F64 + 1 : type);
    kv->at = g->at;
    if (skip_value(g, kv, e) < 0)
        return err_wrap(e, "metadata \"%s\"", shown);
    return 0;
}

static int read_metadata(struct gguf *g, uint64_t claimed, struct err *e)
{
    if (claimed > GGUF_KEYS_MAX)
        return err_set(e, ERR_FORMAT,
                       "the GGUF file claims %" PRIu64 " metadata keys, of at most %d", claimed,
                       (int)GGUF_KEYS_MAX);
    while (g->n_kv < claimed) {
        if (g->n_kv == g->cap_kv) {
            size_t cap = g->cap_kv ? g->cap_kv * 2 : 64;
            struct gguf_kv *grown = reallocarray(g->kv, cap, sizeof *grown);

            if (!grown)
                return err_nomem(e);
            g->kv = grown;
            g->cap_kv = cap;
        }
        g->kv[g->n_kv] = (struct gguf_kv){0};
        if (read_kv(g, &g->kv[g->n_kv], e) < 0)
            return -1;
        g->n_kv++;
    }
    return 0;
}

/* ---- the tensor table ---- */

static int read_dims(struct gguf *g, struct gguf_tensor *t, struct err *e)
{
    uint64_t n = 0, dim = 0;

    if (take(g, 4, &n, e) < 0)
        return -1;
    if (n > GGUF_DIMS_MAX)
        return err_set(e, ERR_FORMAT, "%" PRIu64 " dimensions, of at most %d", n,
                       (int)GGUF_DIMS_MAX);
    t->ndim = (int)n;
    t->elements = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (take(g, 8, &dim, e) < 0)
            return -1;
        if (dim > INT64_MAX || __builtin_mul_overflow(t->elements, (int64_t)dim, &t->elements))
            return err_set(e, ERR_FORMAT,
                           "a dimension of %" PRIu64 " makes more than 2^63 elements", dim);
        t->shape[t->ndim - 1 - i] = (int64_t)dim;
    }
    return 0;
}

/* Blocks lie along the innermost dimension. */
static int size_tensor(struct gguf_tensor *t, struct err *e)
{
    int64_t inner = t->ndim ? t->shape[t->ndim - 1] : 1;
    int elements = 0, bytes = 0;
    uint64_t blocks;

    if (gguf_type_block(t->type, &elements, &bytes) < 0)
        return err_set(e, ERR_FORMAT, "tensor type %" PRIu32 " is unknown", t->type);
    if (inner % elements)
        return err_set(e, ERR_FORMAT, "rows of %" PRId64 " elements do not fill %s blocks of %d",
                       inner, gguf_type_name(t->type), elements);
    blocks = (uint64_t)(t->elements / elements);
    if (__builtin_mul_overflow(blocks, (uint64_t)bytes, &t->bytes))
        return err_set(e, ERR_FORMAT, "it has more than 2^64 bytes");
    return 0;
}

static int read_tensor(struct gguf *g, struct gguf_tensor *t, struct err *e)
{
    char shown[96] = "";
    size_t at, len;
    uint64_t type = 0;

    if (take_string(g, &at, &len, e) < 0)
        return err_wrap(e, "tensor table");
    /* an offset for now: the buffer may still move */
    t->name = (struct gguf_str){.s = (const char *)(uintptr_t)at, .len = len};
    st_name_str((const char *)g->bytes + at, len, shown);
    if (read_dims(g, t, e) < 0 || take(g, 4, &type, e) < 0 || take(g, 8, &t->offset, e) < 0)
        return err_wrap(e, "tensor \"%s\"", shown);
    t->type = (uint32_t)type;
    return size_tensor(t, e) < 0 ? err_wrap(e, "tensor \"%s\"", shown) : 0;
}

static int read_tensors(struct gguf *g, uint64_t claimed, struct err *e)
{
    if (claimed > GGUF_TENSORS_MAX)
        return err_set(e, ERR_FORMAT, "the GGUF file claims %" PRIu64 " tensors, of at most %d",
                       claimed, (int)GGUF_TENSORS_MAX);
    while (g->n_tensors < claimed) {
        if (g->n_tensors == g->cap_tensors) {
            size_t cap = g->cap_tensors ? g->cap_tensors * 2 : 64;
            struct gguf_tensor *grown = reallocarray(g->tensors, cap, sizeof *grown);

            if (!grown)
                return err_nomem(e);
            g->tensors = grown;
            g->cap_tensors = cap;
        }
        g->tensors[g->n_tensors] = (struct gguf_tensor){0};
        if (read_tensor(g, &g->tensors[g->n_tensors], e) < 0)
            return -1;
        g->n_tensors++;
    }
    return 0;
}

static int get_alignment(const struct gguf *g, uint64_t *out, struct err *e)
{
    int64_t v = 32;

    if (gguf_has(g, "general.alignment") && gguf_get_int(g, "general.alignment", &v, e) < 0)
        return -1;
    if (v < 1 || v > GGUF_ALIGN_MAX || (v & (v - 1)))
        return err_set(e, ERR_FORMAT, "general.alignment is %" PRId64 ", not a power of two", v);
    *out = (uint64_t)v;
    return 0;
}

static int place_tensor(const struct gguf *g, struct gguf_tensor *t, uint64_t start, uint64_t align,
                        struct err *e)
{
    if (t->offset % align)
        return err_set(e, ERR_FORMAT, "its offset %" PRIu64 " is not a multiple of %" PRIu64,
                       t->offset, align);
    if (__builtin_add_overflow(t->offset, start, &t->offset) || t->offset > g->file_bytes ||
        t->bytes > g->file_bytes - t->offset)
        return err_set(e, ERR_FORMAT, "its %" PRIu64 " bytes reach past the end of the file",
                       t->bytes);
    return 0;
}

/* The buffer does not move any more: offsets of names become pointers. */
static void settle_names(struct gguf *g)
{
    for (size_t i = 0; i < g->n_tensors; i++)
        g->tensors[i].name.s = (const char *)g->bytes + (uintptr_t)g->tensors[i].name.s;
}

static int place_tensors(struct gguf *g, struct err *e)
{
    uint64_t align = 32, start;
    char shown[96];

    if (get_alignment(g, &align, e) < 0)
        return -1;
    start = (g->at + align - 1) / align * align;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];

        if (place_tensor(g, t, start, align, e) < 0)
            return err_wrap(e, "tensor \"%s\"", st_name_str(t->name.s, t->name.len, shown));
    }
    return 0;
}

/* ---- what may not occur twice ---- */

static int compare_str(const struct gguf_str *a, const struct gguf_str *b)
{
    int c = memcmp(a->s, b->s, a->len < b->len ? a->len : b->len);

    return c ? c : (a->len > b->len) - (a->len < b->len);
}

static int by_text(const void *a, const void *b)
{
    return compare_str(a, b);
}

static int refuse_twins(struct gguf_str *names, size_t n, const char *what, struct err *e)
{
    char shown[96];

    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; i < n; i++)
        if (compare_str(&names[i - 1], &names[i]) == 0)
            return err_set(e, ERR_FORMAT, "duplicate %s \"%s\"", what,
                           st_name_str(names[i].s, names[i].len, shown));
    return 0;
}

static int check_names(const struct gguf *g, struct err *e)
{
    size_t n = g->n_kv > g->n_tensors ? g->n_kv : g->n_tensors;
    struct gguf_str *names = calloc(n + 1, sizeof *names);
    int rc;

    if (!names)
        return err_nomem(e);
    for (size_t i = 0; i < g->n_kv; i++)
        names[i] = (struct gguf_str){(const char *)g->bytes + g->kv[i].key, g->kv[i].key_len};
    rc = refuse_twins(names, g->n_kv, "metadata key", e);
    for (size_t i = 0; i < g->n_tensors; i++)
        names[i] = g->tensors[i].name;
    if (rc == 0)
        rc = refuse_twins(names, g->n_tensors, "tensor", e);
    free(names);
    return rc;
}

static int by_offset(const void *a, const void *b, void *tensors)
{
    const struct gguf_tensor *x = (const struct gguf_tensor *)tensors + *(const uint32_t *)a;
    const struct gguf_tensor *y = (const struct gguf_tensor *)tensors + *(const uint32_t *)b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int check_overlap(const struct gguf *g, struct err *e)
{
    uint32_t *order = calloc(g->n_tensors + 1, sizeof *order);
    char shown[96];
    int rc = 0;

    if (!order)
        return err_nomem(e);
    for (uint32_t i = 0; i < g->n_tensors; i++)
        order[i] = i;
    if (g->n_tensors > 1)
        qsort_r(order, g->n_tensors, sizeof *order, by_offset, g->tensors);
    for (size_t i = 1; i < g->n_tensors && rc == 0; i++) {
        const struct gguf_tensor *last = &g->tensors[order[i - 1]], *t = &g->tensors[order[i]];

        if (t->offset < last->offset + last->bytes)
            rc = err_set(e, ERR_FORMAT, "tensor \"%s\" overlaps the one before it",
                         st_name_str(t->name.s, t->name.len, shown));
    }
    free(order);
    return rc;
}

static int read_header(struct gguf *g, uint64_t *n_tensors, uint64_t *n_kv, struct err *e)
{
    uint64_t version = 0;

    if (g->file_bytes >= 24 && need(g, 24, e) < 0)
        return -1;
    if (!g->bytes || memcmp(g->bytes, "GGUF", 4) != 0)
        return err_set(e, ERR_FORMAT,
                       "not a GGUF file: it does not begin with \"GGUF\" and a header");
    g->at = 4;
    if (take(g, 4, &version, e) < 0 || take(g, 8, n_tensors, e) < 0 || take(g, 8, n_kv, e) < 0)
        return -1;
    if (version && (version & 0xffff) == 0)
        return err_set(e, ERR_FORMAT, "the GGUF file is big-endian, which is not read");
    if (version != 2 && version != 3)
        return err_set(e, ERR_FORMAT, "GGUF version %" PRIu64 " is not read, only 2 and 3",
                       version);
    g->version = (uint32_t)version;
    return 0;
}

static int read_all(struct gguf *g, struct err *e)
{
    uint64_t n_tensors = 0, n_kv = 0;
    struct stat st;

    if (fstat(g->fd, &st) < 0)
        return err_io(e, "stat");
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_FORMAT, "not a regular file");
    g->file_bytes = (uint64_t)st.st_size;
    if (read_header(g, &n_tensors, &n_kv, e) < 0 || read_metadata(g, n_kv, e) < 0 ||
        read_tensors(g, n_tensors, e) < 0)
        return -1;
    settle_names(g);
    if (check_names(g, e) < 0 || place_tensors(g, e) < 0)
        return -1;
    return check_overlap(g, e);
}

struct gguf *gguf_open(int fd, struct err *e)
{
    struct gguf *g = calloc(1, sizeof *g);

    if (!g) {
        err_nomem(e);
        return NULL;
    }
    g->fd = fd;
    if (read_all(g, e) < 0) {
        gguf_close(g);
        return NULL;
    }
    return g;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    free(g->bytes);
    free(g->kv);
    free(g->tensors);
    free(g);
}

int gguf_read_f32(const struct gguf *g, const struct gguf_tensor *t, int64_t first, int64_t n,
                  float *out, struct err *e)
{
    int elements = 1, bytes = 1;
    unsigned char *blocks;
    size_t size;
    int rc;

    gguf_type_block(t->type, &elements, &bytes);
    if (first % elements || n % elements || first < 0 || n < 0 || n > t->elements - first)
        return err_set(e, ERR_ARG,
                       "elements [%" PRId64 ", +%" PRId64 ") are not blocks of the tensor", first,
                       n);
    size = (size_t)(n / elements) * (size_t)bytes;
    blocks = malloc(size + 1);
    if (!blocks)
        return err_nomem(e);
    rc = pread_all(g, blocks, size, t->offset + (uint64_t)(first / elements) * (uint64_t)bytes, e);
    if (rc == 0 && gguf_dequantise(t->type, blocks, n, out) < 0)
        rc = err_set(e, ERR_FORMAT, "tensor type %s is not read", gguf_type_name(t->type));
    free(blocks);
    return rc;
}
