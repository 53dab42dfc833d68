#include "store/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "store/publish.h"
#include "store/ring.h"

struct stream {
    const struct ckpt_source *source;
    int fd;
    bool direct;
    size_t align; /* what the reservation, and lengths while direct, are rounded up to */
};

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Fails early on a full disk, and keeps the file in few pieces. */
static int reserve(const struct stream *s, struct err *e)
{
    int64_t want = (int64_t)round_up((size_t)s->source->bytes, s->align);

    if (want == 0 || fallocate(s->fd, 0, 0, want) == 0)
        return 0;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
        return 0;
    return err_io(e, "reserve %lld bytes", (long long)want);
}

static void set_direct(struct stream *s, bool on)
{
    int flags = fcntl(s->fd, F_GETFL);

    s->direct =
        flags >= 0 && fcntl(s->fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 && on;
}

static void choose_direct(struct stream *s)
{
    struct fs_direct facts;

    fs_direct_of(s->fd, &facts);
    s->align = facts.offset_align;
    if (facts.usable && facts.mem_align <= 4096 && PUBLISH_BLOCK % facts.offset_align == 0)
        set_direct(s, true);
}

/* A whole block; the one at the end of the file may be padded. */
static int write_block(struct stream *s, const struct ring_block *b, struct err *e)
{
    size_t n = b->n;

    if (s->direct) {
        n = round_up(n, s->align);
        memset(b->own + b->n, 0, n - b->n);
        if (fs_write_at(s->fd, b->own, n, (int64_t)b->offset, e) == 0)
            return 0;
        if (e->sys != EINVAL)
            return -1;
        set_direct(s, false); /* it promised direct I/O and refuses it: go on without */
        n = b->n;
    }
    if (fs_write_at(s->fd, b->own, n, (int64_t)b->offset, e) < 0)
        return -1;
    sync_file_range(s->fd, (off_t)b->offset, (off_t)n,
                    SYNC_FILE_RANGE_WRITE); /* only a head start */
    return 0;
}

/* The helper: copies a block, hands it to the hash, and writes it while it is being hashed. */
static int copy_and_write(void *arg, struct ring *r, struct err *e)
{
    struct stream *s = arg;
    size_t total = (size_t)s->source->bytes;
    struct ring_block *b;

    for (size_t at = 0; at < total; at += b->n) {
        b = ring_fill(r);
        if (!b)
            return 0;
        b->bytes = b->own;
        b->offset = at;
        b->n = total - at < PUBLISH_BLOCK ? total - at : PUBLISH_BLOCK;
        if (s->source->read(s->source->arg, b->own, at, b->n, e) < 0)
            return -1;
        ring_filled(r);
        if (write_block(s, b, e) < 0)
            return -1;
    }
    if (total % s->align && ftruncate(s->fd, (off_t)total) < 0)
        return err_io(e, "cut the padding");
    return 0;
}

static void hash_blocks(struct ring *r, struct sha256 *h, stream_progress_fn *progress, void *arg)
{
    struct ring_block *b;

    while ((b = ring_drain(r))) {
        int64_t done = (int64_t)(b->offset + b->n);

        sha256_update(h, b->bytes, b->n);
        ring_drained(r);
        if (progress)
            progress(arg, done);
    }
}

static int pump(struct stream *s, stream_progress_fn *progress, void *arg, char sha256[SHA256_HEX],
                struct err *e)
{
    struct ring *r = ring_open(PUBLISH_BUFFERS, PUBLISH_BLOCK, e);
    struct sha256 *h = sha256_new();
    int rc = -1;

    if (!r)
        goto done;
    if (!h) {
        err_nomem(e);
        goto done;
    }
    if (ring_start(r, copy_and_write, s, e) < 0)
        goto done;
    hash_blocks(r, h, progress, arg);
    rc = ring_join(r, e);
    if (rc == 0)
        sha256_hex(h, sha256);

done:
    sha256_free(h);
    ring_close(r);
    return rc;
}

int stream_write(int dir_fd, const char *name, const struct ckpt_source *source,
                 stream_progress_fn *progress, void *arg, char sha256[SHA256_HEX], struct err *e)
{
    struct stream s = {.source = source, .align = 1};

    if (source->bytes < 0)
        return err_set(e, ERR_ARG, "a file of %lld bytes", (long long)source->bytes);
    s.fd = fs_open_beneath(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL, 0644, FS_LINKS_NONE, e);
    if (s.fd < 0)
        return -1;
    choose_direct(&s);
    if (reserve(&s, e) == 0 && pump(&s, progress, arg, sha256, e) == 0)
        return s.fd;
    err_wrap(e, "%s", name);
    fs_close(s.fd);
    return -1;
}
