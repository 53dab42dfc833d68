/* store/stream.h - write large files from their sources, hashing exactly the bytes that are
 * written.
 *
 * Direct I/O where the file system allows it, else buffered writes whose write-back starts at once.
 * The space of every file is reserved first; a last block is padded for direct I/O and the padding
 * cut off. Not synced.
 *
 * Two files are under way at a time, the longest first, each with a helper thread that copies and
 * writes; the calling thread hashes both in step (base/sha256.h): one chain of SHA-256 is slower
 * than a disk. */
#ifndef STORE_STREAM_H
#define STORE_STREAM_H

#include <stdint.h>

#include "base/sha256.h"

struct ckpt_source;
struct err;

enum { STREAMS_MAX = 8 };

struct stream_file {
    const char *name;
    const struct ckpt_source *source;
    char *sha256; /* [SHA256_HEX], filled in */
    int fd;       /* filled in: open for the fsync */
};

/* Called by the calling thread after each SHA256_PIECE at most, with the bytes of all files that
 * are through. May be NULL. */
typedef int stream_progress_fn(void *arg, int64_t done, struct err *e);

/* Creates <dir>/<name>, which must not exist, for each of 1 to STREAMS_MAX files. -1 with *e: no
 * descriptor is left open. */
int stream_write_all(int dir_fd, struct stream_file *files, int n, stream_progress_fn *progress,
                     void *arg, struct err *e);
#endif
