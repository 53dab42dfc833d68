/* The few facts of config.json that decide whether a directory may be loaded at all. */
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "tensor/model_dir.h"

enum { CONFIG_MAX = 4 << 20 };

/* Buffers that older savers stored beside the parameters; nothing reads them. */
static bool is_buffer(const struct st_tensor *t)
{
    static const char *const ends[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]);

        if (t->name_len >= n && memcmp(t->name + t->name_len - n, ends[i], n) == 0)
            return true;
    }
    return false;
}

int model_dir_dtype(const struct st_index *ix, enum dtype *out, struct err *e)
{
    const struct st_tensor *first = NULL;
    char counts[160];

    for (size_t i = 0; i < ix->n; i++) {
        const struct st_tensor *t = &ix->tensors[i];

        if (is_buffer(t))
            continue;
        if (!first)
            first = t;
        if (t->dtype != first->dtype) {
            st_index_dtypes(ix, NULL, counts, sizeof counts);
            return err_set(e, ERR_FORMAT,
                           "the weights have several dtypes (%s); save all of them in one", counts);
        }
    }
    if (!first)
        return err_set(e, ERR_FORMAT, "there are no weights in the file");
    *out = first->dtype;
    return 0;
}

static int check_weights_dtype(const struct model_dir *md, unsigned flags, enum dtype *dtype,
                               struct err *e)
{
    if (model_dir_dtype(&md->all, dtype, e) < 0)
        return -1;
    if (*dtype == DTYPE_BF16 || *dtype == DTYPE_F16 || (*dtype == DTYPE_F32 && flags & MD_F32_OK))
        return 0;
    return err_set(e, ERR_FORMAT, "the weights are %s; only %s are loaded, and nothing is cast",
                   dtype_name(*dtype), flags & MD_F32_OK ? "BF16, F16 and F32" : "BF16 and F16");
}

static bool has_file(int dir_fd, const char *name)
{
    return faccessat(dir_fd, name, R_OK, 0) == 0;
}

static bool has_tokenizer(int dir_fd)
{
    return has_file(dir_fd, "tokenizer.json") || has_file(dir_fd, "tokenizer.model") ||
           has_file(dir_fd, "spiece.model") || has_file(dir_fd, "vocab.txt") ||
           (has_file(dir_fd, "vocab.json") && has_file(dir_fd, "merges.txt"));
}

static const char *without_torch(const char *name)
{
    return strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
}

/* "bfloat16", "float16" or "half", "float32" or "float", each with or without "torch.". */
static int parse_config_dtype(const char *name, enum dtype *out)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } spellings[] = {{"bfloat16", DTYPE_BF16},
                     {"float16", DTYPE_F16},
                     {"half", DTYPE_F16},
                     {"float32", DTYPE_F32},
                     {"float", DTYPE_F32}};

    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (strcmp(without_torch(name), spellings[i].name) == 0) {
            *out = spellings[i].dtype;
            return 0;
        }
    }
    return -1;
}

/* Both keys may be there; null counts as absent. */
static int check_config_dtype(const json_t *config, enum dtype weights, struct err *e)
{
    const char *a = NULL, *b = NULL, *name;
    enum dtype says;

    if (json_opt_str(config, "dtype", &a, e) < 0 || json_opt_str(config, "torch_dtype", &b, e) < 0)
        return err_wrap(e, "config.json");
    if (a && b && strcmp(without_torch(a), without_torch(b)) != 0)
        return err_set(e, ERR_FORMAT, "config.json says dtype \"%s\" and torch_dtype \"%s\"", a, b);
    name = a ? a : b;
    if (!name && weights == DTYPE_F16)
        return err_set(
            e, ERR_FORMAT,
            "the weights are F16 and config.json names no dtype, so loaders would cast to "
            "bfloat16; add \"torch_dtype\": \"float16\"");
    if (!name)
        return 0;
    if (parse_config_dtype(name, &says) < 0 || says != weights)
        return err_set(e, ERR_FORMAT, "config.json says %s, but the weights are %s", name,
                       dtype_name(weights));
    return 0;
}

static bool given(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);

    return v && !json_is_null(v);
}

/* NULL with *why and *e: missing, unreadable, or not an object. */
static json_t *read_config(int dir_fd, enum model_dir_reason *why, struct err *e)
{
    json_t *config = json_parse_file(dir_fd, "config.json", CONFIG_MAX, e);

    *why = MD_INCOMPLETE;
    if (config && !json_is_object(config)) {
        err_set(e, ERR_FORMAT, "config.json is not a JSON object");
        json_decref(config);
        return NULL;
    }
    return config;
}

static int check_companions(const json_t *config, int dir_fd, enum dtype dtype, unsigned flags,
                            enum model_dir_reason *why, struct err *e)
{
    const char *type = NULL;

    *why = MD_REMOTE_CODE;
    if (given(config, "auto_map") && !(flags & MD_TRUST_REMOTE_CODE))
        return err_set(e, ERR_FORMAT,
                       "config.json asks for code from the directory (auto_map), which is not run");
    *why = MD_INCOMPLETE;
    if (json_get_str(config, "model_type", &type, e) < 0)
        return err_wrap(e, "config.json");
    if (!has_tokenizer(dir_fd))
        return err_set(e, ERR_NOT_FOUND, "the directory has no tokenizer.json");
    *why = MD_QUANTIZED;
    if (given(config, "quantization_config"))
        return err_set(e, ERR_FORMAT,
                       "config.json declares a quantization; use the unquantized weights");
    *why = MD_DTYPE;
    /* A base model in F32 serves as it is stored, whatever dtype a trainer's config asks for. */
    if (dtype == DTYPE_F32 && (flags & MD_F32_OK))
        return 0;
    return check_config_dtype(config, dtype, e);
}

int model_dir_check_config(const struct model_dir *md, int dir_fd, unsigned flags,
                           enum model_dir_reason *why, struct err *e)
{
    enum dtype dtype = DTYPE_BF16;
    json_t *config;
    int rc;

    *why = MD_DTYPE;
    if (check_weights_dtype(md, flags, &dtype, e) < 0)
        return -1;
    config = read_config(dir_fd, why, e);
    if (!config)
        return -1;
    rc = check_companions(config, dir_fd, dtype, flags, why, e);
    json_decref(config);
    if (rc == 0)
        *why = MD_OK;
    return rc;
}
