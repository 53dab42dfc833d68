/* cli/find_checkpoint.h - a checkpoint of the training API by its id or its weaver:// path. */
#ifndef CLI_FIND_CHECKPOINT_H
#define CLI_FIND_CHECKPOINT_H

#include <jansson.h>

struct client;
struct err;

/* The checkpoint object, owned; NULL with *e. */
json_t *find_checkpoint(struct client *c, const char *name, struct err *e);
#endif
