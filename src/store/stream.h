/* store/stream.h - write one large file from a source, hashing exactly the bytes that are written.
 *
 * Direct I/O where the file system allows it, else buffered writes whose write-back starts at once.
 * The space is reserved first; a last block is padded for direct I/O and the padding cut off. Not
 * synced. */
#ifndef STORE_STREAM_H
#define STORE_STREAM_H

#include <stdint.h>

#include "base/sha256.h"

struct ckpt_source;
struct err;

/* Called by the calling thread after each block. May be NULL. */
typedef void stream_progress_fn(void *arg, int64_t done);

/* Creates <dir>/<name>, which must not exist, and leaves it open for the fsync: a descriptor, or -1
 * with *e. */
int stream_write(int dir_fd, const char *name, const struct ckpt_source *source,
                 stream_progress_fn *progress, void *arg, char sha256[SHA256_HEX], struct err *e);
#endif
