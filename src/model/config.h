/* model/config.h - what config.json and generation_config.json say about a model.
 *
 * Order: model_config_load (or model_config_parse), then model_bind (model/model.h). Immutable
 * after that; safe from any thread. One plain struct, nothing to release.
 *
 * Families: llama, qwen2, qwen3, lfm2 (docs/models/). Both spellings of renamed keys are read; a
 * key that is absent has the default that the reference implementation gives it. What would change
 * the arithmetic and is not implemented (another rope type, a sliding window, another activation)
 * is refused by name. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct err;

enum {
    MODEL_LAYERS_MAX = 512,
    MODEL_DIM_MAX = 1 << 20, /* hidden size, feed-forward width, heads x head_dim */
    MODEL_HEAD_DIM_MAX = 512,
    MODEL_VOCAB_MAX = 1 << 22,
    MODEL_POSITIONS_MAX = 1 << 20, /* a larger max_position_embeddings is cut to this */
    MODEL_EOS_MAX = 32,
    MODEL_CONV_TAPS_MAX = 16,
};

enum model_family { MODEL_LLAMA, MODEL_QWEN2, MODEL_QWEN3, MODEL_LFM2 };

enum rope_type { ROPE_DEFAULT, ROPE_LLAMA3 };

struct rope_config {
    double theta;
    enum rope_type type;
    double factor, low_freq_factor, high_freq_factor, original_positions; /* ROPE_LLAMA3 */
};

struct model_config {
    enum model_family family;
    int n_layers;
    int hidden;        /* width of the residual stream */
    int ff;            /* width of the feed-forward layers */
    int n_heads;       /* query heads */
    int n_kv_heads;    /* key/value heads; divides n_heads */
    int head_dim;      /* even; n_heads x head_dim need not be hidden */
    int vocab;         /* rows of the embedding, may exceed the tokenizer's */
    int max_positions; /* longest sequence, prompt and answer together */
    float norm_eps;
    struct rope_config rope;
    bool tied;                         /* logits use the embedding; no lm_head is read */
    bool qkv_bias;                     /* biases of q, k, v */
    bool o_bias;                       /* bias of the attention's output projection */
    bool mlp_bias;                     /* biases of gate, up, down */
    bool qk_norm;                      /* RMSNorm of each q and k head before rope */
    uint8_t is_conv[MODEL_LAYERS_MAX]; /* 1: short convolution instead of attention */
    int n_conv_layers;                 /* attention layers: n_layers - n_conv_layers */
    int conv_taps;                     /* K: the convolution sees K-1 earlier positions; 0: none */
    bool conv_bias;
    int32_t eos[MODEL_EOS_MAX]; /* ids that end an answer: union of both files, in their order */
    int n_eos;
    int32_t bos, pad; /* -1: none */
    bool has_dtype;   /* config.json names one */
    char dtype[16];   /* as it stands there, without "torch." */
};

/* Reason words of a refusal: "incomplete", "config", "unsupported", "quantized". Static strings. */

/* Reads the objects of the two files; generation may be NULL. -1 with ERR_FORMAT; *reason says
 * which kind. */
int model_config_parse(struct model_config *out, const json_t *config, const json_t *generation,
                       const char **reason, struct err *e);
/* The same for the files of a directory. config.json must exist; generation_config.json may be
 * absent. */
int model_config_load(struct model_config *out, int dir_fd, const char **reason, struct err *e);

const char *model_family_name(enum model_family f); /* "llama": config.json's model_type */

/* dims that callers need often */
static inline int model_q_width(const struct model_config *c)
{
    return c->n_heads * c->head_dim;
}
static inline int model_kv_width(const struct model_config *c)
{
    return c->n_kv_heads * c->head_dim;
}
/* The widest row that a linear layer reads. */
static inline int model_widest_input(const struct model_config *c)
{
    int q = model_q_width(c), widest = c->hidden > c->ff ? c->hidden : c->ff;

    return widest > q ? widest : q;
}
#endif
