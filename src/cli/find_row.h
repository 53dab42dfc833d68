/* cli/find_row.h - a model named on the command line: its id, or its row name. */
#ifndef CLI_FIND_ROW_H
#define CLI_FIND_ROW_H

#include <stdint.h>

struct client;
struct err;

/* 0, or -1 with ERR_NOT_FOUND. A number is an id and is not looked up. */
int find_row(struct client *c, const char *which, int64_t *id, struct err *e);
#endif
