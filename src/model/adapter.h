/* model/adapter.h - a LoRA adapter beside a base model: y = (W x) + s (B (A x)), in this order.
 *
 * A directory as PEFT writes it: adapter_config.json and adapter_model.safetensors (F32, F16 or
 * BF16; never pickle). Matrices are f32 in memory, and beside them rounded to BF16 for numerics
 * that multiply those: A [r,in], B [out,r], for linear layers of the decoder and for lm_head (with
 * a tied embedding: its output side only). s = scale * lora_alpha / r, or lora_alpha / sqrt(r) with
 * use_rslora; rank_pattern and alpha_pattern may give a module its own (the first key that matches
 * the end of its path). lora_dropout does not act. Docs: docs/api/adapters.md.
 *
 * Whatever would change the arithmetic and is not computed here (DoRA, biases, whole saved modules,
 * ...) is refused, and so is a key that fits no module: an adapter is never applied in part.
 *
 * An adapter knows the shape of the model, not its weights: it may run beside any image of the same
 * config. Immutable and counted; any thread. A span of a batch names the adapter of its rows
 * (model/forward.h): rows of several adapters and of none may stand in one step, and a row's bits
 * do not depend on the others. */
#ifndef MODEL_ADAPTER_H
#define MODEL_ADAPTER_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct err;
struct layer;
struct model_config;

enum {
    ADAPTER_NAME_MAX = 128,
    ADAPTER_RANK_MAX = 1024,
};

/* The linear layers of a decoder layer: fields of struct layer. */
enum projection {
    PROJ_Q,
    PROJ_K,
    PROJ_V,
    PROJ_O,
    PROJ_GATE,
    PROJ_UP,
    PROJ_DOWN,
    PROJ_CONV_IN,
    PROJ_CONV_OUT,
    PROJECTIONS,
};

struct lora {
    struct kern_matrix a, b; /* a.n == 0: this layer has none */
    float scale;             /* s, of the adapter's own settings and the caller's scale */
};

struct adapter {
    atomic_int refs;
    char name[ADAPTER_NAME_MAX + 1];
    double scale; /* the caller's */
    int n_layers;
    int n_modules;
    struct lora *loras; /* [n_layers][PROJECTIONS] */
    struct lora head;   /* lm_head */
    size_t n_values;    /* of all matrices */
    float *memory;
    uint16_t *rounded; /* the same values in the same order */
};

/* All places for matrices, numbered: the layers' in order, then lm_head. */
static inline int adapter_slots(int n_layers)
{
    return n_layers * PROJECTIONS + 1;
}
static inline struct lora *adapter_slot(struct adapter *a, int slot)
{
    return slot < a->n_layers * PROJECTIONS ? &a->loras[slot] : &a->head;
}
static inline const struct lora *adapter_slot_of(const struct adapter *a, int slot)
{
    return slot < a->n_layers * PROJECTIONS ? &a->loras[slot] : &a->head;
}

/* Why a directory is no adapter for a model. */
enum adapter_fault {
    ADAPTER_OK,
    ADAPTER_BAD_CONFIG,  /* a setting that is missing or not supported: `field` */
    ADAPTER_BAD_WEIGHTS, /* the file cannot be used */
    ADAPTER_BAD_SHAPE,   /* the rest names `tensors` */
    ADAPTER_BAD_MODULE,
    ADAPTER_BAD_PAIR,
    ADAPTER_FAILED, /* no memory, or a file that could not be read */
};

struct adapter_problem {
    enum adapter_fault fault;
    char field[64];  /* ADAPTER_BAD_CONFIG */
    json_t *tensors; /* owned array of names, or NULL */
};
void adapter_problem_clear(struct adapter_problem *p);

/* adapter_config.json of an open directory, checked. Owned object, or NULL with *p and *e. */
json_t *adapter_config_read(int dir_fd, struct adapter_problem *p, struct err *e);

/* The whole adapter for a model of this config; NULL with *p and *e. `only_check`: headers only,
 * and NULL with ADAPTER_OK when it would fit. `name` at most ADAPTER_NAME_MAX bytes. */
struct adapter *adapter_read(int dir_fd, const char *name, double scale,
                             const struct model_config *c, bool only_check,
                             struct adapter_problem *p, struct err *e);

struct adapter *adapter_ref(struct adapter *a);
void adapter_unref(struct adapter *a); /* NULL is allowed */

/* Whether products beside a matrix of the base take rounded factors: as that matrix's own do. */
static inline bool adapter_is_rounded(const struct kernels *k, const struct kern_matrix *base)
{
    return kern_x_row_bytes(k, base) > 0;
}

/* A factor (the a or b of one of the adapter's places) as a product reads it. */
static inline struct kern_matrix adapter_factor(const struct adapter *a,
                                                const struct kern_matrix *factor, bool rounded)
{
    struct kern_matrix m = *factor;

    if (rounded) {
        m.dtype = KERN_BF16;
        m.w = a->rounded + ((const float *)factor->w - a->memory);
    }
    return m;
}

/* The update of one matrix of a layer, or NULL. `w` points into *l (a field of struct layer). */
const struct lora *adapter_lora(const struct adapter *a, int layer, const struct layer *l,
                                const struct kern_matrix *w);
#endif
