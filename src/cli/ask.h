/* cli/ask.h - what chat and complete share: options of a generation, and an answer printed as it
 * comes. */
#ifndef CLI_ASK_H
#define CLI_ASK_H

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"

struct buf;
struct client;
struct err;

struct ask_args {
    const char *model;         /* NULL: the resident */
    double temperature, top_p; /* NaN, CLI_UNSET: not sent, so the server's default counts */
    int64_t max_tokens, seed;
};

#define ASK_ARGS_INIT                                                                \
    {                                                                                \
        .temperature = NAN, .top_p = NAN, .max_tokens = CLI_UNSET, .seed = CLI_UNSET \
    }
#define ASK_OPTIONS(a)                                                                        \
    {.name = "model", .arg = "NAME", .help = "default: what is resident", .str = &(a).model}, \
        {.name = "temperature", .arg = "T", .help = "0 is greedy", .real = &(a).temperature}, \
        {.name = "top-p", .arg = "P", .help = "nucleus", .real = &(a).top_p},                 \
        {.name = "max-tokens", .arg = "N", .help = "longest answer", .num = &(a).max_tokens}, \
    {                                                                                         \
        .name = "seed", .arg = "N", .help = "same seed, same answer", .num = &(a).seed        \
    }

/* {"model": ..., sampling fields}; asks the server for the resident's name when none is given.
 * Owned. */
json_t *ask_body(struct client *c, const struct ask_args *a, struct err *e);

/* Posts `body` (borrowed) with stream on; prints text as it comes and appends it to `answer`.
 * Reports the model's name and the token counts on cli->err of a terminal. */
int ask_stream(struct cli *cli, struct client *c, const char *path, json_t *body,
               struct buf *answer, struct err *e);
#endif
