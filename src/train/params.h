/* train/params.h - inside the room: what a run trains, in one order that all its arrays share.
 *
 * Parameters lie in byte order of their names, without gaps; element i of every flat array of the
 * run (gradients, moments, masters) belongs to the same parameter. Each array is an F32 image of
 * the parameters (tensor/weights.h), so a model can be bound over it. Pieces cut the order into
 * ranges of at most PIECE elements of one parameter: the items of parallel loops. Immutable. */
#ifndef TRAIN_PARAMS_H
#define TRAIN_PARAMS_H

#include "tensor/safetensors.h"
#include "train/grads.h"
#include "train/trainer.h"

struct err;
struct model;
struct weights;

enum { PIECE = 16384 };

/* Where the values of a parameter lie outside of the run's arrays. */
struct place {
    int tensor; /* of the image (weights.h, tensors[]) */
    int twin;   /* a stored lm_head beside the tied embedding, written alike; -1: none */
    int slot;   /* LoRA: of the adapter */
    bool is_b;
};

struct piece {
    int param;
    size_t at, n; /* in the flat arrays */
};

struct params {
    struct st_index index; /* F32, planned: the layout of every array */
    struct train_param *param;
    struct place *place;
    int n;
    struct piece *piece;
    int n_pieces;
    size_t floats;
    int *copied; /* tensors of the image that no parameter writes */
    int n_copied;
};

/* Full fine-tuning: all tensors that the model uses. */
int params_of_weights(struct params *p, const struct weights *w, const struct model *m,
                      struct err *e);
int params_of_adapter(struct params *p, const struct adapter *a, const struct model_config *c,
                      struct err *e);
void params_release(struct params *p); /* a zeroed struct is allowed */

/* The first element of an array that params_array made. */
struct weights *params_array(const struct params *p, struct err *e); /* zero; weights_free */
float *params_floats(const struct weights *array);

/* Places to add to, in this array. grads_release frees the table of layers. */
int grads_of_weights(struct grads *g, const struct weights *array, const struct model *m,
                     struct err *e);
int grads_of_adapter(struct grads *g, const struct params *p, float *floats, int n_layers,
                     struct err *e);
void grads_release(struct grads *g);
#endif
