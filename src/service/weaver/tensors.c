#include "service/weaver/tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/arena.h"
#include "base/json.h"
#include "service/refusal.h"

/* ---- packs ---- */

static int corrupt(struct refusal *r, const char *what)
{
    return refuse(r, REFUSAL_W_TENSOR_PACK_CORRUPT, "The tensor pack is damaged: %s.", what);
}

/* Exactly one frame that gives exactly n bytes. */
static int inflate_pack(struct w_pack *p, const void *raw, size_t raw_n, size_t n,
                        struct refusal *r)
{
    ZSTD_DCtx *z = ZSTD_createDCtx();
    ZSTD_inBuffer in = {raw, raw_n, 0};
    ZSTD_outBuffer out = {malloc(n ? n : 1), n, 0};
    size_t left = 1;
    int rc = -1;

    p->owned = out.dst;
    if (!z || !out.dst) {
        refuse(r, REFUSAL_W_OUT_OF_MEMORY, "There is no memory for the tensor pack.");
        goto done;
    }
    ZSTD_DCtx_setParameter(z, ZSTD_d_windowLogMax, 27);
    while (left && in.pos < in.size) {
        size_t before = in.pos, had = out.pos;

        left = ZSTD_decompressStream(z, &out, &in);
        if (ZSTD_isError(left)) {
            corrupt(r, "it is no zstd frame");
            goto done;
        }
        if (left && in.pos == before && out.pos == had)
            break; /* it wants room that the manifest does not give */
    }
    if (left || in.pos != in.size || out.pos != n) {
        corrupt(r, left ? "the zstd frame is cut or holds more than decoded_size_bytes"
                        : "it is not one zstd frame of decoded_size_bytes");
        goto done;
    }
    p->bytes = p->owned;
    p->n = n;
    rc = 0;

done:
    ZSTD_freeDCtx(z);
    return rc;
}

int w_pack_open(struct w_pack *p, const json_t *facts, const void *raw, size_t n, size_t most,
                struct refusal *r)
{
    const char *codec = json_string_value(json_object_get(facts, "codec"));
    int64_t decoded;

    *p = (struct w_pack){0};
    if (!facts)
        return 0;
    if (!json_is_whole(json_object_get(facts, "decoded_size_bytes"), &decoded) || decoded < 0)
        return corrupt(r, "decoded_size_bytes is missing");
    if ((uint64_t)decoded > most)
        return refuse_with(r, REFUSAL_W_REQUEST_TOO_LARGE,
                           json_pack("{s:I, s:I}", "limit_bytes", (json_int_t)most,
                                     "decoded_size_bytes", (json_int_t)decoded),
                           "A tensor pack holds at most %zu bytes here (CAIRN_MAX_PACK_MB); send "
                           "fewer data a call.",
                           most);
    if (codec && strcmp(codec, "zstd") == 0)
        return inflate_pack(p, raw, n, (size_t)decoded, r);
    if (!codec || strcmp(codec, "raw") != 0)
        return corrupt(r, "codec must be raw or zstd");
    if ((size_t)decoded != n)
        return corrupt(r, "decoded_size_bytes is not the size of the raw pack");
    p->bytes = raw;
    p->n = n;
    return 0;
}

void w_pack_release(struct w_pack *p)
{
    free(p->owned);
    *p = (struct w_pack){0};
}

/* ---- one tensor ---- */

enum element { I64, I32, F32, F64 };

static const struct {
    const char *name;
    size_t bytes;
} elements[] = {{"int64", 8}, {"int32", 4}, {"float32", 4}, {"float64", 8}};

/* Where the numbers are: a list, one number, or a place in the pack. */
struct source {
    const char *what;
    const json_t *list, *number;
    const unsigned char *bytes;
    enum element type;
    int64_t n; /* -1: scalar */
};

static int bad(struct refusal *r, const char *what, const char *why)
{
    return refuse(r, REFUSAL_W_INVALID_DATUM, "%s: %s.", what, why);
}

static int find_type(const json_t *o, enum element *out)
{
    const char *name = json_string_value(json_object_get(o, "dtype"));

    for (int i = 0; name && i < 4; i++)
        if (strcmp(elements[i].name, name) == 0) {
            *out = (enum element)i;
            return 0;
        }
    return -1;
}

static int shape_of(const json_t *shape, int64_t *n)
{
    if (!json_is_array(shape) || json_array_size(shape) > 1)
        return -1;
    *n = -1;
    if (json_array_size(shape) == 0)
        return 0;
    return json_is_whole(json_array_get(shape, 0), n) && *n >= 0 ? 0 : -1;
}

static int open_packed(struct source *s, const json_t *t, struct w_pack *p, struct refusal *r)
{
    const char *format = json_string_value(json_object_get(t, "format"));
    const char *codec = json_string_value(json_object_get(t, "codec"));
    int64_t offset, bytes;
    size_t count, need;

    if (!p->bytes)
        return bad(r, s->what, "it refers to a tensor pack, and none came");
    if (!format || strcmp(format, "raw-tensor") != 0 || (codec && strcmp(codec, "raw") != 0))
        return bad(r, s->what, "a tensor in the pack has the format raw-tensor and the codec raw");
    if (find_type(t, &s->type) < 0)
        return bad(r, s->what, "dtype must be int64, int32, float32 or float64");
    if (shape_of(json_object_get(t, "shape"), &s->n) < 0)
        return refuse(r, REFUSAL_W_SHAPE_MISMATCH, "%s: shape must be [n] or [].", s->what);
    if (!json_is_whole(json_object_get(t, "offset"), &offset) || offset < 0 ||
        !json_is_whole(json_object_get(t, "size_bytes"), &bytes) || bytes < 0)
        return bad(r, s->what, "offset and size_bytes must be whole numbers");
    count = s->n < 0 ? 1 : (size_t)s->n;
    if (__builtin_mul_overflow(count, elements[s->type].bytes, &need) || need != (size_t)bytes)
        return refuse(r, REFUSAL_W_SHAPE_MISMATCH, "%s: size_bytes is not what its shape takes.",
                      s->what);
    if ((size_t)offset > p->n || need > p->n - (size_t)offset)
        return refuse(r, REFUSAL_W_TENSOR_PACK_CORRUPT, "%s: it leads out of the pack.", s->what);
    if (need > p->n - p->read) /* else a small request could name one place very often */
        return refuse(r, REFUSAL_W_TENSOR_PACK_CORRUPT,
                      "%s: the tensors of the pack overlap: together they are longer than it is.",
                      s->what);
    p->read += need;
    s->bytes = p->bytes + offset;
    return 0;
}

static int open_source(struct source *s, const json_t *v, struct w_pack *p, struct refusal *r)
{
    const json_t *packed = json_object_get(v, "$tensor");

    if (packed)
        return open_packed(s, packed, p, r);
    if (json_is_object(v)) {
        if (json_object_get(v, "dtype") && find_type(v, &s->type) < 0)
            return bad(r, s->what, "dtype must be int64, int32, float32 or float64");
        v = json_object_get(v, "data");
    }
    if (json_is_number(v)) {
        s->number = v;
        s->n = -1;
        return 0;
    }
    if (!json_is_array(v))
        return bad(r, s->what, "it must be a list of numbers, a number, or a tensor object");
    s->list = v;
    s->n = (int64_t)json_array_size(v);
    return 0;
}

static double packed_real(const struct source *s, size_t i)
{
    float f;
    double d;

    if (s->type == F32) {
        memcpy(&f, s->bytes + 4 * i, 4);
        return (double)f;
    }
    memcpy(&d, s->bytes + 8 * i, 8);
    return d;
}

static int64_t packed_whole(const struct source *s, size_t i)
{
    int32_t small;
    int64_t n;

    if (s->type == I32) {
        memcpy(&small, s->bytes + 4 * i, 4);
        return small;
    }
    memcpy(&n, s->bytes + 8 * i, 8);
    return n;
}

static const json_t *inline_at(const struct source *s, size_t i)
{
    return s->list ? json_array_get(s->list, i) : s->number;
}

static bool int_at(const struct source *s, size_t i, int64_t *out)
{
    double d;

    if (!s->bytes)
        return json_is_whole(inline_at(s, i), out);
    if (s->type == I64 || s->type == I32) {
        *out = packed_whole(s, i);
        return true;
    }
    d = packed_real(s, i);
    if (!(fabs(d) < 9e15) || d != floor(d))
        return false;
    *out = (int64_t)d;
    return true;
}

static bool float_at(const struct source *s, size_t i, float *out)
{
    double d;

    if (!s->bytes) {
        if (!json_is_number(inline_at(s, i)))
            return false;
        d = json_number_value(inline_at(s, i));
    } else {
        d = s->type == I64 || s->type == I32 ? (double)packed_whole(s, i) : packed_real(s, i);
    }
    *out = (float)d;
    return isfinite(*out);
}

/* Opens v and takes memory for its entries of `size` bytes; *n is its length, -1 for a scalar, and
 * *count the entries. NULL with *r. */
static void *take(struct source *s, const json_t *v, struct w_pack *p, struct arena *a, size_t size,
                  int64_t *n, size_t *count, struct refusal *r)
{
    void *out;

    if (open_source(s, v, p, r) < 0)
        return NULL;
    *n = s->n;
    *count = s->n < 0 ? 1 : (size_t)s->n;
    out = arena_alloc(a, *count * size + 1);
    if (!out)
        refuse(r, REFUSAL_W_OUT_OF_MEMORY, "There is no memory for %s.", s->what);
    return out;
}

int w_tensor_ints(const json_t *v, struct w_pack *p, struct arena *a, const char *what,
                  int64_t **out, int64_t *n, struct refusal *r)
{
    struct source s = {.what = what};
    size_t count;

    *out = take(&s, v, p, a, sizeof **out, n, &count, r);
    if (!*out)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (!int_at(&s, i, &(*out)[i]))
            return bad(r, what, "it must hold whole numbers");
    return 0;
}

int w_tensor_floats(const json_t *v, struct w_pack *p, struct arena *a, const char *what,
                    float **out, int64_t *n, struct refusal *r)
{
    struct source s = {.what = what};
    size_t count;

    *out = take(&s, v, p, a, sizeof **out, n, &count, r);
    if (!*out)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (!float_at(&s, i, &(*out)[i]))
            return bad(r, what, "it must hold finite numbers");
    return 0;
}
