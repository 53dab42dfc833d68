/* daemon/serve.h - the server: builds every part, wires them, runs, stops in order. */
#ifndef DAEMON_SERVE_H
#define DAEMON_SERVE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct err;

/* What the command line says over the environment; NULL and CLI_UNSET: nothing. */
struct serve_options {
    const char *host;
    const char *model; /* a row by id or name, or a directory to register and load */
    const char *state_dir;
    const char *checkpoint_dir;
    int64_t port; /* 0: the system chooses */
    int64_t threads;
    bool json; /* the line that says where it listens is {"listening": URL} */
};

/* Reads the environment (daemon/config.h) and runs until SIGTERM or SIGINT. Prints `listening on
 * http://HOST:PORT` on out once it answers. Called once, by the main thread, before there are
 * others. -1: it could not start. */
int serve(const struct serve_options *o, FILE *out, struct err *e);
#endif
