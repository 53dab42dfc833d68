/* Looks metadata up by key. Everything was walked once by gguf_open, so no bound is checked again
 * here. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tensor/gguf_impl.h"

static const char *const type_names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].name.len == len && memcmp(g->tensors[i].name.s, name, len) == 0)
            return &g->tensors[i];
    return NULL;
}

size_t gguf_n_keys(const struct gguf *g)
{
    return g->n_kv;
}

struct gguf_str gguf_key_at(const struct gguf *g, size_t i, enum gguf_type *type)
{
    const struct gguf_kv *kv = &g->kv[i];

    *type = kv->is_array ? GGUF_ARRAY : kv->type;
    return (struct gguf_str){(const char *)g->bytes + kv->key, kv->key_len};
}

const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key)
{
    size_t len = strlen(key);

    for (size_t i = 0; i < g->n_kv; i++)
        if (g->kv[i].key_len == len && memcmp(g->bytes + g->kv[i].key, key, len) == 0)
            return &g->kv[i];
    return NULL;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return gguf_kv_find(g, key) != NULL;
}

static int missing(const char *key, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "metadata \"%s\" is missing", key);
}

static int wrong_type(const struct gguf_kv *kv, const char *key, const char *wanted, struct err *e)
{
    return err_set(e, ERR_FORMAT, "metadata \"%s\" is %s%s, not %s", key,
                   kv->is_array ? "array of " : "", type_names[kv->type], wanted);
}

/* -1: not an integer, or it does not fit. */
static int int_at(const struct gguf *g, enum gguf_type type, size_t at, int64_t *out)
{
    size_t bytes = gguf_type_bytes(type);
    uint64_t v = gguf_le(g->bytes + at, bytes);
    bool is_signed = type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;

    if (type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL || bytes == 0)
        return -1;
    if (!is_signed && v > INT64_MAX)
        return -1;
    if (is_signed && bytes < 8 && v >> (8 * bytes - 1))
        v |= ~UINT64_C(0) << 8 * bytes;
    memcpy(out, &v, sizeof v);
    return 0;
}

int gguf_get_int(const struct gguf *g, const char *key, int64_t *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);

    if (!kv)
        return missing(key, e);
    if (kv->is_array || int_at(g, kv->type, kv->at, out) < 0)
        return wrong_type(kv, key, "an integer that fits", e);
    return 0;
}

int gguf_get_float(const struct gguf *g, const char *key, double *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);
    float f;

    if (!kv)
        return missing(key, e);
    if (kv->is_array || (kv->type != GGUF_F32 && kv->type != GGUF_F64))
        return wrong_type(kv, key, "a real number", e);
    if (kv->type == GGUF_F64) {
        memcpy(out, g->bytes + kv->at, sizeof *out);
    } else {
        memcpy(&f, g->bytes + kv->at, sizeof f);
        *out = (double)f;
    }
    return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);

    if (!kv)
        return missing(key, e);
    if (kv->is_array || kv->type != GGUF_BOOL)
        return wrong_type(kv, key, "true or false", e);
    *out = g->bytes[kv->at] == 1;
    return 0;
}

static struct gguf_str str_at(const struct gguf *g, size_t at)
{
    return (struct gguf_str){(const char *)g->bytes + at + 8, (size_t)gguf_le(g->bytes + at, 8)};
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);

    if (!kv)
        return missing(key, e);
    if (kv->is_array || kv->type != GGUF_STRING)
        return wrong_type(kv, key, "a string", e);
    *out = str_at(g, kv->at);
    return 0;
}

int gguf_get_strings(const struct gguf *g, const char *key, struct gguf_str **out, size_t *n,
                     struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);
    size_t at;

    if (!kv)
        return missing(key, e);
    if (!kv->is_array || kv->type != GGUF_STRING)
        return wrong_type(kv, key, "an array of strings", e);
    *out = calloc((size_t)kv->count + 1, sizeof **out);
    if (!*out)
        return err_nomem(e);
    at = kv->at;
    for (size_t i = 0; i < kv->count; i++) {
        (*out)[i] = str_at(g, at);
        at += 8 + (*out)[i].len;
    }
    *n = (size_t)kv->count;
    return 0;
}

int gguf_get_ints(const struct gguf *g, const char *key, int64_t **out, size_t *n, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);

    if (!kv)
        return missing(key, e);
    if (!kv->is_array)
        return wrong_type(kv, key, "an array of integers", e);
    *out = calloc((size_t)kv->count + 1, sizeof **out);
    if (!*out)
        return err_nomem(e);
    for (size_t i = 0; i < kv->count; i++) {
        if (int_at(g, kv->type, kv->at + i * gguf_type_bytes(kv->type), &(*out)[i]) < 0) {
            free(*out);
            *out = NULL;
            return wrong_type(kv, key, "an array of integers", e);
        }
    }
    *n = (size_t)kv->count;
    return 0;
}
