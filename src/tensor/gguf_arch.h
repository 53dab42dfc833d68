/* tensor/gguf_arch.h - the architectures that are imported: tensor names, shapes, config.json.
 *
 * Inside the room only. Reading order: gguf_params_read, then gguf_arch_map, gguf_config. */
#ifndef TENSOR_GGUF_ARCH_H
#define TENSOR_GGUF_ARCH_H

#include <jansson.h>
#include <stdbool.h>

#include "tensor/gguf.h"
#include "tensor/safetensors.h"

struct gguf_params {
    char arch[16]; /* "llama", "qwen2", "qwen3", "lfm2" */
    int64_t hidden, ff, layers, heads, kv_heads, head_dim, context, vocab;
    double eps, theta;
    int64_t bos, eos, eot, pad, unknown; /* token ids; -1: the file names none */
    bool tied;
    int64_t *layer_kv_heads; /* lfm2: one a layer, 0 for a convolution; else NULL; owned */
    int64_t conv_taps;       /* lfm2: width of the convolution */
    double rope_factor;      /* llama3 scaling: its factor; 0: none */
};

/* -1 with ERR_FORMAT: an architecture, a rope scaling or a mixture of experts that is not
 * supported, or a value that is missing or out of range; the message names it. */
int gguf_params_read(const struct gguf *g, struct gguf_params *p, struct err *e);
void gguf_params_release(struct gguf_params *p);

struct gguf_mapped {
    const struct gguf_tensor *from;
    char name[128]; /* in model.safetensors */
    int64_t shape[4];
    int ndim;
    int64_t heads; /* > 0: rows are stored in pairs for neighbouring rope and must be put apart, by
                      head */
};

/* Every tensor of the file with its new name, n of them, owned (free). -1 with ERR_FORMAT: a tensor
 * the architecture does not know, a type that cannot be read, one that is missing; the message
 * names it. */
int gguf_arch_map(const struct gguf *g, const struct gguf_params *p, struct gguf_mapped **out,
                  size_t *n, struct err *e);

json_t *gguf_config(const struct gguf_params *p);            /* config.json; NULL: out of memory */
json_t *gguf_generation_config(const struct gguf_params *p); /* generation_config.json */
#endif
