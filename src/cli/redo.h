/* cli/redo.h - cairn runs redo: the operations of a step log (docs/formats/step-log.md) are sent to
 * a server again, into a run made for it, and every number is compared with the recorded one. */
#ifndef CLI_REDO_H
#define CLI_REDO_H

#include <stdbool.h>

struct cli;
struct client;

/* keep: the run stays. Exit status: 1 at the first number that differs. */
int redo_run(struct cli *cli, struct client *c, const char *file, bool keep);
#endif
