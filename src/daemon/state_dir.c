#include "daemon/state_dir.h"

#include "base/err.h"
#include "base/fs.h"

static int open_locked(const char *path, const char *file, const char *variable, struct err *e)
{
    int dir_fd = fs_make_dirs(path, 0700, e) < 0 ? -1 : fs_open_dir(path, e), fd;

    if (dir_fd < 0)
        return err_wrap(e, "%s", variable);
    fd = fs_lock_file(dir_fd, file, 0600, e);
    fs_close(dir_fd);
    if (fd >= 0)
        return fd;
    if (e->code == ERR_CONFLICT)
        return err_set(e, ERR_CONFLICT,
                       "%s is in use by another server: stop it, or choose another %s", path,
                       variable);
    return err_wrap(e, "%s", variable);
}

int state_dir_open(const char *path, struct err *e)
{
    return open_locked(path, "cairn.lock", "STATE_DIR", e);
}

int weaver_dir_open(const char *path, struct err *e)
{
    return open_locked(path, ".weaver.lock", "WEAVER_CHECKPOINT_DIR", e);
}
