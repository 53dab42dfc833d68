/* model/families.h - inside the room: which tensors each family stores, with their shapes.
 *
 * One rule per tensor: its name (after "model.layers.<i>." for layers), its shape in terms of the
 * config, when it exists, and the field of struct layer or struct model that it fills. Tables:
 * docs/models/. */
#ifndef MODEL_FAMILIES_H
#define MODEL_FAMILIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_config;

enum dim { DIM_END, DIM_ONE, DIM_H, DIM_3H, DIM_FF, DIM_Q, DIM_KV, DIM_HEAD, DIM_VOCAB, DIM_TAPS };

enum rule_when {
    WHEN_ALWAYS,
    WHEN_QKV_BIAS,
    WHEN_O_BIAS,
    WHEN_MLP_BIAS,
    WHEN_QK_NORM,
    WHEN_CONV_BIAS,
    WHEN_UNTIED,
};

struct tensor_rule {
    const char *name; /* NULL ends a table */
    size_t field;     /* offset in struct layer or struct model */
    bool matrix;      /* the field is a struct kern_matrix, else a const void * */
    enum rule_when when;
    enum dim shape[4];
};

const struct tensor_rule *family_model_rules(const struct model_config *c);
/* Rules of one layer come in up to three tables; t counts from 0, NULL ends. */
const struct tensor_rule *family_layer_rules(const struct model_config *c, int layer, int t);

bool rule_applies(const struct tensor_rule *r, const struct model_config *c);
int rule_shape(const struct tensor_rule *r, const struct model_config *c,
               int64_t shape[4]); /* ndim */

/* Stored by some writers, not needed: rotary buffers, and lm_head beside a tied embedding. */
bool family_ignores(const struct model_config *c, const char *name);
#endif
