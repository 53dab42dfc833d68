/* model/config.c - the keys that all families share; what differs stands in config_family.c. */
#include "model/config.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config_read.h"

enum { CONFIG_BYTES_MAX = 4 << 20 };

int config_refuse(struct config_reader *r, const char *reason)
{
    *r->reason = reason;
    r->e->code = ERR_FORMAT;
    return err_wrap(r->e, "config.json");
}

int config_int(struct config_reader *r, const char *key, int64_t lo, int64_t hi, int *out)
{
    int64_t v = *out;

    if (json_opt_int(r->o, key, &v, r->e) < 0)
        return config_refuse(r, "config");
    if (v < lo || v > hi) {
        err_set(r->e, ERR_FORMAT, "%s is %lld, expected %lld to %lld", key, (long long)v,
                (long long)lo, (long long)hi);
        return config_refuse(r, "config");
    }
    *out = (int)v;
    return 0;
}

int config_need_int(struct config_reader *r, const char *key, int64_t hi, int *out)
{
    if (!json_object_get(r->o, key)) {
        err_set(r->e, ERR_FORMAT, "%s is missing", key);
        return config_refuse(r, "config");
    }
    *out = 0; /* null stays 0 and is refused below */
    return config_int(r, key, 1, hi, out);
}

int config_num(struct config_reader *r, const json_t *o, const char *key, bool required,
               double *out)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v)) {
        if (!required)
            return 0;
        err_set(r->e, ERR_FORMAT, "%s is missing", key);
        return config_refuse(r, "config");
    }
    if (!json_is_number(v) || !(json_number_value(v) > 0) || !isfinite(json_number_value(v))) {
        err_set(r->e, ERR_FORMAT, "%s is not a positive number", key);
        return config_refuse(r, "config");
    }
    *out = json_number_value(v);
    return 0;
}

int config_bool(struct config_reader *r, const char *key, bool *out)
{
    return json_opt_bool(r->o, key, out, r->e) < 0 ? config_refuse(r, "config") : 0;
}

int config_need_true(struct config_reader *r, const char *key)
{
    bool v = true;

    if (config_bool(r, key, &v) < 0)
        return -1;
    if (v)
        return 0;
    err_set(r->e, ERR_FORMAT, "%s: false is not implemented", key);
    return config_refuse(r, "unsupported");
}

/* ---- rotary positions ---- */

static int read_llama3(struct config_reader *r, const json_t *o, struct rope_config *rope)
{
    rope->type = ROPE_LLAMA3;
    if (config_num(r, o, "factor", true, &rope->factor) < 0 ||
        config_num(r, o, "low_freq_factor", true, &rope->low_freq_factor) < 0 ||
        config_num(r, o, "high_freq_factor", true, &rope->high_freq_factor) < 0 ||
        config_num(r, o, "original_max_position_embeddings", true, &rope->original_positions) < 0)
        return -1;
    if (rope->high_freq_factor > rope->low_freq_factor)
        return 0;
    err_set(r->e, ERR_FORMAT, "high_freq_factor must be greater than low_freq_factor");
    return config_refuse(r, "config");
}

/* One of rope_parameters (newer; holds rope_theta too) and rope_scaling (older; its key was once
 * "type"). */
static int read_rope_object(struct config_reader *r, const char *key, struct rope_config *rope)
{
    const json_t *o = json_object_get(r->o, key);
    const json_t *type;

    if (!o || json_is_null(o))
        return 0;
    if (!json_is_object(o)) {
        err_set(r->e, ERR_FORMAT, "%s is not an object", key);
        return config_refuse(r, "config");
    }
    type = json_object_get(o, "rope_type");
    if (!type)
        type = json_object_get(o, "type");
    if (config_num(r, o, "rope_theta", false, &rope->theta) < 0)
        return -1;
    if (!type || json_is_null(type) ||
        (json_is_string(type) && strcmp(json_string_value(type), "default") == 0))
        return 0;
    if (json_is_string(type) && strcmp(json_string_value(type), "llama3") == 0)
        return read_llama3(r, o, rope);
    err_set(r->e, ERR_FORMAT, "%s: rope type \"%.40s\" is not implemented; default and llama3 are",
            key, json_is_string(type) ? json_string_value(type) : "(not a string)");
    return config_refuse(r, "unsupported");
}

static int read_rope(struct config_reader *r, struct rope_config *rope)
{
    double partial = 1;

    if (config_num(r, r->o, "rope_theta", false, &rope->theta) < 0 ||
        config_num(r, r->o, "partial_rotary_factor", false, &partial) < 0 ||
        read_rope_object(r, "rope_scaling", rope) < 0 ||
        read_rope_object(r, "rope_parameters", rope) < 0)
        return -1;
    if (partial == 1)
        return 0;
    err_set(r->e, ERR_FORMAT, "partial_rotary_factor other than 1 is not implemented");
    return config_refuse(r, "unsupported");
}

/* ---- token ids and dtype ---- */

static int add_eos(struct config_reader *r, struct model_config *c, const json_t *v)
{
    int64_t id;

    if (!json_is_whole(v, &id)) {
        err_set(r->e, ERR_FORMAT, "eos_token_id is neither a number nor a list of numbers");
        return config_refuse(r, "config");
    }
    if (id < 0 || id >= c->vocab)
        return 0; /* such an id can never be produced */
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return 0;
    if (c->n_eos == MODEL_EOS_MAX) {
        err_set(r->e, ERR_FORMAT, "eos_token_id lists more than %d ids", MODEL_EOS_MAX);
        return config_refuse(r, "config");
    }
    c->eos[c->n_eos++] = (int32_t)id;
    return 0;
}

static int read_eos(struct config_reader *r, const json_t *o, struct model_config *c)
{
    const json_t *v = json_object_get(o, "eos_token_id");
    const json_t *item;
    size_t i;

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return add_eos(r, c, v);
    json_array_foreach (v, i, item)
        if (add_eos(r, c, item) < 0)
            return -1;
    return 0;
}

static void read_token_id(const json_t *o, const char *key, int vocab, int32_t *out)
{
    int64_t id;

    if (json_is_whole(json_object_get(o, key), &id) && id >= 0 && id < vocab)
        *out = (int32_t)id;
}

static int read_dtype(struct config_reader *r, struct model_config *c)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    char seen[sizeof c->dtype] = "";

    for (int i = 0; i < 2; i++) {
        const char *v = NULL;

        if (json_opt_str(r->o, keys[i], &v, r->e) < 0)
            return config_refuse(r, "config");
        if (!v)
            continue;
        if (strncmp(v, "torch.", 6) == 0)
            v += 6;
        strncpy(c->dtype, v, sizeof c->dtype - 1);
        if (c->has_dtype && strcmp(seen, c->dtype) != 0) {
            err_set(r->e, ERR_FORMAT, "dtype and torch_dtype differ: %s, %s", seen, c->dtype);
            return config_refuse(r, "dtype");
        }
        memcpy(seen, c->dtype, sizeof seen);
        c->has_dtype = true;
    }
    return 0;
}

/* ---- the whole ---- */

static int read_sizes(struct config_reader *r, struct model_config *c)
{
    if (config_need_int(r, "hidden_size", MODEL_DIM_MAX, &c->hidden) < 0 ||
        config_need_int(r, "num_hidden_layers", MODEL_LAYERS_MAX, &c->n_layers) < 0 ||
        config_need_int(r, "num_attention_heads", MODEL_DIM_MAX, &c->n_heads) < 0 ||
        config_need_int(r, "vocab_size", MODEL_VOCAB_MAX, &c->vocab) < 0)
        return -1;
    if (config_int(r, "max_position_embeddings", 1, INT32_MAX, &c->max_positions) < 0)
        return -1;
    if (c->max_positions > MODEL_POSITIONS_MAX)
        c->max_positions = MODEL_POSITIONS_MAX;
    return 0;
}

static int check_heads(struct config_reader *r, const struct model_config *c)
{
    if (c->n_heads % c->n_kv_heads)
        err_set(r->e, ERR_FORMAT, "num_attention_heads %d is no multiple of num_key_value_heads %d",
                c->n_heads, c->n_kv_heads);
    else if (c->head_dim < 2 || c->head_dim > MODEL_HEAD_DIM_MAX || c->head_dim % 2)
        err_set(r->e, ERR_FORMAT, "head_dim %d is not an even number from 2 to %d", c->head_dim,
                MODEL_HEAD_DIM_MAX);
    else if (c->n_heads > MODEL_DIM_MAX / c->head_dim)
        err_set(r->e, ERR_FORMAT, "num_attention_heads %d x head_dim %d is too large", c->n_heads,
                c->head_dim);
    else
        return 0;
    return config_refuse(r, "config");
}

static int check_activation(struct config_reader *r)
{
    const char *act = "silu";

    if (json_opt_str(r->o, "hidden_act", &act, r->e) < 0)
        return config_refuse(r, "config");
    if (strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0)
        return 0;
    err_set(r->e, ERR_FORMAT, "hidden_act \"%.40s\" is not implemented; silu is", act);
    return config_refuse(r, "unsupported");
}

static int find_family(struct config_reader *r, struct model_config *c)
{
    const json_t *type = json_object_get(r->o, "model_type");

    if (!json_is_string(type)) {
        err_set(r->e, ERR_FORMAT, "model_type is missing");
        return config_refuse(r, "incomplete");
    }
    for (int f = MODEL_LLAMA; f <= MODEL_LFM2; f++) {
        if (strcmp(json_string_value(type), model_family_name((enum model_family)f)) == 0) {
            c->family = (enum model_family)f;
            return 0;
        }
    }
    err_set(r->e, ERR_FORMAT,
            "model_type \"%.60s\" is not implemented; llama, qwen2, qwen3 and lfm2 are",
            json_string_value(type));
    return config_refuse(r, "unsupported");
}

int model_config_parse(struct model_config *out, const json_t *config, const json_t *generation,
                       const char **reason, struct err *e)
{
    struct model_config c = {.bos = -1, .pad = -1};
    struct config_reader r = {.o = config, .reason = reason, .e = e};
    const json_t *quant;

    if (!json_is_object(config)) {
        err_set(e, ERR_FORMAT, "not a JSON object");
        return config_refuse(&r, "incomplete");
    }
    if (find_family(&r, &c) < 0)
        return -1;
    quant = json_object_get(config, "quantization_config");
    if (quant && !json_is_null(quant)) {
        err_set(e, ERR_FORMAT, "quantization_config is set; only plain weights are served");
        return config_refuse(&r, "quantized");
    }
    config_defaults(&c);
    if (read_sizes(&r, &c) < 0 || config_family(&r, &c) < 0 || check_heads(&r, &c) < 0 ||
        check_activation(&r) < 0 || read_rope(&r, &c.rope) < 0 || read_dtype(&r, &c) < 0)
        return -1;
    if (read_eos(&r, config, &c) < 0 || (generation && read_eos(&r, generation, &c) < 0))
        return -1;
    read_token_id(config, "bos_token_id", c.vocab, &c.bos);
    read_token_id(config, "pad_token_id", c.vocab, &c.pad);
    *out = c;
    return 0;
}

int model_config_load(struct model_config *out, int dir_fd, const char **reason, struct err *e)
{
    static const char generation_name[] = "generation_config.json";
    json_t *config = NULL, *generation = NULL;
    int rc = -1;

    *reason = "incomplete";
    config = json_parse_file(dir_fd, "config.json", CONFIG_BYTES_MAX, e);
    if (!config)
        return -1;
    if (faccessat(dir_fd, generation_name, F_OK, 0) == 0) {
        *reason = "config";
        generation = json_parse_file(dir_fd, generation_name, CONFIG_BYTES_MAX, e);
        if (!generation)
            goto done;
    }
    rc = model_config_parse(out, config, generation, reason, e);
done:
    json_decref(config);
    json_decref(generation);
    return rc;
}
