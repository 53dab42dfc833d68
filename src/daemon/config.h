/* daemon/config.h - the environment and the command line become settings, once, before threads
 * exist.
 *
 * Every variable is a row of one table in config.c (docs/api/configuration.md lists them). A value
 * that is wrong stops the start with the name of its variable; an empty value counts as unset.
 * Tokens are read, hashed and wiped from the environment. */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/log.h"
#include "service/settings.h"

struct err;
struct tokens;

enum { THREADS_MAX = 4096 };

struct config {
    struct settings settings;
    struct tokens *tokens; /* owned */
    struct tokens *keys;   /* owned: of the training API */
    enum log_level log_level;
    bool log_json;
    const char *model; /* --model: a row or a directory to register and load; or NULL */
    bool allow_open;   /* CAIRN_ALLOW_OPEN: listen beyond loopback without tokens */
    char *owned[8];    /* strings made here */
    int n_owned;
};

/* Reads the environment. Warnings (one a line) go to *warnings. */
int config_read(struct config *c, struct buf *warnings, struct err *e);
/* The directories that neither source named; after the command line was applied. */
int config_directories(struct config *c, struct err *e);
/* What both sources together must satisfy; after the command line was applied. */
int config_check(struct config *c, struct err *e);
void config_release(struct config *c);
#endif
