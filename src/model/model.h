/* model/model.h - a weights image seen as a model: for each layer, views of its matrices.
 *
 * Binding looks tensors up by name, checks their shapes and dtype, and keeps pointers into the
 * image: it copies nothing and costs microseconds, so an image that moves (a shared arena) is
 * simply bound again. A model borrows the image and must not outlive it. Immutable after binding;
 * any thread may read it.
 *
 * Shapes: y = x W^T, W is [out,in] row-major as in the file. Pointers to vectors are in `dtype`. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"
#include "model/config.h"

struct err;
struct st_index;
struct weights;

struct layer {
    const void *norm_in; /* [H] before attention or convolution */
    const void *norm_ff; /* [H] before the feed-forward part */
    struct kern_matrix gate, up, down;
    const void *gate_bias, *up_bias, *down_bias; /* or NULL, like every bias */
    bool is_conv;
    int cache_index; /* of this layer among the attention layers, or among the convolution layers */
    /* attention */
    struct kern_matrix q, k, v, o;
    const void *q_bias, *k_bias, *v_bias, *o_bias;
    const void *q_norm, *k_norm; /* [head_dim] or NULL */
    /* short convolution */
    struct kern_matrix conv_in, conv_out; /* [3H,H], [H,H] */
    const void *conv_taps;                /* [H,K] */
    const void *conv_in_bias, *conv_bias, *conv_out_bias;
};

struct model {
    struct model_config config;
    enum kern_dtype dtype;    /* of every tensor */
    struct kern_matrix embed; /* [vocab,H] */
    struct kern_matrix head;  /* [vocab,H]: lm_head, or embed when tied */
    const void *final_norm;   /* [H] */
    struct layer *layers;     /* n_layers, owned */
    size_t n_parameters;      /* elements of all tensors that the model uses */
    size_t step_bytes; /* weight bytes that one forward step reads: all but the embedding rows */
};

/* Owned (model_free), or NULL with ERR_FORMAT and *reason ("incomplete-weights", "shape", "dtype"):
 * the message names the tensor, what was expected and what is there. Tensors the family does not
 * know are refused too, except rotary buffers and a stored lm_head of a tied model. */
struct model *model_bind(const struct model_config *c, const struct weights *w, const char **reason,
                         struct err *e);
void model_free(struct model *m); /* NULL is allowed */

/* The checks of model_bind for a file that has not been read: a load is refused before memory is
 * taken. */
int model_check_index(const struct model_config *c, const struct st_index *index,
                      const char **reason, struct err *e);

/* A tensor that some writers store and the model does not use: a rotary buffer, or lm_head beside a
 * tied embedding. */
bool model_ignores(const struct model_config *c, const char *name);

struct model_dir;
struct model_dir_rules {
    bool f32_ok;            /* a catalogue model may be F32; a checkpoint is 16-bit */
    bool trust_remote_code; /* config.json may name code; it is never run */
};

/* May this directory be served? Opens it (tensor/model_dir.h), reads the config, checks files,
 * config and tensors against each other; *config and *md are filled on success (model_dir_close).
 * -1: *reason is the word of the weights API, e the sentence. Reads headers only. */
int model_open_dir(int dir_fd, const struct model_dir_rules *rules, struct model_dir *md,
                   struct model_config *config, const char **reason, struct err *e);
#endif
