#include "cli/store_args.h"

#include <limits.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/err.h"
#include "store/roots.h"

static const char *root_of(const struct store_args *a)
{
    return a->root ? a->root : getenv("WEIGHTS_CHECKPOINT_DIR");
}

bool store_args_known(const struct store_args *a)
{
    const char *root = root_of(a);

    return root && *root;
}

struct roots *store_args_open(const struct store_args *a, struct err *e)
{
    const char *root = root_of(a);
    const char *more = a->read_roots ? a->read_roots : getenv("WEIGHTS_CHECKPOINT_READ_ROOTS");
    struct buf warnings = {0};
    struct roots *r;
    char real[PATH_MAX];

    if (!store_args_known(a)) {
        err_set(e, ERR_ARG,
                "where are the checkpoints? Say --root DIR, or set WEIGHTS_CHECKPOINT_DIR");
        return NULL;
    }
    if (!realpath(root, real)) {
        err_io(e, "open %s", root);
        return NULL;
    }
    r = roots_open_unlocked(real, more, &warnings, e);
    buf_release(&warnings);
    return r;
}
