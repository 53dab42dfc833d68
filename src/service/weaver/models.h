/* service/weaver/models.h - between the files of runs: rows, and the end of each kind of operation.
 */
#ifndef SERVICE_WEAVER_MODELS_H
#define SERVICE_WEAVER_MODELS_H

struct image;
struct refusal;
struct train_op;
struct w_run;
struct weaver;

/* Why a run is not in memory: model_not_found, model_terminated, model_lost. Always -1. */
int w_model_refuse_absent(struct weaver *w, const char *id, struct refusal *r);
/* run->base_model, row_id, shape, ... are filled in; it joins the registry. -1: *run is unused. */
int w_run_start(struct weaver *w, struct w_run *run, struct image *base, struct refusal *r);

/* training.c: the engine is done with it; the operation ends, or its files are written first. */
void w_train_ended(struct weaver *w, struct train_op *t);
/* It never began. Clears *r. */
void w_train_refused(struct weaver *w, struct train_op *t, struct refusal *r);
/* save.c, load.c: the same for their kinds. */
void w_save_ended(struct weaver *w, struct train_op *t);
void w_load_ended(struct weaver *w, struct train_op *t);
/* The refusal of an operation that the engine ended with RUN_FAILED or RUN_CANCELLED. */
void w_train_outcome(const struct train_op *t, struct refusal *r);
#endif
