/* store/reader.h - read model.safetensors of a step directory once, hashing what is read.
 *
 * Order: ckpt_reader_open, ckpt_reader_hash, later (inside the barrier) ckpt_reader_changed, close.
 * The bytes that were hashed are the bytes the caller got. A helper thread reads ahead (direct I/O,
 * or the page cache where the file is in it), the calling thread hashes and hands out: the speed is
 * that of SHA-256. One reader, one thread. */
#ifndef STORE_READER_H
#define STORE_READER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/sha256.h"

struct err;
struct ckpt_reader;

enum { READER_BLOCK = 4 << 20, READER_BUFFERS = 4 };

struct ckpt_facts {
    dev_t dev;
    ino_t ino;
    int64_t size;
    int64_t mtime_ns;
    int64_t ctime_ns;
};

enum reader_fault {
    READER_OK,
    READER_MISSING,     /* CHECKPOINT_NOT_LOADABLE, safetensors_header, problem "missing" */
    READER_NOT_REGULAR, /* the same, problem "not_regular": a link, a directory, a FIFO */
    READER_FAILED,
};

/* Opens `file` ("model.safetensors") in step_dir_fd, which is borrowed until close. */
enum reader_fault ckpt_reader_open(int step_dir_fd, const char *file, struct ckpt_reader **out,
                                   struct err *e);
void ckpt_reader_close(struct ckpt_reader *r); /* NULL is allowed */
const struct ckpt_facts *ckpt_reader_facts(const struct ckpt_reader *r);
int ckpt_reader_fd(const struct ckpt_reader *r); /* borrowed, for positioned reads */

/* Called with rising offsets, once for every byte; -1 stops the read (ERR_CANCELLED for a client
 * that left). */
typedef int ckpt_block_fn(void *arg, const void *bytes, size_t offset, size_t n, struct err *e);

/* Reads the whole file. `to`, when not NULL, has room for facts.size bytes and receives them (a
 * page-aligned place is read into directly); on_block, when not NULL, is called after each
 * SHA256_PIECE at most. A file that ends early is ERR_FORMAT. The pages read are not kept in the page cache
 * where direct I/O works. */
int ckpt_reader_hash(struct ckpt_reader *r, void *to, ckpt_block_fn *on_block, void *arg,
                     char sha256[SHA256_HEX], struct err *e);

/* NULL: the handle and the name still have the facts of the open. Else which one differs: "size",
 * "inode", "mtime", "ctime", "device", "missing". */
const char *ckpt_reader_changed(const struct ckpt_reader *r);
#endif
