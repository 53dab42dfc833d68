#include "store/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "store/ring.h"

struct ckpt_reader {
    int dir_fd; /* borrowed */
    int fd;
    char *name;
    struct ckpt_facts facts;
};

static void take_facts(const struct stat *st, struct ckpt_facts *out)
{
    out->dev = st->st_dev;
    out->ino = st->st_ino;
    out->size = st->st_size;
    out->mtime_ns = st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
    out->ctime_ns = st->st_ctim.tv_sec * INT64_C(1000000000) + st->st_ctim.tv_nsec;
}

enum reader_fault ckpt_reader_open(int step_dir_fd, const char *file, struct ckpt_reader **out,
                                   struct err *e)
{
    struct ckpt_reader *r = calloc(1, sizeof *r);
    struct stat st;

    *out = NULL;
    if (!r || !(r->name = strdup(file))) {
        free(r);
        err_nomem(e);
        return READER_FAILED;
    }
    r->dir_fd = step_dir_fd;
    r->fd = fs_open_regular(step_dir_fd, file, FS_LINKS_NONE, &st, e);
    if (r->fd < 0) {
        ckpt_reader_close(r);
        return e->code == ERR_NOT_FOUND ? READER_MISSING
               : e->code == ERR_FORMAT  ? READER_NOT_REGULAR
                                        : READER_FAILED;
    }
    take_facts(&st, &r->facts);
    *out = r;
    return READER_OK;
}

void ckpt_reader_close(struct ckpt_reader *r)
{
    if (!r)
        return;
    fs_close(r->fd);
    free(r->name);
    free(r);
}

const struct ckpt_facts *ckpt_reader_facts(const struct ckpt_reader *r)
{
    return &r->facts;
}

int ckpt_reader_fd(const struct ckpt_reader *r)
{
    return r->fd;
}

/* ---- where to read from ---- */

/* Nine tenths of the file in the page cache: then the cache is faster than any disk. */
static bool is_cached(int fd, size_t bytes)
{
    size_t pages = (bytes + 4095) / 4096, there = 0;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *vec = map == MAP_FAILED ? NULL : malloc(pages);

    if (vec && mincore(map, bytes, vec) == 0)
        for (size_t i = 0; i < pages; i++)
            there += vec[i] & 1;
    free(vec);
    if (map != MAP_FAILED)
        munmap(map, bytes);
    return there >= pages - pages / 10;
}

/* A second handle with O_DIRECT, or -1: read through the page cache. */
static int open_direct(const struct ckpt_reader *r)
{
    struct fs_direct facts;
    char link[32];

    if (r->facts.size < READER_BLOCK || is_cached(r->fd, (size_t)r->facts.size))
        return -1;
    fs_direct_of(r->fd, &facts);
    if (!facts.usable || facts.mem_align > 4096 || READER_BLOCK % facts.offset_align)
        return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", r->fd);
    return open(link, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

/* ---- the read ---- */

struct read_job {
    const struct ckpt_reader *reader;
    int direct_fd; /* -1: none */
    unsigned char *to;
};

/* Full blocks go by direct I/O; the last piece, and whatever it refuses, through the page cache. */
static int read_block(struct read_job *j, struct ring_block *b, struct err *e)
{
    if (j->direct_fd >= 0 && b->n == READER_BLOCK && ((uintptr_t)b->bytes & 4095) == 0) {
        if (fs_read_at(j->direct_fd, b->bytes, b->n, (int64_t)b->offset, e) == 0)
            return 0;
        if (e->sys != EINVAL)
            return -1;
    }
    return fs_read_at(j->reader->fd, b->bytes, b->n, (int64_t)b->offset, e);
}

static int read_all(void *arg, struct ring *ring, struct err *e)
{
    struct read_job *j = arg;
    size_t total = (size_t)j->reader->facts.size;
    struct ring_block *b;

    for (size_t at = 0; at < total; at += b->n) {
        b = ring_fill(ring);
        if (!b)
            return 0;
        b->bytes = j->to ? j->to + at : b->own;
        b->offset = at;
        b->n = total - at < READER_BLOCK ? total - at : READER_BLOCK;
        if (read_block(j, b, e) < 0)
            return err_wrap(e, "%s", j->reader->name);
        ring_filled(ring);
    }
    return 0;
}

/* In pieces, so that whoever lent this thread a core can have it back soon. */
static int hash_block(const struct ring_block *b, struct sha256 *h, ckpt_block_fn *on_block,
                      void *arg, struct err *e)
{
    for (size_t at = 0, n; at < b->n; at += n) {
        n = b->n - at < SHA256_PIECE ? b->n - at : SHA256_PIECE;
        sha256_update(h, b->bytes + at, n);
        if (on_block && on_block(arg, b->bytes + at, b->offset + at, n, e) < 0)
            return -1;
    }
    return 0;
}

static int hash_blocks(struct ring *ring, struct sha256 *h, ckpt_block_fn *on_block, void *arg,
                       struct err *e)
{
    struct ring_block *b;
    int rc = 0;

    while (rc == 0 && (b = ring_drain(ring))) {
        rc = hash_block(b, h, on_block, arg, e);
        ring_drained(ring);
    }
    if (rc < 0)
        ring_give_up(ring);
    return rc;
}

int ckpt_reader_hash(struct ckpt_reader *r, void *to, ckpt_block_fn *on_block, void *arg,
                     char sha256[SHA256_HEX], struct err *e)
{
    struct read_job j = {.reader = r, .direct_fd = open_direct(r), .to = to};
    struct ring *ring = ring_open(READER_BUFFERS, READER_BLOCK, e);
    struct sha256 *h = sha256_new();
    struct err helper = {0};
    int rc = -1;

    if (!ring)
        goto done;
    if (!h) {
        err_nomem(e);
        goto done;
    }
    if (ring_start(ring, read_all, &j, e) < 0)
        goto done;
    rc = hash_blocks(ring, h, on_block, arg, e);
    if (ring_join(ring, &helper) < 0 && rc == 0) {
        *e = helper;
        rc = -1;
    }
    if (rc == 0)
        sha256_hex(h, sha256);

done:
    sha256_free(h);
    ring_close(ring);
    fs_close(j.direct_fd);
    return rc;
}

/* ---- the re-check ---- */

static const char *difference(const struct ckpt_facts *a, const struct ckpt_facts *b)
{
    if (a->dev != b->dev)
        return "device";
    if (a->ino != b->ino)
        return "inode";
    if (a->size != b->size)
        return "size";
    if (a->mtime_ns != b->mtime_ns)
        return "mtime";
    return a->ctime_ns != b->ctime_ns ? "ctime" : NULL;
}

const char *ckpt_reader_changed(const struct ckpt_reader *r)
{
    struct ckpt_facts now;
    struct stat st;
    const char *what;

    if (fstat(r->fd, &st) < 0)
        return "missing";
    take_facts(&st, &now);
    what = difference(&r->facts, &now);
    if (what)
        return what;
    if (fstatat(r->dir_fd, r->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return "missing";
    take_facts(&st, &now);
    return difference(&r->facts, &now);
}
