/* engine/step.h - one step on its way: planned (turn.c, plan.c), run (step.c), answered (answer.c);
 * inside the room.
 *
 * A step is scratch of the batch, used again and again. Engine thread, except that pool workers
 * draw the picks. */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/runner.h"
#include "generate/sampler.h"
#include "model/forward.h"
#include "model/logits.h"

struct batch;
struct gen;
struct image;
struct sequence;

/* One span's sequence and where its answers lie. */
struct part {
    struct sequence *sequence;
    int pos0;                   /* position of its first row */
    int first_select, n_select; /* its rows among the selected */
    int first_pick, n_picks;    /* its own token, then those of its followers */
};

struct pick {
    struct sequence *sequence;
    struct logits_row *row; /* may be shared by choices of one prompt */
    struct logits_row own;  /* what `row` points to when it is scored in a way of its own */
    float *full;            /* its own copy of the row's logits; NULL: the maximum is the token */
    int32_t token;          /* -1: none is possible */
    bool no_memory;         /* for its mask */
    float logit;            /* of the token, before bias and penalties */
    struct sample_drawn drawn; /* spec->tell_drawn: what it was drawn from; freed by step_answer */
};

struct step {
    struct batch *batch;
    struct image *image;
    struct runner *runner;
    int n_parts, n_rows, n_select, n_picks, n_decode;
    struct part parts[ACTIVE_MAX];
    struct forward_span spans[ACTIVE_MAX];
    struct pick picks[ACTIVE_MAX];
    int select[FORWARD_ROWS_MAX];
    struct logits_row rows[FORWARD_ROWS_MAX];
};

/* A request of the image whose turn it is (turn.c), or NULL: there is nothing to run. */
struct gen *turn_next(const struct batch *b);
/* Chooses the image whose turn it is and the rows of this step. False: there is nothing to run. */
bool step_plan(struct step *st, struct batch *b);
/* Sends the events of a step that has run; sequences end here. */
void step_answer(struct step *st);
/* The step could not run for want of memory: its requests end with GEN_NO_MEMORY. */
void step_fail(struct step *st);
#endif
