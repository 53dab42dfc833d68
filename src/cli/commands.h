/* cli/commands.h - every command of `cairn`; src/main.c lists them. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/cli.h"

/* Offline: they open files themselves. */
cli_fn cmd_import;   /* FILE.gguf DIR */
cli_fn cmd_inspect;  /* FILE */
cli_fn cmd_verify;   /* DIR | NAME */
cli_fn cmd_tokenize; /* DIR */

/* Clients of a running server. */
cli_fn cmd_models;   /* [ls | add DIR | rm MODEL] */
cli_fn cmd_load;     /* MODEL | CHECKPOINT */
cli_fn cmd_unload;   /* MODEL */
cli_fn cmd_chat;     /* a conversation, streamed */
cli_fn cmd_complete; /* PROMPT */
cli_fn cmd_save;     /* RUN_ID STEP */
cli_fn cmd_lineage;  /* [NAME]: the tree of checkpoints; with NAME offline */
cli_fn cmd_adapters; /* [ls | apply NAME | rm] */
cli_fn cmd_lease;    /* MODEL [show | take | renew | end] */
cli_fn cmd_status;   /* which weights answer */
cli_fn cmd_attach_status, cmd_quiesce, cmd_resume, cmd_detach; /* around an attached trainer */

/* The training API. */
cli_fn cmd_runs;        /* [ls | show ID | redo FILE] */
cli_fn cmd_checkpoints; /* [ls | show | ttl | rm] */
cli_fn cmd_ops;         /* [ls | show ID] */
cli_fn cmd_export;      /* CHECKPOINT DIR */
cli_fn cmd_promote;     /* CHECKPOINT RUN_ID STEP */
#endif
