/* service/weaver/steps.h - the log of what changed a run, so that it can be done again to the bit.
 *
 * One file a run, <STATE_DIR>/steps/<model id>.jsonl; its lines: docs/formats/step-log.md. Before a
 * pass with gradients, an optimizer step or a load goes into the queue, step_log_* writes what it
 * is: settings, numerics, the digest of its data, and with CAIRN_STEP_LOG=1 the data. When it has
 * ended, step_log_ended writes what came out; these lines stand in the order of execution.
 * `cairn runs redo` reads it. Any thread. */
#ifndef SERVICE_WEAVER_STEPS_H
#define SERVICE_WEAVER_STEPS_H

#include <jansson.h>
#include <stdbool.h>

struct err;
struct refusal;
struct step_log;
struct train_op;
struct w_run;
struct weaver;

/* Opens the run's file; a new one begins with what the run is. NULL with *e. */
struct step_log *step_log_open(struct weaver *w, const struct w_run *run, struct err *e);
void step_log_close(struct step_log *log); /* NULL is allowed */

/* Each gives the operation its id. -1 with *r: the line could not be written. */
int step_log_pass(struct train_op *t, const json_t *input, struct refusal *r);
int step_log_step(struct train_op *t, struct refusal *r);
int step_log_load(struct train_op *t, struct refusal *r);
/* [finisher] Of an operation that has a line: the digest of its numbers, or the code of its
 * failure (NULL: none). */
void step_log_ended(struct train_op *t, const char *failure);
#endif
