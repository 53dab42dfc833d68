/* train/trainer_impl.h - inside the room: the trainer's own struct. trainer.c makes it and runs
 * passes, step.c runs optimizer steps. */
#ifndef TRAIN_TRAINER_IMPL_H
#define TRAIN_TRAINER_IMPL_H

#include "base/pool.h"
#include "train/adam.h"
#include "train/optim.h"
#include "train/params.h"
#include "train/pass.h"
#include "train/trainer.h"

enum phase {
    PHASE_NONE,   /* no operation */
    PASS_MASTERS, /* passes on the masters: first they are made of the weights, if they are old */
    PASS_FORWARD,
    PASS_CLEAR, /* gradients that a cancelled pass left become zero */
    PASS_BACKWARD,
    STEP_MASTERS,
    STEP_NORM,
    STEP_CHECK,  /* F16: does every new value fit? */
    STEP_UPDATE, /* from here on the step cannot be taken back */
    FREEZE_MASTERS,
    PHASE_DONE,
    PHASE_FAILED,
};

enum grads_state {
    GRADS_NONE,    /* the array is zero */
    GRADS_PENDING, /* a sum of passes */
    GRADS_BROKEN,  /* undefined: to be cleared before use */
};

struct pass_op {
    struct loss_config loss;
    const struct train_datum *data;
    int n_data;
    bool backward;
    struct pass_sequence *sequences;
    struct loss_datum *losses;
    float *logprobs, *elementwise, *coef; /* [rows] */
    float *entropy_coef;                  /* [rows], or NULL */
    struct loss_result result;
};

struct step_op {
    struct adam adam;
    struct adam_factors factors;
    struct weights *next;         /* full fine-tuning */
    struct adapter *next_adapter; /* LoRA; counted */
    struct step_result result;
};

struct trainer {
    struct trainer_config config;
    const struct weights *w;
    const struct model *m;
    struct adapter *adapter; /* LoRA: the present one, counted */
    struct adapter *spare;   /* memory of an earlier one, for the next step; or NULL */
    struct params params;
    struct weights *grad_array;
    struct grads grads;
    enum grads_state grads_state;
    struct optim *optim;
    bool masters_old; /* the weights were replaced: masters are to be made of them before use */
    struct model *master_model; /* over the masters, when a pass has run on them */
    int64_t step;
    /* the running operation */
    enum phase phase;
    int cursor;      /* next piece of a phase that goes through the pieces */
    double *partial; /* [n_pieces]: what a phase found in each */
    struct pass_op pass;
    struct step_op op;
    struct trainer_frozen *frozen; /* of a freeze that is done, until it is taken; or NULL */
};

/* Runs fn for each piece from t->cursor on; true when all are done. */
struct piece_job {
    struct trainer *t;
    int base; /* item 0 is this piece */
};
bool trainer_pieces(struct trainer *t, pool_fn *fn, int64_t deadline_ns);

/* step.c: one phase, until the deadline. true: t->phase has moved on. */
bool step_advance(struct trainer *t, int64_t deadline_ns, struct err *e);
/* false for LoRA and for an F32 image: the weights are their own masters. */
bool trainer_has_masters(const struct trainer *t);
/* PASS_MASTERS, STEP_MASTERS, FREEZE_MASTERS; true: the masters are there. */
bool trainer_make_masters(struct trainer *t, int64_t deadline_ns);
#endif
