/* service/weaver/reindex.h - rows of the training API's checkpoints, made again from their
 * directories.
 *
 * Every <model-id>/<checkpoint-id>/ with a whole record gets its row, with all that checkpoint.json
 * and expiry.json say; a model without a row gets one that is terminated. Rows are never removed
 * and no file is changed. Without a server on the same database. */
#ifndef SERVICE_WEAVER_REINDEX_H
#define SERVICE_WEAVER_REINDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "store/reindex.h"

struct db;
struct err;

struct weaver_reindex_req {
    struct db *db;
    const char *root; /* WEAVER_CHECKPOINT_DIR; one that is not there holds nothing */
    bool verify;      /* hash every file too */
    int (*on_entry)(void *arg, const struct reindex_entry *entry, struct err *e);
    void *arg;
};
/* count has REINDEX_N numbers, which are added to. */
int weaver_reindex(const struct weaver_reindex_req *req, int64_t *count, struct err *e);
#endif
