/* cli/store_args.h - where an offline command finds checkpoints: --root and --read-roots, else
 * WEIGHTS_CHECKPOINT_DIR and WEIGHTS_CHECKPOINT_READ_ROOTS, as the server has them. Reads only:
 * takes no lock, creates nothing. */
#ifndef CLI_STORE_ARGS_H
#define CLI_STORE_ARGS_H

#include <stdbool.h>

struct err;
struct roots;

struct store_args {
    const char *root, *read_roots; /* NULL: from the environment */
};

bool store_args_known(const struct store_args *a); /* a root is named somewhere */
/* Owned (roots_close), or NULL with *e: no root is named, or it cannot be read. */
struct roots *store_args_open(const struct store_args *a, struct err *e);

#define STORE_OPTIONS(a)                                                                       \
    {.name = "root",                                                                           \
     .arg = "DIR",                                                                             \
     .help = "offline: where checkpoints are (WEIGHTS_CHECKPOINT_DIR)",                        \
     .str = &(a).root},                                                                        \
    {                                                                                          \
        .name = "read-roots", .arg = "DIR,...",                                                \
        .help = "offline: more places (WEIGHTS_CHECKPOINT_READ_ROOTS)", .str = &(a).read_roots \
    }
#endif
