#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"

enum { REMOVE_MAX_DEPTH = 64 };

int fs_open_dir(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd >= 0 ? fd : err_io(e, "open directory %s", path);
}

int fs_open_beneath(int dir_fd, const char *path, int flags, mode_t mode, enum fs_links links,
                    struct err *e)
{
    struct open_how how = {
        .flags = (unsigned)(flags | O_CLOEXEC),
        .mode = flags & O_CREAT ? mode : 0,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS |
                   (links == FS_LINKS_NONE ? RESOLVE_NO_SYMLINKS : 0),
    };
    long fd;

    do /* EAGAIN: a rename elsewhere made the kernel unsure about ".." */
        fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof how);
    while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    if (fd >= 0)
        return (int)fd;
    err_io(e, "open %s", path);
    if (e->sys == EXDEV || e->sys == ELOOP)
        e->code = ERR_ARG;
    return -1;
}

int fs_lock_file(int dir_fd, const char *name, mode_t mode, struct err *e)
{
    int fd = fs_open_beneath(dir_fd, name, O_RDWR | O_CREAT, mode, FS_LINKS_NONE, e);

    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    if (errno == EWOULDBLOCK)
        err_set(e, ERR_CONFLICT, "%s is locked by another process", name);
    else
        err_io(e, "lock %s", name);
    fs_close(fd);
    return -1;
}

static int stat_regular(int fd, const char *path, struct stat *st, struct err *e)
{
    if (fstat(fd, st) < 0)
        return err_io(e, "stat %s", path);
    if (!S_ISREG(st->st_mode))
        return err_set(e, ERR_FORMAT, "%s is not a regular file", path);
    return 0;
}

int fs_open_regular(int dir_fd, const char *path, enum fs_links links, struct stat *st,
                    struct err *e)
{
    struct stat own;
    int fd = fs_open_beneath(dir_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, links, e);

    if (fd < 0) {
        if ((e->sys == ELOOP && links == FS_LINKS_NONE) || e->sys == ENXIO)
            return err_set(e, ERR_FORMAT, "%s is not a regular file", path);
        return -1;
    }
    if (stat_regular(fd, path, st ? st : &own, e) == 0)
        return fd;
    fs_close(fd);
    return -1;
}

void fs_close(int fd)
{
    int saved = errno;

    if (fd >= 0)
        close(fd);
    errno = saved;
}

int fs_write_at(int fd, const void *bytes, size_t n, int64_t offset, struct err *e)
{
    const char *from = bytes;

    while (n > 0) {
        ssize_t r = pwrite(fd, from, n, offset);

        if (r < 0 && errno == EINTR)
            continue;
        if (r == 0)
            errno = EIO;
        if (r <= 0)
            return err_io(e, "write %zu bytes at %lld", n, (long long)offset);
        from += r;
        n -= (size_t)r;
        offset += r;
    }
    return 0;
}

int fs_read_at(int fd, void *to, size_t n, int64_t offset, struct err *e)
{
    char *at = to;

    while (n > 0) {
        ssize_t r = pread(fd, at, n, offset);

        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_io(e, "read %zu bytes at %lld", n, (long long)offset);
        if (r == 0)
            return err_set(e, ERR_FORMAT, "the file ends at byte %lld, %zu bytes are missing",
                           (long long)offset, n);
        at += r;
        n -= (size_t)r;
        offset += r;
    }
    return 0;
}

int fs_create_file(int dir_fd, const char *name, const void *bytes, size_t n, mode_t mode,
                   struct err *e)
{
    int fd = fs_open_beneath(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL, mode, FS_LINKS_NONE, e);

    if (fd < 0)
        return -1;
    if (fs_write_at(fd, bytes, n, 0, e) < 0) {
        fs_close(fd);
        return err_wrap(e, "%s", name);
    }
    return close(fd) == 0 ? 0 : err_io(e, "close %s", name);
}

static int read_sized(int fd, const char *name, size_t n, size_t max_bytes, struct buf *out,
                      struct err *e)
{
    char *to;

    if (n > max_bytes)
        return err_set(e, ERR_SPACE, "%s has %zu bytes, of at most %zu", name, n, max_bytes);
    to = buf_reserve(out, n);
    if (!to)
        return err_nomem(e);
    if (fs_read_at(fd, to, n, 0, e) < 0)
        return err_wrap(e, "%s", name);
    out->len += n;
    out->data[out->len] = 0;
    return 0;
}

int fs_read_open(int fd, const char *name, size_t max_bytes, struct buf *out, struct err *e)
{
    struct stat st;

    if (stat_regular(fd, name, &st, e) < 0)
        return -1;
    return read_sized(fd, name, (size_t)st.st_size, max_bytes, out, e);
}

int fs_read_file(int dir_fd, const char *name, enum fs_links links, size_t max_bytes,
                 struct buf *out, struct err *e)
{
    struct stat st = {0};
    int rc, fd = fs_open_regular(dir_fd, name, links, &st, e);

    if (fd < 0)
        return -1;
    rc = read_sized(fd, name, (size_t)st.st_size, max_bytes, out, e);
    fs_close(fd);
    return rc;
}

int fs_make_dirs(const char *path, mode_t mode, struct err *e)
{
    char part[PATH_MAX];
    size_t n = strlen(path);

    if (n >= sizeof part)
        return err_set(e, ERR_ARG, "the path of a directory is longer than %zu bytes",
                       sizeof part - 1);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != 0)
            continue;
        part[i] = 0;
        if (mkdir(part, mode) < 0 && errno != EEXIST)
            return err_io(e, "make the directory %s", part);
        part[i] = path[i];
    }
    return 0;
}

int fs_sync(int fd, const char *what, struct err *e)
{
    return fsync(fd) == 0 ? 0 : err_io(e, "sync %s", what);
}

int fs_sync_name(int dir_fd, const char *name, struct err *e)
{
    int rc, fd = fs_open_beneath(dir_fd, name, O_RDONLY | O_NONBLOCK, 0, FS_LINKS_NONE, e);

    if (fd < 0)
        return -1;
    rc = fs_sync(fd, name, e);
    fs_close(fd);
    return rc;
}

static int remove_at(int dir_fd, const char *name, dev_t mount, int depth, struct err *e);

/* Empties the directory that fd names; consumes fd. Goes on after a failure, so that as little as
 * possible stays. */
static int remove_inside(int fd, dev_t mount, int depth, struct err *e)
{
    DIR *d = fdopendir(fd);
    struct dirent *entry;
    int rc = 0;

    if (!d) {
        err_io(e, "list a directory");
        fs_close(fd);
        return -1;
    }
    while ((entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (remove_at(dirfd(d), entry->d_name, mount, depth + 1, e) < 0)
            rc = -1;
    }
    closedir(d);
    return rc;
}

static int remove_at(int dir_fd, const char *name, dev_t mount, int depth, struct err *e)
{
    struct stat st;
    int fd;

    if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return err_io(e, "remove %s", name);
    fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        err_io(e, "remove %s", name);
        fs_close(fd);
        return -1;
    }
    if (st.st_dev != mount || depth > REMOVE_MAX_DEPTH) {
        fs_close(fd);
        return err_set(e, ERR_CONFLICT, "%s is left: %s", name,
                       st.st_dev != mount ? "another file system is mounted there" : "too deep");
    }
    if (remove_inside(fd, mount, depth, e) < 0)
        return -1;
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return err_io(e, "remove directory %s", name);
    return 0;
}

int fs_remove_tree(int dir_fd, const char *name, struct err *e)
{
    struct stat st;

    if (fstat(dir_fd, &st) < 0)
        return err_io(e, "stat the directory of %s", name);
    return remove_at(dir_fd, name, st.st_dev, 0, e);
}

int fs_free_bytes(int dir_fd, int64_t *out, struct err *e)
{
    struct statvfs v;
    uint64_t n;

    if (fstatvfs(dir_fd, &v) < 0)
        return err_io(e, "measure free disk space");
    if (__builtin_mul_overflow((uint64_t)v.f_bavail, (uint64_t)v.f_frsize, &n) || n > INT64_MAX)
        n = INT64_MAX;
    *out = (int64_t)n;
    return 0;
}

char *fs_path_of(int fd, struct err *e)
{
    char link[32], path[PATH_MAX];
    char *copy;
    ssize_t n;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path);
    if (n < 0 || n == sizeof path) {
        if (n >= 0)
            errno = ENAMETOOLONG;
        err_io(e, "path of an open file");
        return NULL;
    }
    copy = strndup(path, (size_t)n);
    if (!copy)
        err_nomem(e);
    return copy;
}

/* Opening the file once more with O_DIRECT asks the file system itself, where the kernel does not
 * say. */
static bool opens_direct(int fd)
{
    char link[32];
    int direct;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    direct = open(link, O_RDONLY | O_DIRECT | O_CLOEXEC);
    fs_close(direct);
    return direct >= 0;
}

void fs_direct_of(int fd, struct fs_direct *out)
{
    *out = (struct fs_direct){.usable = false, .mem_align = 4096, .offset_align = 4096};
#ifdef STATX_DIOALIGN
    struct statx sx = {0};

    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 && sx.stx_mask & STATX_DIOALIGN) {
        out->usable = sx.stx_dio_offset_align > 0;
        if (sx.stx_dio_mem_align > 4096)
            out->mem_align = sx.stx_dio_mem_align;
        if (sx.stx_dio_offset_align > 4096)
            out->offset_align = sx.stx_dio_offset_align;
        return;
    }
#endif
    out->usable = opens_direct(fd);
}
