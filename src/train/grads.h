/* train/grads.h - where the gradients of one run go: for each matrix a place to add to.
 *
 * The places mirror struct model (model/model.h) and struct adapter (model/adapter.h): same layers,
 * same shapes, always f32, row-major, dense. A NULL place is not trained and its gradient is not
 * computed. The arrays belong to whoever made them (train/params.h binds them into one flat array);
 * a pass only adds. With a tied embedding `head` equals `embed`: the gradient of both uses is
 * summed there, those of the logits of a call first. */
#ifndef TRAIN_GRADS_H
#define TRAIN_GRADS_H

#include "model/adapter.h"

struct lora_grad {
    float *a, *b; /* A [r,in], B [out,r] */
};

struct layer_grads {
    float *norm_in, *norm_ff;
    float *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
    float *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm;
    float *conv_in, *conv_out, *conv_taps, *conv_in_bias, *conv_bias, *conv_out_bias;
    struct lora_grad lora[PROJECTIONS];
};

struct grads {
    float *embed, *head, *final_norm;
    struct lora_grad head_lora;
    struct layer_grads *layers; /* n_layers */
    int n_layers;
};
#endif
