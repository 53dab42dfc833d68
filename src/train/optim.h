/* train/optim.h - inside the room: moments and masters of one run, and what a save sees of them.
 *
 * Counted, because a save may read them after the run has gone or has adopted others. The trainer
 * writes them; before it changes a piece it calls optim_keep, which copies the piece for every
 * frozen view that has not read it yet. While `fresh`, moments count as zero, whatever their memory
 * holds. */
#ifndef TRAIN_OPTIM_H
#define TRAIN_OPTIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "tensor/safetensors.h"
#include "train/params.h"

struct err;
struct trainer_frozen;
struct weights;

enum section { SECTION_M, SECTION_V, SECTION_MASTER, SECTIONS };

/* One file of a save in canonical form: a header, and sections one after the other. */
struct optim_file {
    const char *name;
    enum section first;
    struct st_index index;
    struct buf header;
};

struct optim {
    atomic_int refs;
    struct weights *array[SECTIONS]; /* master: NULL where the weights are their own masters */
    bool fresh;
    struct optim_file
        file[FROZEN_FILES]; /* as trainer.h tells; masters only where there are some */
    int n_files;
    struct piece *piece; /* own copy of the run's: a view may outlive it */
    int n_pieces;
    size_t floats;                  /* of one section */
    pthread_mutex_t lock[SECTIONS]; /* a section's pieces; files are read side by side */
    struct trainer_frozen *frozen;  /* changes under all locks, so any one is enough to look */
};

/* Moments zero; masters not filled. ERR_NOMEM. */
struct optim *optim_new(const struct params *p, bool masters, struct err *e);
void optim_unref(struct optim *o);                          /* NULL is allowed */
float *optim_floats(const struct optim *o, enum section s); /* NULL: no such section */

/* Before piece `piece` of every section changes; any thread, each piece from one at a time. */
void optim_keep(struct optim *o, int piece);

/* Fills all sections from the files, whichever of them holds a tensor; ERR_FORMAT names it. */
int optim_read(struct optim *o, const int *fds, int n, const atomic_bool *stop, struct err *e);
#endif
