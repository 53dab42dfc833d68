#include "store/roots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/utf8.h"
#include "store/name.h"

struct root {
    char *path; /* as configured */
    char *real; /* resolved; NULL: it was missing at start */
};

struct roots {
    struct root root[ROOTS_MAX];
    int n;
    int primary_fd;
    int lock_fd; /* -1: opened without the lock */
};

/* True when b is a itself or lies below it; both are real paths. */
static bool contains(const char *a, const char *b)
{
    size_t n = strlen(a);

    if (strcmp(a, "/") == 0)
        return true;
    return strncmp(a, b, n) == 0 && (b[n] == 0 || b[n] == '/');
}

static int check_apart(const struct roots *r, const struct root *fresh, struct err *e)
{
    for (int i = 0; i < r->n; i++) {
        const struct root *old = &r->root[i];

        if (!old->real || !fresh->real)
            continue;
        if (contains(old->real, fresh->real) || contains(fresh->real, old->real))
            return err_set(e, ERR_ARG, "checkpoint roots %s and %s are the same or nested: %s",
                           old->path, fresh->path, "name separate directories");
    }
    return 0;
}

static bool is_utf8(const char *path)
{
    return !path || utf8_valid(path, strlen(path));
}

/* Adds one root; `path` has len bytes. */
static int add_root(struct roots *r, const char *path, size_t len, struct buf *warnings,
                    struct err *e)
{
    struct root *fresh = &r->root[r->n];
    struct stat st;

    if (path[0] != '/')
        return err_set(e, ERR_ARG, "checkpoint root %.*s is not an absolute path", (int)len, path);
    if (r->n == ROOTS_MAX)
        return err_set(e, ERR_ARG, "more than %d checkpoint roots", ROOTS_MAX);
    *fresh = (struct root){.path = strndup(path, len)};
    if (!fresh->path)
        return err_nomem(e);
    r->n++;
    fresh->real = realpath(fresh->path, NULL);
    if (!is_utf8(fresh->path) || !is_utf8(fresh->real))
        return err_set(e, ERR_ARG, "checkpoint root %s is not UTF-8, which answers are",
                       fresh->path);
    if (!fresh->real && (errno != ENOENT || r->n == 1))
        return err_io(e, "checkpoint root %s", fresh->path);
    if (!fresh->real) {
        buf_printf(warnings, "read root %s is missing; it is looked for again on each use\n",
                   fresh->path);
        return 0;
    }
    if (stat(fresh->real, &st) < 0 || !S_ISDIR(st.st_mode))
        return err_set(e, ERR_ARG, "checkpoint root %s is not a directory", fresh->path);
    r->n--;
    if (check_apart(r, fresh, e) < 0) {
        r->n++;
        return -1;
    }
    r->n++;
    return 0;
}

static int add_list(struct roots *r, const char *list, struct buf *warnings, struct err *e)
{
    while (list && *list) {
        size_t len = strcspn(list, ",");
        const char *from = list;
        const char *next = list + len + (list[len] == ',');

        while (len > 0 && *from == ' ') {
            from++;
            len--;
        }
        while (len > 0 && from[len - 1] == ' ')
            len--;
        if (len > 0 && add_root(r, from, len, warnings, e) < 0)
            return -1;
        list = next;
    }
    return 0;
}

/* Held until roots_close: two servers on one primary root would sweep each other's work. */
static int take_lock(struct roots *r, struct err *e)
{
    const char *path = r->root[ROOTS_PRIMARY].path;

    r->lock_fd = fs_lock_file(r->primary_fd, ".lock", 0644, e);
    if (r->lock_fd >= 0)
        return 0;
    if (e->code == ERR_CONFLICT)
        return err_set(e, ERR_CONFLICT,
                       "checkpoint root %s is in use by another server: stop it, or choose another "
                       "WEIGHTS_CHECKPOINT_DIR",
                       path);
    return err_wrap(e, "checkpoint root %s", path);
}

static int open_primary(struct roots *r, const char *primary, bool lock, struct buf *warnings,
                        struct err *e)
{
    if (primary[0] == '/' && lock && fs_make_dirs(primary, 0750, e) < 0)
        return err_wrap(e, "checkpoint root");
    if (add_root(r, primary, strlen(primary), warnings, e) < 0)
        return -1;
    r->primary_fd = fs_open_dir(r->root[ROOTS_PRIMARY].real, e);
    return r->primary_fd < 0 || (lock && take_lock(r, e) < 0) ? -1 : 0;
}

/* Only a server takes the lock, and its roots come from variables. */
static void name_variable(bool server, const char *name, struct err *e)
{
    if (server && e->code != ERR_CONFLICT && e->code != ERR_NOMEM)
        err_wrap(e, "%s", name);
}

static struct roots *open_roots(const char *primary, const char *read_list, bool lock,
                                struct buf *warnings, struct err *e)
{
    struct roots *r = calloc(1, sizeof *r);

    if (!r) {
        err_nomem(e);
        return NULL;
    }
    r->primary_fd = r->lock_fd = -1;
    if (open_primary(r, primary, lock, warnings, e) < 0) {
        name_variable(lock, "WEIGHTS_CHECKPOINT_DIR", e);
        goto fail;
    }
    if (add_list(r, read_list, warnings, e) < 0) {
        name_variable(lock, "WEIGHTS_CHECKPOINT_READ_ROOTS", e);
        goto fail;
    }
    return r;

fail:
    roots_close(r);
    return NULL;
}

struct roots *roots_open(const char *primary, const char *read_list, struct buf *warnings,
                         struct err *e)
{
    return open_roots(primary, read_list, true, warnings, e);
}

struct roots *roots_open_unlocked(const char *primary, const char *read_list, struct buf *warnings,
                                  struct err *e)
{
    return open_roots(primary, read_list, false, warnings, e);
}

void roots_close(struct roots *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n; i++) {
        free(r->root[i].path);
        free(r->root[i].real);
    }
    fs_close(r->lock_fd);
    fs_close(r->primary_fd);
    free(r);
}

int roots_count(const struct roots *r)
{
    return r->n;
}

const char *roots_path(const struct roots *r, int root)
{
    return r->root[root].path;
}

const char *roots_real(const struct roots *r, int root)
{
    return r->root[root].real ? r->root[root].real : "";
}

int roots_dir(const struct roots *r, int root, struct err *e)
{
    const struct root *at = &r->root[root];
    int fd;

    if (root != ROOTS_PRIMARY)
        return fs_open_dir(at->real ? at->real : at->path, e);
    fd = fcntl(r->primary_fd, F_DUPFD_CLOEXEC, 0);
    return fd >= 0 ? fd : err_io(e, "open checkpoint root %s", at->path);
}

int roots_primary_fd(const struct roots *r)
{
    return r->primary_fd;
}

/* Consumes fd. */
static bool holds_something(int fd, const char *likely)
{
    struct stat st;
    bool found = likely && fstatat(fd, likely, &st, AT_SYMLINK_NOFOLLOW) == 0;
    DIR *d = found ? NULL : fdopendir(fd);
    struct dirent *entry;

    if (!d) {
        fs_close(fd);
        return found;
    }
    while (!found && (entry = readdir(d)))
        found = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                strncmp(entry->d_name, ".tmp-", 5) != 0;
    closedir(d);
    return found;
}

/* 1 present, 0 absent, -1 failed. */
static int run_in(const struct roots *r, int root, const char *run_id, const char *likely,
                  struct err *e)
{
    struct err why = {0};
    int fd, dir = roots_dir(r, root, &why);

    if (dir < 0) {
        if (why.code == ERR_NOT_FOUND && root != ROOTS_PRIMARY)
            return 0;
        *e = why;
        return -1;
    }
    fd = fs_open_beneath(dir, run_id, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_INSIDE, &why);
    fs_close(dir);
    if (fd >= 0)
        return holds_something(fd, likely);
    if (why.sys == ENOENT || why.sys == ENOTDIR || why.sys == EXDEV || why.sys == ELOOP)
        return 0;
    *e = why;
    return -1;
}

int roots_find_run(const struct roots *r, const char *run_id, const char *likely, uint32_t *mask,
                   struct err *e)
{
    *mask = 0;
    for (int i = 0; i < r->n; i++) {
        int present = run_in(r, i, run_id, likely, e);

        if (present < 0)
            return err_wrap(e, "look for run %s under %s", run_id, r->root[i].path);
        if (present)
            *mask |= UINT32_C(1) << i;
    }
    return 0;
}

int roots_step_exists(const struct roots *r, const char *run_id, int64_t step, bool *exists,
                      struct err *e)
{
    char name[CKPT_STEP_DIR];
    struct err why = {0};
    struct stat st;
    int rc = 0;
    int run =
        fs_open_beneath(r->primary_fd, run_id, O_PATH | O_DIRECTORY, 0, FS_LINKS_INSIDE, &why);

    *exists = false;
    if (run < 0 && why.sys == ENOENT)
        return 0;
    if (run < 0) {
        *e = why;
        return -1;
    }
    ckpt_step_dir(name, step);
    if (fstatat(run, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        *exists = true;
    else if (errno != ENOENT)
        rc = err_io(e, "look for %s/%s", run_id, name);
    fs_close(run);
    return rc;
}

int roots_free_bytes(const struct roots *r, int64_t *out, struct err *e)
{
    return fs_free_bytes(r->primary_fd, out, e);
}
