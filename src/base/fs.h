/* base/fs.h - files by directory handle: confined opening, whole writes, sync, removal, direct I/O
 * facts.
 *
 * Every function takes a directory handle and a name, so that no string is joined into a path that
 * is then trusted. "Beneath" means openat2 with RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS: a path
 * or a link that leads out of dir_fd fails with ERR_ARG (sys EXDEV, or ELOOP), whatever changes
 * meanwhile. Descriptors are close-on-exec and owned by the caller. Safe from several threads. */
#ifndef BASE_FS_H
#define BASE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

struct buf;
struct err;

enum fs_links {
    FS_LINKS_INSIDE, /* links are followed as long as they stay beneath dir_fd */
    FS_LINKS_NONE,   /* a link anywhere in the path fails with ELOOP */
};

/* An absolute path of the operator; no confinement. O_DIRECTORY | O_RDONLY. */
int fs_open_dir(const char *path, struct err *e);
/* flags as for open(2); mode counts with O_CREAT only. Descriptor, or -1 with *e. */
int fs_open_beneath(int dir_fd, const char *path, int flags, mode_t mode, enum fs_links links,
                    struct err *e);
/* A regular file for reading; a FIFO or device never blocks. -1: ERR_NOT_FOUND, ERR_FORMAT (not a
 * regular file; a link with FS_LINKS_NONE), ERR_ARG (leads out), ERR_IO. *st (NULL allowed) is of
 * the handle. */
int fs_open_regular(int dir_fd, const char *path, enum fs_links links, struct stat *st,
                    struct err *e);
void fs_close(int fd); /* -1 is allowed; keeps errno */

int fs_write_at(int fd, const void *bytes, size_t n, int64_t offset, struct err *e);
/* Exactly n bytes; ERR_FORMAT when the file ends before. */
int fs_read_at(int fd, void *to, size_t n, int64_t offset, struct err *e);
/* A new file with these bytes (O_EXCL: an existing entry is ERR_CONFLICT). Not synced. */
int fs_create_file(int dir_fd, const char *name, const void *bytes, size_t n, mode_t mode,
                   struct err *e);
/* The whole regular file appended to *out; ERR_SPACE and nothing read when it is over max_bytes.
 * fs_read_open: of a handle that was opened with O_NONBLOCK, so that no FIFO held it up. */
int fs_read_file(int dir_fd, const char *name, enum fs_links links, size_t max_bytes,
                 struct buf *out, struct err *e);
int fs_read_open(int fd, const char *name, size_t max_bytes, struct buf *out, struct err *e);

/* Locks dir_fd/name, made (mode) where it is missing, for this handle alone (flock): until it is
 * closed, or the process ends. The handle; -1: ERR_CONFLICT (another one has it), ERR_IO. */
int fs_lock_file(int dir_fd, const char *name, mode_t mode, struct err *e);

/* mkdir -p; what is there already is left as it is. */
int fs_make_dirs(const char *path, mode_t mode, struct err *e);

int fs_sync(int fd, const char *what, struct err *e);          /* fsync; `what` for the message */
int fs_sync_name(int dir_fd, const char *name, struct err *e); /* opens (no link), fsync, close */

/* Removes the entry and all below it. Follows no link, enters no other mount (ERR_CONFLICT). An
 * entry that is not there is no error. What cannot be removed is left, and reported. */
int fs_remove_tree(int dir_fd, const char *name, struct err *e);

/* Blocks an unprivileged process may still take, in bytes. */
int fs_free_bytes(int dir_fd, int64_t *out, struct err *e);
/* Real path of an open directory or file, owned (free it); NULL with *e. */
char *fs_path_of(int fd, struct err *e);

/* What direct I/O asks of this file: multiples for memory and for offsets and lengths. usable
 * false: the file system refuses O_DIRECT. From statx(STATX_DIOALIGN), else 4096 when O_DIRECT
 * opens. */
struct fs_direct {
    bool usable;
    size_t mem_align;
    size_t offset_align;
};
void fs_direct_of(int fd, struct fs_direct *out);
#endif
