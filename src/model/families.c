#include "model/families.h"

#include <string.h>

#include "model/model.h"

#define FIELD(f) offsetof(struct layer, f)
#define MATRIX(name, f, when, ...)  \
    {                               \
        name, FIELD(f), true, when, \
        {                           \
            __VA_ARGS__             \
        }                           \
    }
#define VECTOR(name, f, when, ...)   \
    {                                \
        name, FIELD(f), false, when, \
        {                            \
            __VA_ARGS__              \
        }                            \
    }

/* Llama, Qwen2, Qwen3: what differs is a matter of flags. */
static const struct tensor_rule decoder_layer[] = {
    VECTOR("input_layernorm.weight", norm_in, WHEN_ALWAYS, DIM_H),
    VECTOR("post_attention_layernorm.weight", norm_ff, WHEN_ALWAYS, DIM_H),
    MATRIX("self_attn.q_proj.weight", q, WHEN_ALWAYS, DIM_Q, DIM_H),
    MATRIX("self_attn.k_proj.weight", k, WHEN_ALWAYS, DIM_KV, DIM_H),
    MATRIX("self_attn.v_proj.weight", v, WHEN_ALWAYS, DIM_KV, DIM_H),
    MATRIX("self_attn.o_proj.weight", o, WHEN_ALWAYS, DIM_H, DIM_Q),
    VECTOR("self_attn.q_proj.bias", q_bias, WHEN_QKV_BIAS, DIM_Q),
    VECTOR("self_attn.k_proj.bias", k_bias, WHEN_QKV_BIAS, DIM_KV),
    VECTOR("self_attn.v_proj.bias", v_bias, WHEN_QKV_BIAS, DIM_KV),
    VECTOR("self_attn.o_proj.bias", o_bias, WHEN_O_BIAS, DIM_H),
    VECTOR("self_attn.q_norm.weight", q_norm, WHEN_QK_NORM, DIM_HEAD),
    VECTOR("self_attn.k_norm.weight", k_norm, WHEN_QK_NORM, DIM_HEAD),
    MATRIX("mlp.gate_proj.weight", gate, WHEN_ALWAYS, DIM_FF, DIM_H),
    MATRIX("mlp.up_proj.weight", up, WHEN_ALWAYS, DIM_FF, DIM_H),
    MATRIX("mlp.down_proj.weight", down, WHEN_ALWAYS, DIM_H, DIM_FF),
    VECTOR("mlp.gate_proj.bias", gate_bias, WHEN_MLP_BIAS, DIM_FF),
    VECTOR("mlp.up_proj.bias", up_bias, WHEN_MLP_BIAS, DIM_FF),
    VECTOR("mlp.down_proj.bias", down_bias, WHEN_MLP_BIAS, DIM_H),
    {0},
};

static const struct tensor_rule lfm2_layer[] = {
    VECTOR("operator_norm.weight", norm_in, WHEN_ALWAYS, DIM_H),
    VECTOR("ffn_norm.weight", norm_ff, WHEN_ALWAYS, DIM_H),
    MATRIX("feed_forward.w1.weight", gate, WHEN_ALWAYS, DIM_FF, DIM_H),
    MATRIX("feed_forward.w3.weight", up, WHEN_ALWAYS, DIM_FF, DIM_H),
    MATRIX("feed_forward.w2.weight", down, WHEN_ALWAYS, DIM_H, DIM_FF),
    {0},
};

static const struct tensor_rule lfm2_attention[] = {
    MATRIX("self_attn.q_proj.weight", q, WHEN_ALWAYS, DIM_Q, DIM_H),
    MATRIX("self_attn.k_proj.weight", k, WHEN_ALWAYS, DIM_KV, DIM_H),
    MATRIX("self_attn.v_proj.weight", v, WHEN_ALWAYS, DIM_KV, DIM_H),
    MATRIX("self_attn.out_proj.weight", o, WHEN_ALWAYS, DIM_H, DIM_Q),
    VECTOR("self_attn.q_layernorm.weight", q_norm, WHEN_QK_NORM, DIM_HEAD),
    VECTOR("self_attn.k_layernorm.weight", k_norm, WHEN_QK_NORM, DIM_HEAD),
    {0},
};

static const struct tensor_rule lfm2_conv[] = {
    MATRIX("conv.in_proj.weight", conv_in, WHEN_ALWAYS, DIM_3H, DIM_H),
    MATRIX("conv.out_proj.weight", conv_out, WHEN_ALWAYS, DIM_H, DIM_H),
    VECTOR("conv.conv.weight", conv_taps, WHEN_ALWAYS, DIM_H, DIM_ONE, DIM_TAPS),
    VECTOR("conv.in_proj.bias", conv_in_bias, WHEN_CONV_BIAS, DIM_3H),
    VECTOR("conv.conv.bias", conv_bias, WHEN_CONV_BIAS, DIM_H),
    VECTOR("conv.out_proj.bias", conv_out_bias, WHEN_CONV_BIAS, DIM_H),
    {0},
};

#undef FIELD
#define FIELD(f) offsetof(struct model, f)

static const struct tensor_rule decoder_model[] = {
    MATRIX("model.embed_tokens.weight", embed, WHEN_ALWAYS, DIM_VOCAB, DIM_H),
    VECTOR("model.norm.weight", final_norm, WHEN_ALWAYS, DIM_H),
    MATRIX("lm_head.weight", head, WHEN_UNTIED, DIM_VOCAB, DIM_H),
    {0},
};

static const struct tensor_rule lfm2_model[] = {
    MATRIX("model.embed_tokens.weight", embed, WHEN_ALWAYS, DIM_VOCAB, DIM_H),
    VECTOR("model.embedding_norm.weight", final_norm, WHEN_ALWAYS, DIM_H),
    MATRIX("lm_head.weight", head, WHEN_UNTIED, DIM_VOCAB, DIM_H),
    {0},
};

const struct tensor_rule *family_model_rules(const struct model_config *c)
{
    return c->family == MODEL_LFM2 ? lfm2_model : decoder_model;
}

const struct tensor_rule *family_layer_rules(const struct model_config *c, int layer, int t)
{
    if (c->family != MODEL_LFM2)
        return t == 0 ? decoder_layer : NULL;
    if (t == 0)
        return lfm2_layer;
    return t > 1 ? NULL : c->is_conv[layer] ? lfm2_conv : lfm2_attention;
}

bool rule_applies(const struct tensor_rule *r, const struct model_config *c)
{
    switch (r->when) {
    case WHEN_ALWAYS:
        return true;
    case WHEN_QKV_BIAS:
        return c->qkv_bias;
    case WHEN_O_BIAS:
        return c->o_bias;
    case WHEN_MLP_BIAS:
        return c->mlp_bias;
    case WHEN_QK_NORM:
        return c->qk_norm;
    case WHEN_CONV_BIAS:
        return c->conv_bias;
    case WHEN_UNTIED:
        return !c->tied;
    }
    return false;
}

static int64_t dim_size(enum dim d, const struct model_config *c)
{
    const int64_t size[] = {
        [DIM_ONE] = 1,
        [DIM_H] = c->hidden,
        [DIM_3H] = 3 * (int64_t)c->hidden,
        [DIM_FF] = c->ff,
        [DIM_Q] = model_q_width(c),
        [DIM_KV] = model_kv_width(c),
        [DIM_HEAD] = c->head_dim,
        [DIM_VOCAB] = c->vocab,
        [DIM_TAPS] = c->conv_taps,
    };

    return size[d];
}

int rule_shape(const struct tensor_rule *r, const struct model_config *c, int64_t shape[4])
{
    int n = 0;

    while (r->shape[n] != DIM_END) {
        shape[n] = dim_size(r->shape[n], c);
        n++;
    }
    return n;
}

bool family_ignores(const struct model_config *c, const char *name)
{
    static const char buffer[] = ".rotary_emb.inv_freq";
    size_t len = strlen(name), tail = sizeof buffer - 1;

    if (len > tail && strcmp(name + len - tail, buffer) == 0)
        return true;
    return c->tied && strcmp(name, "lm_head.weight") == 0;
}
