/* model/adapter_make.h - adapters that no directory gave: the start of a training run and what each
 * of its steps makes; and how an adapter is written.
 *
 * An adapter is filled by whoever made it, through adapter_slot, before anybody else sees it; after
 * that it is immutable like one that was read (model/adapter.h). Names are PEFT's,
 * base_model.model.<module>.lora_A.weight. Docs: docs/models/training.md, "LoRA". */
#ifndef MODEL_ADAPTER_MAKE_H
#define MODEL_ADAPTER_MAKE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "model/adapter.h"

struct err;
struct model;
struct model_config;

enum { ADAPTER_MODULE_MAX = 128, ADAPTER_TENSOR_MAX = ADAPTER_MODULE_MAX + 40 };

struct lora_settings {
    int rank;      /* 1 .. ADAPTER_RANK_MAX */
    float alpha;   /* scale = alpha / rank */
    bool attn;     /* q, k, v, o; a layer with a convolution instead: its two projections */
    bool mlp;      /* gate, up, down */
    bool unembed;  /* lm_head */
    uint64_t seed; /* A uniform in +-1/sqrt(in), B zero; the same seed gives the same bits */
};

/* Owned (adapter_unref); NULL with ERR_ARG (rank, or no module asked for) or ERR_NOMEM. Pure: A
 * depends on seed, module and rank alone. */
struct adapter *adapter_new(const struct model_config *c, const struct lora_settings *s,
                            struct err *e);
/* How many values the matrices of such an adapter have. */
size_t adapter_floats(const struct model_config *c, const struct lora_settings *s);
/* Rounds all values. Whoever has filled the matrices calls it, or rounds each value himself. */
void adapter_round(struct adapter *a);
/* Same modules, ranks and scales; the matrices lie in new memory, zero. */
struct adapter *adapter_like(const struct adapter *a, struct err *e);
/* Of two of the same shape: name and scales of one become those of the other. */
void adapter_take_settings(struct adapter *a, const struct adapter *from);
/* No slot has matrices, the scale is 1. Whoever gives slots their shapes calls adapter_with_memory
 * after that: one block for all matrices, zero; NULL, and the adapter gone, with ERR_NOMEM. */
struct adapter *adapter_blank(int n_layers, struct err *e);
struct adapter *adapter_with_memory(struct adapter *a, struct err *e);
bool adapter_same_shape(const struct adapter *a, const struct adapter *b);

/* The slot of a module's path; -1: the model has no such linear layer. */
int adapter_find_module(const struct model_config *c, const char *module);
/* "model.layers.3.self_attn.q_proj", "lm_head": the module of a slot (adapter_slot). -1: this layer
 * has no such module. */
int adapter_module(const struct model_config *c, int slot, char out[ADAPTER_MODULE_MAX]);
/* [out,in] of the slot's matrix; only for slots with a module. */
void adapter_module_shape(const struct model_config *c, int slot, int64_t shape[2]);
void adapter_tensor_name(const char *module, bool is_b, char out[ADAPTER_TENSOR_MAX]);

/* adapter_model.safetensors in canonical form (F32, PEFT names), read piece by piece from the
 * adapter itself (counted): nothing is copied before. Owned; NULL with ERR_NOMEM. */
struct adapter_file;
struct adapter_file *adapter_file_open(struct adapter *a, const struct model *m, struct err *e);
void adapter_file_close(struct adapter_file *f); /* NULL is allowed */
int64_t adapter_file_bytes(const struct adapter_file *f);
/* file: a struct adapter_file; n bytes from offset, within the file. Never fails. Any thread. */
int adapter_file_read(void *file, void *to, size_t offset, size_t n, struct err *e);
/* adapter_config.json that reads back to this adapter: owned, NULL with ERR_NOMEM. The caller's
 * scale is part of lora_alpha. base: base_model_name_or_path. */
json_t *adapter_config_json(const struct adapter *a, const struct model_config *c, const char *base,
                            struct err *e);
#endif
