/* train/trainer.h - what one training run knows beside its weights: gradients, masters, moments,
 * and the operations on them, in slices.
 *
 * A trainer borrows the weights it trains. Full fine-tuning: the caller gives the present weights
 * and, for each optimizer step, other memory of the same layout that the step fills; when it is
 * done the caller makes that the present one (the old one may be read by others as long as they
 * like). LoRA: the base never changes; every step makes a new immutable adapter.
 *
 * Masters (full, base not F32), gradients and moments are f32, one flat array each, in the order of
 * trainer_params(); they are private to the trainer. A step counts from 1. What a save needs is
 * frozen by trainer_begin_freeze: until the reader is done, a step copies an array it is about to
 * change, piece by piece, if it has not been read yet.
 *
 * One operation at a time: begin_*, then trainer_run until TRAIN_DONE or TRAIN_FAILED, then read
 * the result, then trainer_end. A failed or cancelled operation leaves weights, masters, moments,
 * step and gradients as they were, but for three cases: a pass cancelled in its backward half, and
 * a step that met gradients which are not finite, drop all gradients of the run
 * (trainer_has_gradients tells); a step cancelled while it writes is finished by trainer_end, since
 * it cannot be taken back (its result, and trainer_step, tell: `next` is then whole and to be made
 * the present one).
 * Thread: the one that may call pool_run, except where noted. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/adapter_make.h"
#include "train/loss.h"

struct adapter;
struct err;
struct model;
struct pass;
struct pool;
struct trainer;
struct weights;

enum train_mode { TRAIN_LORA, TRAIN_FULL };

struct trainer_config {
    enum train_mode mode;
    struct lora_settings lora; /* TRAIN_LORA */
    bool master_forward;       /* TRAIN_FULL: the forward pass runs on the f32 masters */
    struct pool *pool;         /* borrowed */
    struct pass *pass;         /* borrowed; shared with runs of equal dimensions */
};

/* weights, model: the present ones, borrowed until trainer_set_weights or trainer_free. Any thread:
 * it takes and touches all memory of the run (seconds for a large one) and does not use the pool.
 * The pass may come later, before the first operation. */
struct trainer *trainer_new(const struct trainer_config *c, const struct weights *w,
                            const struct model *m, struct err *e);
void trainer_free(struct trainer *t); /* NULL is allowed */
void trainer_set_pass(struct trainer *t, struct pass *pass);
void trainer_set_weights(struct trainer *t, const struct weights *w, const struct model *m);
/* The adapter of this moment (counted for the caller), NULL for full fine-tuning. */
struct adapter *trainer_adapter(struct trainer *t);
/* Bytes that trainer_new will take for such a run. */
size_t trainer_bytes(const struct trainer_config *c, const struct model *m);

/* ---- names and places ---- */
struct train_param {
    const char *name; /* tensor name in the file: of the model, or PEFT's of the adapter */
    int rows, cols;   /* vectors: rows = n, cols = 1 */
    int n_dims;
    int64_t dims[4];
    size_t offset, n; /* in the flat arrays */
};
const struct train_param *trainer_params(const struct trainer *t, int *n);

/* ---- operations ---- */
struct train_datum {
    const int32_t *tokens; /* [loss.n] */
    struct loss_datum loss;
};
/* Everything borrowed until trainer_end. backward: gradients are added. */
int trainer_begin_pass(struct trainer *t, const struct loss_config *loss, float temperature,
                       const struct train_datum *data, int n_data, bool backward, struct err *e);

struct adam {
    double lr, beta1, beta2, eps, weight_decay, clip; /* clip <= 0: off */
};
/* The factors of a step fit single precision; an infinite one would make every value NaN. */
bool adam_fits(const struct adam *a);
/* next: memory of the same layout for the new weights (TRAIN_FULL; NULL for LoRA). ERR_ARG: another
 * layout; a rate or decay below 0 or too large, a beta outside [0,1), an eps that is not above 0.
 * Fails in trainer_run with ERR_FORMAT when a gradient is not finite or a value overflows F16:
 * nothing has changed then. Without gradients nothing changes and result.skipped is set. */
int trainer_begin_step(struct trainer *t, const struct adam *a, struct weights *next,
                       struct err *e);

enum train_state { TRAIN_MORE, TRAIN_DONE, TRAIN_FAILED };
enum train_state trainer_run(struct trainer *t, int64_t deadline_ns, struct err *e);

/* After TRAIN_DONE of a pass: [rows] in datum order, valid until trainer_end. */
const float *trainer_logprobs(const struct trainer *t);
const float *trainer_elementwise(const struct trainer *t);
const struct loss_result *trainer_loss(const struct trainer *t);
struct step_result {
    bool skipped;
    double grad_norm; /* before clipping */
    int64_t step;     /* after this step */
};
const struct step_result *trainer_step_result(const struct trainer *t);
void trainer_end(struct trainer *t); /* also cancels */

/* ---- state ---- */
int64_t trainer_step(const struct trainer *t);
bool trainer_has_gradients(const struct trainer *t);
/* Moments to zero, step 0, gradients dropped; masters from the present weights. */
void trainer_reset(struct trainer *t);

/* A frozen view of masters, moments and step, for a save: files in canonical form, f32. The first
 * holds exp_avg.<name> and exp_avg_sq.<name>, the second, where the weights are trained and not
 * F32, master.<name>. Counted by its own life: end it. Reads while the run goes on, each file from
 * one thread at a time. */
struct trainer_frozen;
#define TRAIN_MOMENTS_FILE "optimizer.safetensors"
#define TRAIN_MASTERS_FILE "masters.safetensors"
enum { FROZEN_FILES = 2 };
/* An operation (it makes the masters of a run that has not stepped yet): ERR_CONFLICT in another
 * one. trainer_run fails with ERR_NOMEM. */
int trainer_begin_freeze(struct trainer *t, struct err *e);
/* After TRAIN_DONE, before trainer_end: the view, owned. */
struct trainer_frozen *trainer_take_frozen(struct trainer *t);
/* Any thread, also after trainer_free; NULL is allowed. */
void trainer_thaw(struct trainer_frozen *f);
struct frozen_file {
    const char *name; /* of the two above */
    int64_t bytes;
    struct trainer_frozen *view; /* borrowed */
    int index;
};
/* How many there are. */
int frozen_files(struct trainer_frozen *f, struct frozen_file out[FROZEN_FILES]);
/* For ckpt_source, `file` a struct frozen_file: rising offsets, each byte once. ERR_NOMEM: the run
 * went on and no memory was left to keep this moment. */
int frozen_read(void *file, void *to, size_t offset, size_t n, struct err *e);

/* Restores masters, moments and step from the opened files of a save (any thread may prepare: they
 * are read and checked first, ERR_FORMAT names the tensor; then trainer_adopt is instant). n: 1 to
 * FROZEN_FILES; which file holds a tensor does not matter, so one with everything will do. */
struct trainer_state;
/* ERR_CANCELLED once *stop is true; NULL: never. */
struct trainer_state *trainer_state_read(const struct trainer *t, const int *fds, int n,
                                         int64_t step, const atomic_bool *stop, struct err *e);
/* Any thread: takes its time for a large run. NULL is allowed. */
void trainer_state_free(struct trainer_state *s);
/* Exchanges: s holds what the run had before, to be freed where that may take a while. */
void trainer_adopt(struct trainer *t, struct trainer_state *s);
/* LoRA. Exchanges: *a becomes the run's adapter and is then what the run had before; moments reset
 * unless adopted after. ERR_ARG: other modules or rank, and nothing was exchanged. */
int trainer_set_adapter(struct trainer *t, struct adapter **a, struct err *e);
#endif
