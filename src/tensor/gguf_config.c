/* config.json and generation_config.json of an imported model, with keys that older and newer
 * loaders read. */
#include <string.h>

#include "tensor/gguf_arch.h"

static json_t *token_or_null(int64_t id)
{
    return id >= 0 ? json_integer(id) : json_null();
}

static json_t *rope_scaling(const struct gguf_params *p)
{
    if (p->rope_factor <= 0)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:i, s:s}", "factor", p->rope_factor, "high_freq_factor", 4.0,
                     "low_freq_factor", 1.0, "original_max_position_embeddings", 8192, "rope_type",
                     "llama3");
}

/* What every architecture has. */
static json_t *common(const struct gguf_params *p, const char *class)
{
    return json_pack(
        "{s:[s], s:f, s:o, s:o, s:I, s:s, s:I, s:f, s:I, s:I, s:s, s:I, s:I, s:I, s:o, s:f, s:b, "
        "s:s, s:b, s:I}",
        "architectures", class, "attention_dropout", 0.0, "bos_token_id", token_or_null(p->bos),
        "eos_token_id", token_or_null(p->eos), "head_dim", (json_int_t)p->head_dim, "hidden_act",
        "silu", "hidden_size", (json_int_t)p->hidden, "initializer_range", 0.02,
        "intermediate_size", (json_int_t)p->ff, "max_position_embeddings", (json_int_t)p->context,
        "model_type", p->arch, "num_attention_heads", (json_int_t)p->heads, "num_hidden_layers",
        (json_int_t)p->layers, "num_key_value_heads", (json_int_t)p->kv_heads, "pad_token_id",
        token_or_null(p->pad), "rope_theta", p->theta, "tie_word_embeddings", (int)p->tied,
        "torch_dtype", "bfloat16", "use_cache", 1, "vocab_size", (json_int_t)p->vocab);
}

static int llama_keys(json_t *c, const struct gguf_params *p)
{
    return json_object_set_new(c, "attention_bias", json_false()) |
           json_object_set_new(c, "mlp_bias", json_false()) |
           json_object_set_new(c, "rms_norm_eps", json_real(p->eps)) |
           json_object_set_new(c, "rope_scaling", rope_scaling(p));
}

static int qwen_keys(json_t *c, const struct gguf_params *p)
{
    int rc = json_object_set_new(c, "rms_norm_eps", json_real(p->eps)) |
             json_object_set_new(c, "rope_scaling", json_null()) |
             json_object_set_new(c, "sliding_window", json_null()) |
             json_object_set_new(c, "use_sliding_window", json_false());

    if (strcmp(p->arch, "qwen3") == 0)
        rc |= json_object_set_new(c, "attention_bias", json_false());
    return rc;
}

/* The width of the feed-forward part is final: nothing may adjust it again. */
static int lfm2_keys(json_t *c, const struct gguf_params *p)
{
    json_t *types = json_array(), *attention = json_array();
    int rc = json_object_set_new(c, "layer_types", types) |
             json_object_set_new(c, "full_attn_idxs", attention) |
             json_object_set_new(c, "norm_eps", json_real(p->eps)) |
             json_object_set_new(c, "block_auto_adjust_ff_dim", json_false()) |
             json_object_set_new(c, "block_ff_dim", json_integer(p->ff)) |
             json_object_set_new(c, "conv_L_cache", json_integer(p->conv_taps)) |
             json_object_set_new(c, "conv_bias", json_false()) |
             json_object_set_new(c, "tie_embedding", json_boolean(p->tied));

    for (int64_t i = 0; i < p->layers; i++) {
        bool conv = p->layer_kv_heads[i] == 0;

        rc |= json_array_append_new(types, json_string(conv ? "conv" : "full_attention"));
        if (!conv)
            rc |= json_array_append_new(attention, json_integer(i));
    }
    return rc;
}

static const struct family {
    const char *arch, *class;
    int (*keys)(json_t *c, const struct gguf_params *p);
} families[] = {{"llama", "LlamaForCausalLM", llama_keys},
                {"qwen2", "Qwen2ForCausalLM", qwen_keys},
                {"qwen3", "Qwen3ForCausalLM", qwen_keys},
                {"lfm2", "Lfm2ForCausalLM", lfm2_keys}};

json_t *gguf_config(const struct gguf_params *p)
{
    const struct family *f = families;
    json_t *c;

    while (strcmp(f->arch, p->arch) != 0)
        f++;
    c = common(p, f->class);
    if (c && f->keys(c, p) == 0)
        return c;
    json_decref(c);
    return NULL;
}

/* Both ends of a turn stop a generation when the file names two. */
json_t *gguf_generation_config(const struct gguf_params *p)
{
    json_t *eos = p->eot >= 0 && p->eos >= 0 && p->eot != p->eos
                      ? json_pack("[I, I]", (json_int_t)p->eos, (json_int_t)p->eot)
                      : token_or_null(p->eos);

    return json_pack("{s:o, s:o, s:o}", "bos_token_id", token_or_null(p->bos), "eos_token_id", eos,
                     "pad_token_id", token_or_null(p->pad));
}
