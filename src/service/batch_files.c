#include "service/batch_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/str.h"
#include "db/db.h"
#include "service/batch_files_impl.h"
#include "service/batch_input.h"
#include "service/refusal.h"
#include "service/settings.h"
#include "store/leftovers.h"

enum { DAY_S = 86400, BLOCK = 1 << 20, PARTIAL_MAX = FILE_ID_MAX + 8 };

/* ---- open and close ---- */

struct batch_files *batch_files_open(const struct settings *set, struct db *db,
                                     struct leftovers *leftovers, struct err *e)
{
    struct batch_files *f = calloc(1, sizeof *f);

    if (!f) {
        err_nomem(e);
        return NULL;
    }
    *f = (struct batch_files){.settings = set, .db = db, .leftovers = leftovers, .dir = -1};
    if (fs_make_dirs(set->batch_files_dir, 0700, e) == 0)
        f->dir = fs_open_dir(set->batch_files_dir, e);
    if (f->dir < 0 || batch_files_sweep(f, e) < 0) {
        err_wrap(e, "BATCH_FILES_DIR");
        batch_files_close(f);
        return NULL;
    }
    return f;
}

void batch_files_close(struct batch_files *f)
{
    if (!f)
        return;
    fs_close(f->dir);
    free(f);
}

/* No row names it any more. What cannot be removed is tried again. */
static void drop(struct batch_files *f, const char *name)
{
    struct err e = {0};

    if (leftovers_remove(f->leftovers, f->dir, name, &e) < 0)
        log_ev(LOG_WARNING, "file_left", "name=%s cause=\"%s\"", name, e.msg);
}

static void partial_name(const char *id, char out[PARTIAL_MAX])
{
    snprintf(out, PARTIAL_MAX, "%s.partial", id);
}

void batch_files_new_id(char id[FILE_ID_MAX])
{
    new_id("file-", id, FILE_ID_MAX);
}

/* ---- uploads ---- */

static int refuse_bytes(const struct batch_files *f, size_t len, struct refusal *r)
{
    return refuse_param(r, REFUSAL_V1_BATCH_FILE_LIMIT, "file",
                        "The file has %zu bytes; at most %" PRId64 " are taken.", len,
                        f->settings->batch_max_file_bytes);
}

static int64_t count_rows(const char *data, size_t len)
{
    const char *end = data + len;
    int64_t n = 0;

    while (data < end) {
        const char *stop = memchr(data, '\n', (size_t)(end - data));
        size_t line = (size_t)((stop ? stop : end) - data);

        n += !batch_line_blank(data, line);
        data += line + 1;
    }
    return n;
}

static int check_limits(const struct batch_files *f, const char *data, size_t len,
                        struct refusal *r)
{
    int64_t rows;

    if ((uint64_t)len > (uint64_t)f->settings->batch_max_file_bytes)
        return refuse_bytes(f, len, r);
    rows = count_rows(data, len);
    if (rows <= f->settings->batch_max_rows)
        return 0;
    return refuse_param(r, REFUSAL_V1_BATCH_FILE_LIMIT, "file",
                        "The file has %" PRId64 " rows; at most %d are taken.", rows,
                        f->settings->batch_max_rows);
}

static int write_hashed(int fd, const char *data, size_t len, char sha256[SHA256_HEX],
                        struct err *e)
{
    struct sha256 *h = sha256_new();
    int rc = h ? 0 : err_nomem(e);

    for (size_t at = 0; rc == 0 && at < len; at += BLOCK) {
        size_t n = len - at < BLOCK ? len - at : BLOCK;

        sha256_update(h, data + at, n);
        rc = fs_write_at(fd, data + at, n, (int64_t)at, e);
    }
    if (rc == 0) {
        sha256_hex(h, sha256);
        rc = fs_sync(fd, "an uploaded file", e);
    }
    sha256_free(h);
    return rc;
}

static int insert_alone(struct batch_files *f, const struct file_row *row, struct err *e)
{
    if (db_begin(f->db, e) < 0)
        return -1;
    return db_end(f->db, batch_files_insert(f->db, row, e), e);
}

static int store(struct batch_files *f, const char *data, size_t len, struct file_row *row,
                 struct err *e)
{
    char partial[PARTIAL_MAX];
    bool renamed = false;
    int fd;

    partial_name(row->id, partial);
    fd = fs_open_beneath(f->dir, partial, O_WRONLY | O_CREAT | O_EXCL, 0600, FS_LINKS_NONE, e);
    if (fd < 0)
        return -1;
    if (write_hashed(fd, data, len, row->sha256, e) < 0)
        goto fail;
    if (renameat(f->dir, partial, f->dir, row->id) < 0) {
        err_io(e, "publish an uploaded file");
        goto fail;
    }
    renamed = true;
    if (fs_sync(f->dir, "the directory of files", e) < 0 || insert_alone(f, row, e) < 0)
        goto fail;
    fs_close(fd);
    return 0;

fail:
    fs_close(fd);
    drop(f, renamed ? row->id : partial);
    return -1;
}

static int refuse_storage(struct refusal *r, const struct err *e)
{
    if (e->code == ERR_SPACE)
        return refuse(r, REFUSAL_INSUFFICIENT_STORAGE, "There is no room on the disk: %s", e->msg);
    return refuse_internal(r, e);
}

int batch_files_add(struct batch_files *f, const char *filename, const char *data, size_t len,
                    int64_t expires_after_s, struct file_row *out, struct refusal *r)
{
    struct err e = {0};

    if (check_limits(f, data, len, r) < 0)
        return -1;
    if (expires_after_s == 0)
        expires_after_s = (int64_t)f->settings->batch_retention_days * DAY_S;
    *out = (struct file_row){.purpose = PURPOSE_BATCH,
                             .bytes = (int64_t)len,
                             .created_s = time(NULL),
                             .expires_s = time(NULL) + expires_after_s};
    batch_files_new_id(out->id);
    str_copy(out->filename, sizeof out->filename, *filename ? filename : "file");
    return store(f, data, len, out, &e) == 0 ? 0 : refuse_storage(r, &e);
}

/* ---- looking up ---- */

static int refuse_no_file(const char *id, const char *param, struct refusal *r)
{
    return refuse_param(r, REFUSAL_V1_FILE_NOT_FOUND, param,
                        "The file '%.64s' does not exist; GET /v1/files lists those that do.", id);
}

int batch_files_find(struct batch_files *f, const char *id, const char *param, struct file_row *row,
                     struct refusal *r)
{
    struct err e = {0};
    int rc = 0;

    if (is_id("file-", id)) {
        db_lock(f->db);
        rc = batch_files_get_locked(f->db, id, row, &e);
        db_unlock(f->db);
    }
    if (rc < 0)
        return refuse_internal(r, &e);
    if (rc == 0)
        return refuse_no_file(id, param, r);
    if (row->status == FILE_PROCESSED && row->expires_s <= time(NULL))
        row->status = FILE_EXPIRED;
    return 0;
}

int batch_files_find_whole(struct batch_files *f, const char *id, const char *param,
                           struct file_row *row, struct refusal *r)
{
    if (batch_files_find(f, id, param, row, r) < 0)
        return -1;
    if (row->status == FILE_DELETED)
        return refuse_param(r, REFUSAL_V1_FILE_DELETED, param, "The file '%s' was deleted.", id);
    if (row->status == FILE_EXPIRED)
        return refuse_param(r, REFUSAL_V1_FILE_EXPIRED, param, "The file '%s' has expired.", id);
    return 0;
}

int batch_files_read(struct batch_files *f, const struct file_row *row, struct err *e)
{
    struct stat st;
    int fd = fs_open_regular(f->dir, row->id, FS_LINKS_NONE, &st, e);

    if (fd >= 0 && st.st_size != row->bytes) {
        fs_close(fd);
        return err_set(e, ERR_FORMAT, "the file has %" PRId64 " bytes, not %" PRId64,
                       (int64_t)st.st_size, row->bytes);
    }
    return fd;
}

int batch_files_list(struct batch_files *f, const struct file_query *q, struct file_row **rows,
                     int *n, bool *more, struct refusal *r)
{
    struct file_row from = {0};
    struct err e = {0};
    int rc = 1;

    db_lock(f->db);
    if (q->after)
        rc = is_id("file-", q->after) ? batch_files_get_locked(f->db, q->after, &from, &e) : 0;
    if (rc > 0)
        rc = batch_files_page_locked(f->db, q, from.seq, rows, n, &e) < 0 ? -1 : 1;
    db_unlock(f->db);
    if (rc < 0)
        return refuse_internal(r, &e);
    if (rc == 0)
        return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "after",
                            "after must be the id of a file that is known.");
    *more = *n > q->limit;
    if (*more)
        *n = q->limit;
    return 0;
}

/* ---- deleting ---- */

/* The row is marked first: a process that dies in between leaves bytes that the next start removes.
 */
static int mark_deleted(struct batch_files *f, const struct file_row *row, char user[BATCH_ID_MAX],
                        struct err *e)
{
    int used;

    if (db_begin(f->db, e) < 0)
        return -1;
    used = batch_files_user_locked(f->db, row->id, user, e);
    if (used != 0 || batch_files_end_locked(f->db, row->id, FILE_DELETED, time(NULL), e) < 0) {
        db_abort(f->db);
        return used > 0 ? 1 : -1;
    }
    return db_commit(f->db, e);
}

int batch_files_delete(struct batch_files *f, const char *id, struct refusal *r)
{
    char user[BATCH_ID_MAX] = "";
    struct file_row row = {0};
    struct err e = {0};
    int rc;

    if (batch_files_find(f, id, "file_id", &row, r) < 0)
        return -1;
    if (row.status == FILE_DELETED)
        return refuse_param(r, REFUSAL_V1_FILE_DELETED, "file_id", "The file '%s' was deleted.",
                            id);
    rc = mark_deleted(f, &row, user, &e);
    if (rc < 0)
        return refuse_internal(r, &e);
    if (rc > 0)
        return refuse_param(r, REFUSAL_V1_FILE_IN_USE, "file_id",
                            "The batch '%s' reads this file; cancel it or wait for its end.", user);
    drop(f, row.id);
    return 0;
}

int batch_files_prune(struct batch_files *f, struct err *e)
{
    int64_t now = time(NULL);
    char(*ids)[FILE_ID_MAX] = NULL;
    int n = 0, rc;

    if (db_begin(f->db, e) < 0)
        return -1;
    rc = batch_files_expire_locked(
        f->db, now, now - (int64_t)f->settings->batch_retention_days * DAY_S, &ids, &n, e);
    rc = db_end(f->db, rc, e);
    for (int i = 0; rc == 0 && i < n; i++)
        drop(f, ids[i]);
    free(ids);
    return rc;
}

/* ---- results of batches ---- */

int batch_files_partial(struct batch_files *f, const char *id, int64_t bytes, struct err *e)
{
    char partial[PARTIAL_MAX];
    struct stat st = {0};
    int fd;

    partial_name(id, partial);
    if (faccessat(f->dir, partial, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        renameat(f->dir, id, f->dir, partial);
    fd = fs_open_beneath(f->dir, partial, O_RDWR | O_CREAT, 0600, FS_LINKS_NONE, e);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && st.st_size < bytes)
        err_set(e, ERR_FORMAT, "the results of a batch are shorter than what was recorded");
    else if (ftruncate(fd, bytes) < 0)
        err_io(e, "open the results of a batch");
    else
        return fd;
    fs_close(fd);
    return -1;
}

int batch_files_publish(struct batch_files *f, const char *const *ids, const bool *keep, int n,
                        struct err *e)
{
    char partial[PARTIAL_MAX];

    for (int i = 0; i < n; i++) {
        partial_name(ids[i], partial);
        if (!keep[i] && unlinkat(f->dir, partial, 0) < 0 && errno != ENOENT)
            return err_io(e, "remove an empty file of results");
        if (keep[i] && renameat(f->dir, partial, f->dir, ids[i]) < 0)
            return err_io(e, "publish the results of a batch");
    }
    return fs_sync(f->dir, "the directory of files", e);
}

/* ---- start-up: what no row knows goes ---- */

/* An id of ours, plain or partial; else the entry is somebody else's. */
static bool id_of_entry(const char *name, char id[FILE_ID_MAX])
{
    size_t n = strcspn(name, ".");

    if (n >= FILE_ID_MAX || (name[n] && strcmp(name + n, ".partial") != 0))
        return false;
    memcpy(id, name, n);
    id[n] = '\0';
    return is_id("file-", id);
}

int batch_files_sweep(struct batch_files *f, struct err *e)
{
    int fd = openat(f->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    char id[FILE_ID_MAX];
    int rc = 0;

    if (!dir) {
        err_io(e, "list the directory of files");
        fs_close(fd);
        return -1;
    }
    db_lock(f->db);
    while (rc >= 0 && (entry = readdir(dir)) != NULL) {
        bool partial = strchr(entry->d_name, '.') != NULL;

        if (!id_of_entry(entry->d_name, id))
            continue;
        rc = batch_files_wanted_locked(f->db, id, partial, e);
        if (rc == 0)
            drop(f, entry->d_name);
    }
    db_unlock(f->db);
    closedir(dir);
    return rc < 0 ? -1 : 0;
}
