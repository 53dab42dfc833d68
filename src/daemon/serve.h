/* daemon/serve.h - `cairn serve`: builds every part, wires them, runs, stops in order. */
#ifndef DAEMON_SERVE_H
#define DAEMON_SERVE_H

#include "cli/cli.h"

/* Runs until SIGTERM or SIGINT. Prints `listening on http://HOST:PORT` on stdout once it answers.
 */
cli_fn cmd_serve;
#endif
