/* Tensor names: what each architecture calls its parts in GGUF and in model.safetensors. */
#include "tensor/gguf_arch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tensor/st_index.h"

enum {
    OPTIONAL = 1,  /* some models of the architecture lack it */
    Q_ROWS = 2,    /* rows stored in pairs, one head of queries after another */
    K_ROWS = 4,    /* the same for keys */
    ATTENTION = 8, /* only in layers with attention */
    CONV = 16,     /* only in layers with a convolution */
    TAPS = 32,     /* [H,K] becomes [H,1,K] */
};

struct part {
    const char *gguf, *hf;
    unsigned flags;
};

static const struct part llama_top[] = {{"token_embd.weight", "model.embed_tokens.weight", 0},
                                        {"output_norm.weight", "model.norm.weight", 0},
                                        {"output.weight", "lm_head.weight", OPTIONAL},
                                        {0}};

static const struct part lfm2_top[] = {
    {"token_embd.weight", "model.embed_tokens.weight", 0},
    /* the final norm has had both names */
    {"token_embd_norm.weight", "model.embedding_norm.weight", OPTIONAL},
    {"output_norm.weight", "model.embedding_norm.weight", OPTIONAL},
    {0}};

#define LLAMA_FFN                                                  \
    {"attn_norm.weight", "input_layernorm.weight", 0},             \
        {"ffn_norm.weight", "post_attention_layernorm.weight", 0}, \
        {"ffn_gate.weight", "mlp.gate_proj.weight", 0},            \
        {"ffn_up.weight", "mlp.up_proj.weight", 0},                \
        {"ffn_down.weight", "mlp.down_proj.weight", 0},            \
        {"attn_v.weight", "self_attn.v_proj.weight", 0},           \
    {                                                              \
        "attn_output.weight", "self_attn.o_proj.weight", 0         \
    }

static const struct part llama_block[] = {LLAMA_FFN,
                                          {"attn_q.weight", "self_attn.q_proj.weight", Q_ROWS},
                                          {"attn_k.weight", "self_attn.k_proj.weight", K_ROWS},
                                          {0}};

static const struct part qwen2_block[] = {LLAMA_FFN,
                                          {"attn_q.weight", "self_attn.q_proj.weight", 0},
                                          {"attn_k.weight", "self_attn.k_proj.weight", 0},
                                          {"attn_q.bias", "self_attn.q_proj.bias", 0},
                                          {"attn_k.bias", "self_attn.k_proj.bias", 0},
                                          {"attn_v.bias", "self_attn.v_proj.bias", 0},
                                          {0}};

static const struct part qwen3_block[] = {LLAMA_FFN,
                                          {"attn_q.weight", "self_attn.q_proj.weight", 0},
                                          {"attn_k.weight", "self_attn.k_proj.weight", 0},
                                          {"attn_q_norm.weight", "self_attn.q_norm.weight", 0},
                                          {"attn_k_norm.weight", "self_attn.k_norm.weight", 0},
                                          {0}};

static const struct part lfm2_block[] = {
    {"attn_norm.weight", "operator_norm.weight", 0},
    {"ffn_norm.weight", "ffn_norm.weight", 0},
    {"ffn_gate.weight", "feed_forward.w1.weight", 0},
    {"ffn_down.weight", "feed_forward.w2.weight", 0},
    {"ffn_up.weight", "feed_forward.w3.weight", 0},
    {"attn_q.weight", "self_attn.q_proj.weight", ATTENTION},
    {"attn_k.weight", "self_attn.k_proj.weight", ATTENTION},
    {"attn_v.weight", "self_attn.v_proj.weight", ATTENTION},
    {"attn_output.weight", "self_attn.out_proj.weight", ATTENTION},
    {"attn_q_norm.weight", "self_attn.q_layernorm.weight", ATTENTION},
    {"attn_k_norm.weight", "self_attn.k_layernorm.weight", ATTENTION},
    {"shortconv.conv.weight", "conv.conv.weight", CONV | TAPS},
    {"shortconv.in_proj.weight", "conv.in_proj.weight", CONV},
    {"shortconv.out_proj.weight", "conv.out_proj.weight", CONV},
    {0}};

static const struct arch {
    const char *name;
    const struct part *top, *block;
} archs[] = {{"llama", llama_top, llama_block},
             {"qwen2", llama_top, qwen2_block},
             {"qwen3", llama_top, qwen3_block},
             {"lfm2", lfm2_top, lfm2_block}};

static const struct arch *arch_of(const struct gguf_params *p)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i].name, p->arch) == 0)
            return &archs[i];
    return NULL;
}

static const struct part *find_part(const struct part *parts, const char *name, size_t len)
{
    for (; parts->gguf; parts++)
        if (strlen(parts->gguf) == len && memcmp(parts->gguf, name, len) == 0)
            return parts;
    return NULL;
}

static bool in_layer(const struct part *part, const struct gguf_params *p, int64_t layer)
{
    bool conv = p->layer_kv_heads && p->layer_kv_heads[layer] == 0;

    return !(part->flags & (conv ? ATTENTION : CONV));
}

/* "blk.12.attn_q.weight": the layer, and where the part's name begins; -1: not of this form. */
static int64_t parse_layer(const struct gguf_str *name, const char **rest)
{
    int64_t layer = 0;
    size_t i = 4;

    if (name->len < 6 || memcmp(name->s, "blk.", 4) != 0)
        return -1;
    for (; i < name->len && name->s[i] >= '0' && name->s[i] <= '9' && i < 12; i++)
        layer = layer * 10 + (name->s[i] - '0');
    if (i == 4 || i == name->len || name->s[i] != '.')
        return -1;
    *rest = name->s + i + 1;
    return layer;
}

static const struct part *part_of(const struct arch *a, const struct gguf_params *p,
                                  const struct gguf_str *name, int64_t *layer)
{
    const char *rest = NULL;
    const struct part *part;

    *layer = parse_layer(name, &rest);
    if (*layer < 0)
        return find_part(a->top, name->s, name->len);
    if (*layer >= p->layers)
        return NULL;
    part = find_part(a->block, rest, name->len - (size_t)(rest - name->s));
    return part && in_layer(part, p, *layer) ? part : NULL;
}

static void set_shape(struct gguf_mapped *m, const struct part *part)
{
    m->ndim = m->from->ndim;
    memcpy(m->shape, m->from->shape, sizeof m->shape);
    if (part->flags & TAPS && m->ndim == 2) {
        m->shape[2] = m->shape[1];
        m->shape[1] = 1;
        m->ndim = 3;
    }
}

static int check_rows(const struct gguf_mapped *m, int64_t head_dim, struct err *e)
{
    if (m->ndim == 2 && m->shape[0] == m->heads * head_dim)
        return 0;
    return err_set(e, ERR_FORMAT, "it does not have %" PRId64 " heads of %" PRId64 " rows",
                   m->heads, head_dim);
}

static int map_tensor(const struct arch *a, const struct gguf_params *p,
                      const struct gguf_tensor *t, struct gguf_mapped *m, struct err *e)
{
    int64_t layer;
    const struct part *part = part_of(a, p, &t->name, &layer);

    if (!part)
        return err_set(e, ERR_FORMAT, "it has no place in a %s model of %" PRId64 " layers",
                       p->arch, p->layers);
    if (gguf_dequantise(t->type, NULL, 0, NULL) < 0)
        return err_set(e, ERR_FORMAT, "type %s is not read", gguf_type_name(t->type));
    m->from = t;
    if (layer < 0)
        snprintf(m->name, sizeof m->name, "%s", part->hf);
    else
        snprintf(m->name, sizeof m->name, "model.layers.%" PRId64 ".%s", layer, part->hf);
    set_shape(m, part);
    m->heads = part->flags & Q_ROWS ? p->heads : part->flags & K_ROWS ? p->kv_heads : 0;
    return m->heads ? check_rows(m, p->head_dim, e) : 0;
}

static int check_parts(const struct gguf *g, const struct part *parts, const struct gguf_params *p,
                       int64_t layer, struct err *e)
{
    char name[96];

    for (; parts->gguf; parts++) {
        if (parts->flags & OPTIONAL || (layer >= 0 && !in_layer(parts, p, layer)))
            continue;
        if (layer < 0)
            snprintf(name, sizeof name, "%s", parts->gguf);
        else
            snprintf(name, sizeof name, "blk.%" PRId64 ".%s", layer, parts->gguf);
        if (!gguf_find(g, name))
            return err_set(e, ERR_FORMAT, "tensor \"%s\" is missing", name);
    }
    return 0;
}

static int check_complete(const struct gguf *g, const struct arch *a, const struct gguf_params *p,
                          struct err *e)
{
    if (p->layers > (int64_t)gguf_n_tensors(g)) /* bounds the walk below */
        return err_set(e, ERR_FORMAT, "%" PRId64 " layers need more than %zu tensors", p->layers,
                       gguf_n_tensors(g));
    if (check_parts(g, a->top, p, -1, e) < 0)
        return -1;
    for (int64_t i = 0; i < p->layers; i++)
        if (check_parts(g, a->block, p, i, e) < 0)
            return -1;
    if (strcmp(p->arch, "lfm2") == 0 && !gguf_find(g, "token_embd_norm.weight") &&
        !gguf_find(g, "output_norm.weight"))
        return err_set(e, ERR_FORMAT, "tensor \"token_embd_norm.weight\" is missing");
    return 0;
}

int gguf_arch_map(const struct gguf *g, const struct gguf_params *p, struct gguf_mapped **out,
                  size_t *n, struct err *e)
{
    const struct arch *a = arch_of(p);
    char shown[96];

    *n = 0;
    if (check_complete(g, a, p, e) < 0)
        return -1;
    *out = calloc(gguf_n_tensors(g) + 1, sizeof **out);
    if (!*out)
        return err_nomem(e);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);

        if (t->name.len == 17 && memcmp(t->name.s, "rope_freqs.weight", 17) == 0)
            continue; /* became rope_scaling in config.json */
        if (map_tensor(a, p, t, &(*out)[(*n)++], e) < 0) {
            err_wrap(e, "tensor \"%s\"", st_name_str(t->name.s, t->name.len, shown));
            free(*out);
            *out = NULL;
            return -1;
        }
    }
    return 0;
}
