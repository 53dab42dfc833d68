/* model/config_family.c - keys and defaults of each family. Defaults are those of the reference
 * implementation (transformers 5.24), which leaves keys out that have them. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config.h"
#include "model/config_read.h"

const char *model_family_name(enum model_family f)
{
    static const char *const names[] = {"llama", "qwen2", "qwen3", "lfm2"};

    return names[f];
}

void config_defaults(struct model_config *c)
{
    c->rope.theta = 10000;
    c->norm_eps = 1e-6f;
    c->max_positions = 32768;
    switch (c->family) {
    case MODEL_LLAMA:
        c->max_positions = 2048;
        break;
    case MODEL_QWEN2:
        c->qkv_bias = true;
        break;
    case MODEL_QWEN3:
        c->qk_norm = true;
        break;
    case MODEL_LFM2:
        c->max_positions = 128000;
        c->rope.theta = 1e6;
        c->norm_eps = 1e-5f;
        c->qk_norm = true;
        c->tied = true;
        c->conv_taps = 3;
        break;
    }
}

/* Without the key: all heads for Llama, a fixed number for the others. null means all heads. */
static int read_kv_heads(struct config_reader *r, struct model_config *c)
{
    static const int absent[] = {0, 32, 32, 8};
    const json_t *v = json_object_get(r->o, "num_key_value_heads");

    c->n_kv_heads = v || !absent[c->family] ? c->n_heads : absent[c->family];
    return config_int(r, "num_key_value_heads", 1, c->n_heads, &c->n_kv_heads);
}

static int read_head_dim(struct config_reader *r, struct model_config *c)
{
    bool null_or_absent =
        !json_object_get(r->o, "head_dim") || json_is_null(json_object_get(r->o, "head_dim"));

    c->head_dim = c->family == MODEL_QWEN3 ? 128 : c->hidden / c->n_heads;
    if (null_or_absent && c->family != MODEL_QWEN3 && c->hidden % c->n_heads) {
        err_set(r->e, ERR_FORMAT, "hidden_size %d is no multiple of num_attention_heads %d",
                c->hidden, c->n_heads);
        return config_refuse(r, "config");
    }
    return config_int(r, "head_dim", 2, MODEL_HEAD_DIM_MAX, &c->head_dim);
}

static int read_eps(struct config_reader *r, struct model_config *c, const char *key)
{
    double eps = c->norm_eps;

    if (config_num(r, r->o, key, false, &eps) < 0)
        return -1;
    c->norm_eps = (float)eps;
    return 0;
}

/* ---- layer kinds ---- */

static int read_layer_types(struct config_reader *r, struct model_config *c, bool *present)
{
    const json_t *list = json_object_get(r->o, "layer_types");
    const json_t *v;
    size_t i;

    *present = list && !json_is_null(list);
    if (!*present)
        return 0;
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->n_layers) {
        err_set(r->e, ERR_FORMAT, "layer_types is not a list of num_hidden_layers entries");
        return config_refuse(r, "config");
    }
    json_array_foreach (list, i, v) {
        const char *kind = json_is_string(v) ? json_string_value(v) : "";

        if (c->family == MODEL_LFM2 && strcmp(kind, "conv") == 0) {
            c->is_conv[i] = 1;
        } else if (strcmp(kind, "full_attention") != 0) {
            err_set(r->e, ERR_FORMAT, "layer_types[%zu]: \"%.40s\" is not implemented", i, kind);
            return config_refuse(r, "unsupported");
        }
    }
    return 0;
}

/* The older key: every layer outside the list is a convolution. */
static int read_attn_indexes(struct config_reader *r, struct model_config *c)
{
    const json_t *list = json_object_get(r->o, "full_attn_idxs");
    const json_t *v;
    size_t i;

    if (!list || json_is_null(list))
        return 0;
    memset(c->is_conv, 1, (size_t)c->n_layers);
    if (json_is_array(list)) {
        json_array_foreach (list, i, v) {
            int64_t at;

            if (!json_is_whole(v, &at) || at < 0 || at >= c->n_layers)
                break;
            c->is_conv[at] = 0;
        }
        if (i == json_array_size(list))
            return 0;
    }
    err_set(r->e, ERR_FORMAT, "full_attn_idxs is not a list of layer numbers");
    return config_refuse(r, "config");
}

/* ---- families ---- */

/* A window counts only when it is switched on, and from layer max_window_layers on. */
static int check_window(struct config_reader *r, const struct model_config *c)
{
    const json_t *window = json_object_get(r->o, "sliding_window");
    bool on = false;
    int from = 28;

    if (config_bool(r, "use_sliding_window", &on) < 0 ||
        config_int(r, "max_window_layers", 0, INT32_MAX, &from) < 0)
        return -1;
    if (!on || !window || json_is_null(window) || from >= c->n_layers)
        return 0;
    err_set(r->e, ERR_FORMAT, "use_sliding_window: a sliding window is not implemented");
    return config_refuse(r, "unsupported");
}

static int read_decoder(struct config_reader *r, struct model_config *c)
{
    bool present, attention_bias = false;

    if (config_need_int(r, "intermediate_size", MODEL_DIM_MAX, &c->ff) < 0 ||
        read_eps(r, c, "rms_norm_eps") < 0 || config_bool(r, "tie_word_embeddings", &c->tied) < 0)
        return -1;
    if (c->family != MODEL_QWEN2) {
        if (config_bool(r, "attention_bias", &attention_bias) < 0)
            return -1;
        c->qkv_bias = c->o_bias = attention_bias;
    }
    if (c->family == MODEL_LLAMA)
        return config_bool(r, "mlp_bias", &c->mlp_bias);
    if (read_layer_types(r, c, &present) < 0)
        return -1;
    return present ? 0 : check_window(r, c);
}

/* ff -> 2 ff / 3, times the multiplier, up to a whole number of blocks. */
static int adjust_ff(struct config_reader *r, struct model_config *c)
{
    double multiplier = 1;
    int multiple = 256;
    bool adjust = true;
    double ff;

    if (config_bool(r, "block_auto_adjust_ff_dim", &adjust) < 0 ||
        config_num(r, r->o, "block_ffn_dim_multiplier", false, &multiplier) < 0 ||
        config_int(r, "block_multiple_of", 1, MODEL_DIM_MAX, &multiple) < 0)
        return -1;
    if (!adjust)
        return 0;
    ff = floor(floor(2.0 * c->ff / 3.0) * multiplier);
    ff = ceil(ff / multiple) * multiple;
    if (ff >= 1 && ff <= MODEL_DIM_MAX) {
        c->ff = (int)ff;
        return 0;
    }
    err_set(r->e, ERR_FORMAT, "the feed-forward width comes out as %.0f", ff);
    return config_refuse(r, "config");
}

static int check_lfm2_dims(struct config_reader *r, const struct model_config *c)
{
    static const char *const keys[] = {"block_dim", "conv_dim", "conv_dim_out"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int v = c->hidden;

        if (config_int(r, keys[i], 1, MODEL_DIM_MAX, &v) < 0)
            return -1;
        if (v != c->hidden) {
            err_set(r->e, ERR_FORMAT, "%s %d differs from hidden_size %d", keys[i], v, c->hidden);
            return config_refuse(r, "unsupported");
        }
    }
    if (config_need_true(r, "use_pos_enc") < 0)
        return -1;
    return config_need_true(r, "block_use_swiglu");
}

static int read_lfm2(struct config_reader *r, struct model_config *c)
{
    const char *ff_key =
        json_object_get(r->o, "intermediate_size") ? "intermediate_size" : "block_ff_dim";
    bool present;

    if (config_need_int(r, ff_key, MODEL_DIM_MAX, &c->ff) < 0 || adjust_ff(r, c) < 0 ||
        read_eps(r, c, "norm_eps") < 0 || config_bool(r, "tie_embedding", &c->tied) < 0 ||
        config_bool(r, "tie_word_embeddings", &c->tied) < 0 ||
        config_int(r, "conv_L_cache", 1, MODEL_CONV_TAPS_MAX, &c->conv_taps) < 0 ||
        config_bool(r, "conv_bias", &c->conv_bias) < 0 || check_lfm2_dims(r, c) < 0 ||
        read_layer_types(r, c, &present) < 0)
        return -1;
    if (!present && read_attn_indexes(r, c) < 0)
        return -1;
    for (int i = 0; i < c->n_layers; i++)
        c->n_conv_layers += c->is_conv[i];
    return 0;
}

int config_family(struct config_reader *r, struct model_config *c)
{
    if (read_kv_heads(r, c) < 0 || read_head_dim(r, c) < 0)
        return -1;
    return c->family == MODEL_LFM2 ? read_lfm2(r, c) : read_decoder(r, c);
}
