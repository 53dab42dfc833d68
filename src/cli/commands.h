/* cli/commands.h - every command of `cairn`; src/main.c lists them. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/cli.h"

/* Offline: they open files themselves. */
cli_fn cmd_import;  /* FILE.gguf DIR */
cli_fn cmd_inspect; /* FILE */
cli_fn cmd_verify;  /* DIR */
#endif
