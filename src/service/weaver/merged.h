/* service/weaver/merged.h - an adapter added into its base: W' = W + s B A, rounded to the base's
 * dtype. Another model than base and adapter apart, and not bit-equal to them. */
#ifndef SERVICE_WEAVER_MERGED_H
#define SERVICE_WEAVER_MERGED_H

#include <stdatomic.h>

#include "base/buf.h"

struct adapter;
struct err;
struct image;
struct weights;

struct merged {
    struct weights *weights; /* owned */
    struct buf config;       /* text of its config.json */
};

/* Takes as much memory as the model. An adapted lm_head of a model with tied embeddings becomes a
 * tensor of its own, and the config says so. -1: ERR_NOMEM, ERR_FORMAT; ERR_CANCELLED once *stop is
 * true (looked at once a row; NULL: never). */
int merged_make(struct merged *m, const struct image *base, const struct adapter *a,
                const atomic_bool *stop, struct err *e);
void merged_release(struct merged *m); /* a zeroed struct is allowed */
#endif
