#include "service/weaver/ckpt_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/stopping.h"
#include "model/adapter.h"
#include "service/service.h"
#include "service/weaver/impl.h"
#include "store/leftovers.h"
#include "store/reader.h"

enum { RECORD_MAX = 4 << 20, FORMAT_VERSION = 1 };

int ckpt_files_dir(struct weaver *w, const char *model_id, const char *id, struct err *e)
{
    char path[2 * UUID_TEXT + 2];

    snprintf(path, sizeof path, "%s/%s", model_id, id);
    return fs_open_beneath(w->root_fd, path, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_NONE, e);
}

/* ---- the record ---- */

json_t *ckpt_files_record(int dir_fd, struct err *e)
{
    json_t *o = json_parse_file(dir_fd, "checkpoint.json", RECORD_MAX, e);

    if (!o)
        return NULL;
    if (json_integer_value(json_object_get(o, "format_version")) == FORMAT_VERSION &&
        json_is_object(json_object_get(o, "files")))
        return o;
    json_decref(o);
    err_set(e, ERR_FORMAT, "checkpoint.json is no record of format_version %d", FORMAT_VERSION);
    return NULL;
}

const char *ckpt_record_sha(const json_t *record, const char *file)
{
    const json_t *f = json_object_get(json_object_get(record, "files"), file);

    return json_string_value(json_object_get(f, "sha256"));
}

static int block_hashed(void *arg, const void *bytes, size_t offset, size_t n, struct err *e)
{
    (void)bytes, (void)offset, (void)n;
    return stopping_check(arg, e);
}

int ckpt_files_verify(int dir_fd, const json_t *record, const char *file, const atomic_bool *stop,
                      struct err *e)
{
    const char *want = ckpt_record_sha(record, file);
    struct ckpt_reader *reader = NULL;
    char sha[SHA256_HEX];
    int rc = -1;

    if (!want)
        return err_set(e, ERR_FORMAT, "checkpoint.json does not name %s", file);
    if (ckpt_reader_open(dir_fd, file, &reader, e) != READER_OK)
        return -1;
    if (ckpt_reader_hash(reader, NULL, block_hashed, (void *)stop, sha, e) == 0)
        rc = strcmp(sha, want) == 0
                 ? 0
                 : err_set(e, ERR_FORMAT, "%s has the sha256 %.16s..., recorded is %.16s...", file,
                           sha, want);
    ckpt_reader_close(reader);
    return rc;
}

struct adapter *ckpt_files_adapter(struct weaver *w, const struct w_ckpt *c,
                                   const struct model_config *config, struct err *e)
{
    int fd = ckpt_files_dir(w, c->model_id, c->id, e);
    json_t *record = fd < 0 ? NULL : ckpt_files_record(fd, e);
    struct adapter_problem problem = {0};
    struct adapter *a = NULL;

    if (record &&
        ckpt_files_verify(fd, record, "adapter_model.safetensors", &w->s->stopping, e) == 0)
        a = adapter_read(fd, c->id, 1.0, config, false, &problem, e);
    adapter_problem_clear(&problem);
    json_decref(record);
    fs_close(fd);
    return a;
}

/* ---- lifetime ---- */

static void expiry_text(const struct w_ckpt *c, struct buf *out)
{
    char at[32];

    if (!c->expires_ms) {
        buf_add_str(out, "{\"ttl_seconds\": null, \"expires_at\": null, \"expires_ms\": null}\n");
        return;
    }
    clock_iso8601(c->expires_ms, at);
    buf_printf(out, "{\"ttl_seconds\": %lld, \"expires_at\": \"%s\", \"expires_ms\": %lld}\n",
               (long long)c->ttl_s, at, (long long)c->expires_ms);
}

static int replace_file(int dir_fd, const char *name, const struct buf *text, struct err *e)
{
    char temporary[UUID_TEXT + 8] = ".tmp-";

    if (uuid_new(temporary + 5, e) < 0 ||
        fs_create_file(dir_fd, temporary, buf_str(text), text->len, 0644, e) < 0)
        return -1;
    if (fs_sync_name(dir_fd, temporary, e) == 0) {
        if (renameat(dir_fd, temporary, dir_fd, name) == 0)
            return fs_sync(dir_fd, name, e);
        err_io(e, "replace %s", name);
    }
    unlinkat(dir_fd, temporary, 0);
    return -1;
}

int ckpt_files_set_expiry(struct weaver *w, const struct w_ckpt *c, struct err *e)
{
    int fd = ckpt_files_dir(w, c->model_id, c->id, e), rc;
    struct buf text = {0};

    if (fd < 0)
        return -1;
    expiry_text(c, &text);
    rc = text.failed ? err_nomem(e) : replace_file(fd, "expiry.json", &text, e);
    buf_release(&text);
    fs_close(fd);
    return rc;
}

/* 1 with the time (0: permanent), 0 when it cannot be read. */
static int read_expiry(int dir_fd, int64_t *ttl_s, int64_t *expires_ms, struct err *e)
{
    json_t *o = json_parse_file(dir_fd, "expiry.json", RECORD_MAX, e);
    const json_t *at = json_object_get(o, "expires_ms"), *ttl = json_object_get(o, "ttl_seconds");
    int ok = json_is_null(at) || json_is_whole(at, expires_ms);

    if (json_is_null(at))
        *expires_ms = *ttl_s = 0;
    else if (ok && !json_is_whole(ttl, ttl_s))
        *ttl_s = 1;
    json_decref(o);
    return o != NULL && ok;
}

bool ckpt_files_expired(struct weaver *w, struct w_ckpt *c, struct err *e)
{
    int fd = ckpt_files_dir(w, c->model_id, c->id, e);
    int64_t ttl = 0, at = 0;
    bool known;

    if (fd < 0)
        return e->code == ERR_NOT_FOUND; /* somebody removed it: the row goes too */
    known = read_expiry(fd, &ttl, &at, e);
    fs_close(fd);
    if (known) {
        c->ttl_s = ttl;
        c->expires_ms = at;
    }
    return known && at && clock_wall_ms() >= at;
}

static int remove_files(struct weaver *w, const char *model_id, const char *id, struct err *e)
{
    char aside[UUID_TEXT + 16];
    int fd = fs_open_beneath(w->root_fd, model_id, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_NONE, e);
    int rc = 0;

    if (fd < 0)
        return e->code == ERR_NOT_FOUND ? 0 : -1;
    snprintf(aside, sizeof aside, ".tmp-%s", id);
    if (renameat(fd, id, fd, aside) == 0)
        rc = leftovers_remove(w->s->leftovers, fd, aside, e);
    else if (errno != ENOENT)
        rc = leftovers_remove(w->s->leftovers, fd, id, e);
    fs_close(fd);
    unlinkat(w->root_fd, model_id, AT_REMOVEDIR); /* only if it is empty */
    return rc;
}

void ckpt_files_clear(struct weaver *w, const struct w_ckpt *c)
{
    struct err e = {0};

    if (remove_files(w, c->model_id, c->id, &e) < 0)
        log_ev(LOG_WARNING, "weaver_checkpoint", "id=%s cause=\"%s\"", c->id, e.msg);
}

/* ---- after a crash ---- */

static int check_sizes(int dir_fd, const json_t *record, struct err *e)
{
    const char *name;
    json_t *f;
    struct stat st;

    json_object_foreach (json_object_get(record, "files"), name, f) {
        int fd = fs_open_regular(dir_fd, name, FS_LINKS_NONE, &st, e);

        if (fd < 0)
            return -1;
        fs_close(fd);
        if (st.st_size != json_integer_value(json_object_get(f, "size")))
            return err_set(e, ERR_FORMAT, "%s is not as long as recorded", name);
    }
    return 0;
}

int ckpt_files_whole(int dir_fd, const json_t *record, struct w_ckpt *c, struct err *e)
{
    struct err ignored = {0};

    if (check_sizes(dir_fd, record, e) < 0)
        return -1;
    read_expiry(dir_fd, &c->ttl_s, &c->expires_ms, &ignored);
    return 0;
}

int ckpt_files_settle(struct weaver *w, struct w_ckpt *c, struct err *e)
{
    int fd = ckpt_files_dir(w, c->model_id, c->id, e), rc = -1;
    json_t *record = fd < 0 ? NULL : ckpt_files_record(fd, e);
    int64_t ms = 0;

    if (record && ckpt_files_whole(fd, record, c, e) == 0) {
        rc = 0;
        c->step = json_integer_value(json_object_get(record, "step"));
        if (json_is_whole(json_object_get(record, "created_ms"), &ms))
            c->created_ms = ms;
    }
    json_decref(record);
    fs_close(fd);
    return rc;
}

static void clean_model(struct weaver *w, const char *model_id)
{
    struct err e = {0};
    int fd = fs_open_beneath(w->root_fd, model_id, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_NONE, &e);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *d;

    while (dir && (d = readdir(dir)))
        if (strncmp(d->d_name, ".tmp-", 5) == 0 &&
            leftovers_remove(w->s->leftovers, dirfd(dir), d->d_name, &e) < 0)
            log_ev(LOG_WARNING, "weaver_clean", "cause=\"%s\"", e.msg);
    if (dir)
        closedir(dir);
    else
        fs_close(fd);
}

void ckpt_files_clean(struct weaver *w)
{
    int fd = fcntl(w->root_fd, F_DUPFD_CLOEXEC, 0);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *d;

    if (dir)
        rewinddir(dir);
    while (dir && (d = readdir(dir)))
        if (d->d_name[0] != '.' || strcmp(d->d_name, ".artifacts") == 0)
            clean_model(w, d->d_name);
    if (dir)
        closedir(dir);
    else
        fs_close(fd);
}
