#include "daemon/state_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

#include "base/err.h"
#include "base/fs.h"

/* flock, not a lock of the database: it belongs to this handle alone, and ends with the process. */
static int lock(int dir_fd, const char *file, const char *path, const char *variable, struct err *e)
{
    int fd = fs_open_beneath(dir_fd, file, O_RDWR | O_CREAT, 0600, FS_LINKS_NONE, e);

    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    if (errno == EWOULDBLOCK)
        err_set(e, ERR_CONFLICT, "%s is in use by another server: stop it, or choose another %s",
                path, variable);
    else
        err_io(e, "lock %s", path);
    fs_close(fd);
    return -1;
}

static int open_locked(const char *path, const char *file, const char *variable, struct err *e)
{
    int dir_fd, fd;

    if (fs_make_dirs(path, 0700, e) < 0)
        return err_wrap(e, "%s", variable);
    dir_fd = fs_open_dir(path, e);
    if (dir_fd < 0)
        return err_wrap(e, "%s", variable);
    fd = lock(dir_fd, file, path, variable, e);
    fs_close(dir_fd);
    return fd;
}

int state_dir_open(const char *path, struct err *e)
{
    return open_locked(path, "cairn.lock", "STATE_DIR", e);
}

int weaver_dir_open(const char *path, struct err *e)
{
    return open_locked(path, ".weaver.lock", "WEAVER_CHECKPOINT_DIR", e);
}
