/* service/model_delete.c - DELETE /api/models/{id}: the row, and the cached files of a huggingface
 * row. Directories of local rows are never touched. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "service/models.h"
#include "service/refusal.h"
#include "service/row_status.h"
#include "service/service.h"
#include "service/weaver/weaver.h"
#include "store/catalogue.h"

/* A snapshot of the hub's layout (models--<org>--<name>/snapshots/<rev>) is links to blobs, which
 * other snapshots may share: the last one takes all of the repository with it. */
static int remove_with_blobs(int cache_fd, const char *snapshot, struct err *e)
{
    const char *tail = strstr(snapshot, "/snapshots/");
    struct buf path = {0};
    int rc = fs_remove_tree(cache_fd, snapshot, e);

    if (rc == 0 && tail && strncmp(snapshot, "models--", 8) == 0) {
        buf_printf(&path, "%.*s/snapshots", (int)(tail - snapshot), snapshot);
        if (unlinkat(cache_fd, buf_str(&path), AT_REMOVEDIR) == 0) { /* it was empty */
            buf_reset(&path);
            buf_printf(&path, "%.*s", (int)(tail - snapshot), snapshot);
            rc = fs_remove_tree(cache_fd, buf_str(&path), e);
        }
        buf_release(&path);
    }
    return rc;
}

/* The directory of a huggingface row, if it lies beneath the cache. */
static int remove_cached(struct service *s, const struct model_row *row, struct err *e)
{
    char *cache = realpath(s->settings->model_cache_dir, NULL);
    size_t n = cache ? strlen(cache) : 0;
    int fd, rc = 0;

    if (n && strncmp(row->local_path, cache, n) == 0 && row->local_path[n] == '/') {
        fd = fs_open_dir(cache, e);
        rc = fd < 0 ? -1 : remove_with_blobs(fd, row->local_path + n + 1, e);
        fs_close(fd);
    }
    free(cache);
    return rc;
}

static int refuse_delete(struct service *s, const struct model_row *row, struct refusal *r)
{
    if (row->status == MODEL_LOADED || row->status == MODEL_LOADING)
        return refuse_with(r, REFUSAL_MODEL_BUSY,
                           json_pack("{s:s, s:I, s:s}", "reason", "loaded", "model_id",
                                     (json_int_t)row->id, "status", model_status_name(row->status)),
                           "Model '%s' is %s; unload it first.", row->name,
                           model_status_name(row->status));
    if (row->locked)
        return refuse_locked(row, r);
    if (!weaver_holds_row(s->weaver, row->id))
        return 0;
    return refuse_with(
        r, REFUSAL_MODEL_BUSY,
        json_pack("{s:s, s:I}", "reason", "training", "model_id", (json_int_t)row->id),
        "Model '%s' is the base of training runs or sampling sessions; end them "
        "first.",
        row->name);
}

/* A load that began after the row was read keeps it: *gone stays false then, and the row is looked
 * at again. What the row is may not be written yet: that can take as long as a disk is full. */
static int delete_row(struct service *s, const struct model_row *row, bool *gone, struct refusal *r)
{
    struct err e = {0};

    *gone = catalogue_delete_idle(s->db, row->id, &e) == 0;
    if (!*gone)
        return e.code == ERR_NOT_FOUND && row_status_written(s, row->id, &e) == 0
                   ? 0
                   : refuse_internal(r, &e);
    if (strcmp(row->source, "huggingface") == 0 && row->local_path &&
        remove_cached(s, row, &e) < 0) { /* not tried again: it may be registered anew by then */
        err_wrap(&e, "the row is deleted, its files are not all");
        return refuse_internal(r, &e);
    }
    return 0;
}

int models_delete(struct service *s, int64_t id, json_t **data, struct refusal *r)
{
    struct model_row row = {0};
    bool gone = false;
    int rc = 0;

    while (rc == 0 && !gone) {
        model_row_release(&row);
        rc = model_find(s, id, &row, r);
        if (rc == 0)
            rc = refuse_delete(s, &row, r);
        if (rc == 0)
            rc = delete_row(s, &row, &gone, r);
    }
    model_row_release(&row);
    *data = rc == 0 ? json_null() : NULL;
    return rc;
}
