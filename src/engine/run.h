/* engine/run.h - training runs on the engine thread, and generation on any image.
 *
 * A run is a trainer (train/trainer.h) with the images it trains: operations are queued from any
 * thread, executed strictly in order per run, runs round robin, in slices between the steps of
 * requests. Handlers are called on the engine thread and must not block.
 *
 * Full fine-tuning holds two images; each optimizer step fills the other one and flips, so a save,
 * an export or a sampling session only holds a reference to the image it was given. LoRA runs share
 * their base image; each step makes a new adapter. */
#ifndef ENGINE_RUN_H
#define ENGINE_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/trainer.h"

struct adapter;
struct engine;
struct err;
struct image;
struct run;

struct run_settings {
    enum train_mode mode;
    struct lora_settings lora;
    bool master_forward;
    size_t activation_bytes; /* budget of a pass; 0: a third of what the machine leaves */
};

/* base: counted by the run. Full fine-tuning copies it. Any thread; may take seconds (memory).
 * ERR_NOMEM, ERR_SPACE. */
struct run *run_new(struct engine *en, struct image *base, const struct run_settings *s,
                    struct err *e);
/* Ends the running and queued operations with RUN_CANCELLED and frees the run's memory; what others
 * hold lives on. Blocks for at most one slice. Any thread. */
void run_close(struct run *r); /* NULL is allowed */

/* What a run was at one moment: counted references, and the frozen optimizer where asked. */
struct run_view {
    struct image *image;              /* weights of that moment (LoRA: the base) */
    struct adapter *adapter;          /* LoRA, else NULL */
    struct trainer_frozen *optimizer; /* asked for, else NULL */
    int64_t step;
    bool has_gradients;
};
void run_view_release(struct run_view *v);

enum run_op_kind {
    RUN_FORWARD,          /* data, loss: no gradients */
    RUN_FORWARD_BACKWARD, /* data, loss */
    RUN_STEP,             /* adam */
    RUN_VIEW,             /* with_optimizer; result in op->view, taken by the handler */
    RUN_LOAD,             /* image (full) or adapter (LoRA), state or NULL (reset) */
};

enum run_outcome { RUN_OK, RUN_FAILED, RUN_CANCELLED };

struct run_op {
    enum run_op_kind kind;
    struct loss_config loss;
    float temperature;
    const struct train_datum *data; /* borrowed until the handler was called */
    int n_data;
    struct adam adam;
    bool with_optimizer;
    /* RUN_LOAD, counted; after RUN_OK what the run had in their place. run_op_release lets go. */
    struct image *image;
    struct adapter *adapter;
    struct trainer_state *state;
    /* Called once, on the engine thread; err is set for RUN_FAILED. The results of trainer_* (r's
     * trainer is given) are valid during the call. The op may be freed in it. */
    void (*done)(struct run_op *op, enum run_outcome outcome, const struct trainer *t,
                 const struct err *e);
    void *arg;
    /* filled in */
    struct run_view view;
    /* inside the room */
    struct run_op *next;
};
void run_submit(struct run *r, struct run_op *op); /* any thread */
/* Lets go of what an operation holds: its view, what it was to load, or what it took out of the
 * run. Gives gigabytes back, so not on the engine thread. */
void run_op_release(struct run_op *op);
/* Any thread: the present weights as holders see them, for sampling; counted, release it. Taken
 * between two operations. */
void run_peek(struct run *r, struct run_view *out);
/* For reading a checkpoint's optimizer state before RUN_LOAD. */
const struct trainer *run_trainer(const struct run *r);
/* Memory that run_new takes, activations not counted. */
size_t run_bytes(const struct run_settings *s, const struct image *base);
#endif
