/* train/frozen.h - inside the room: how a view is made (trainer.h, trainer_begin_freeze). */
#ifndef TRAIN_FROZEN_H
#define TRAIN_FROZEN_H

#include "train/optim.h"

struct trainer_frozen *frozen_new(struct optim *o, struct err *e);
#endif
