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
    struct stream_file *file;
    int fd;
    bool direct;
    size_t align; /* what the reservation, and lengths while direct, are rounded up to */
    /* while it is under way */
    struct ring *ring;
    struct sha256 *hash;
    struct ring_block *block; /* being hashed, or NULL */
    size_t at;                /* bytes of the block that are */
    /* the helper's: numbers of blocks */
    unsigned offered, written;
    unsigned by_caller; /* the last block that the caller fills is before this one */
    struct ring_block *blocks[PUBLISH_BUFFERS];
};

enum { LANES = 2 };

struct writing {
    struct stream stream[STREAMS_MAX]; /* the longest first */
    int n, begun;
    struct stream *lane[LANES]; /* under way, or NULL */
    int64_t done;
    stream_progress_fn *progress;
    void *arg;
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

/* The next block. Who copies it: the helper, while the caller hashes the one before. On one CPU the
 * caller, piece by piece: what it has just copied lies in the cache when it is hashed. False: the
 * caller has given up, or *e says what failed. */
static bool offer(struct stream *s, struct ring *r, bool by_caller, struct err *e)
{
    size_t total = (size_t)s->source->bytes;
    struct ring_block *b = ring_fill(r);

    if (!b)
        return false;
    b->offset = (size_t)s->offered * PUBLISH_BLOCK;
    b->n = total - b->offset < PUBLISH_BLOCK ? total - b->offset : PUBLISH_BLOCK;
    b->bytes = by_caller ? NULL : b->own;
    if (!by_caller && s->source->read(s->source->arg, b->own, b->offset, b->n, e) < 0)
        return false;
    s->blocks[s->offered++ % PUBLISH_BUFFERS] = b;
    if (by_caller)
        s->by_caller = s->offered;
    ring_filled(r);
    return true;
}

/* Offers blocks until there is one to write. Reads go in order: while blocks are left to the
 * caller, the helper copies none. */
static bool offer_ahead(struct stream *s, struct ring *r, unsigned n_blocks, struct err *e)
{
    while (s->offered < n_blocks && s->offered - s->written < PUBLISH_BUFFERS) {
        bool by_caller = ring_one_cpu(r);

        if (!by_caller && s->by_caller > s->written)
            return true;
        if (!offer(s, r, by_caller, e))
            return false;
        if (!by_caller)
            return true;
    }
    return true;
}

/* The helper: offers blocks, and writes them, those that it has copied while they are hashed. */
static int copy_and_write(void *arg, struct ring *r, struct err *e)
{
    struct stream *s = arg;
    size_t total = (size_t)s->source->bytes;
    unsigned n_blocks = (unsigned)((total + PUBLISH_BLOCK - 1) / PUBLISH_BLOCK);

    for (; s->written < n_blocks; s->written++) {
        if (!offer_ahead(s, r, n_blocks, e))
            return e->code ? -1 : 0;
        if (s->written < s->by_caller && !ring_wait_drained(r, s->written + 1))
            return 0;
        if (write_block(s, s->blocks[s->written % PUBLISH_BUFFERS], e) < 0)
            return -1;
    }
    if (total % s->align && ftruncate(s->fd, (off_t)total) < 0)
        return err_io(e, "cut the padding");
    return 0;
}

/* ---- one stream ---- */

static int open_stream(struct stream *s, int dir_fd, struct stream_file *file, struct err *e)
{
    *s = (struct stream){.source = file->source, .file = file, .fd = -1, .align = 1};
    if (s->source->bytes < 0)
        return err_set(e, ERR_ARG, "%s: a file of %lld bytes", file->name,
                       (long long)s->source->bytes);
    s->fd =
        fs_open_beneath(dir_fd, file->name, O_WRONLY | O_CREAT | O_EXCL, 0644, FS_LINKS_NONE, e);
    if (s->fd < 0)
        return -1;
    choose_direct(s);
    return reserve(s, e) == 0 ? 0 : err_wrap(e, "%s", file->name);
}

static int start_stream(struct stream *s, struct err *e)
{
    struct ring *r = ring_open(PUBLISH_BUFFERS, PUBLISH_BLOCK, e);

    if (!r)
        return -1;
    s->hash = sha256_new();
    if (!s->hash || ring_start(r, copy_and_write, s, e) < 0) {
        ring_close(r);
        return s->hash ? -1 : err_nomem(e);
    }
    s->ring = r;
    return 0;
}

/* Waits for the helper. */
static int stop_stream(struct stream *s, struct err *e)
{
    int rc = ring_join(s->ring, e);

    ring_close(s->ring);
    s->ring = NULL;
    return rc;
}

static int end_stream(struct stream *s, struct err *e)
{
    if (stop_stream(s, e) < 0)
        return err_wrap(e, "%s", s->file->name);
    sha256_hex(s->hash, s->file->sha256);
    return 0;
}

/* ---- two at a time ---- */

/* A block for the lane, of the next stream when one is through. 0: a block, or nothing is left. */
static int fill_lane(struct writing *w, int lane, struct err *e)
{
    struct stream *s = w->lane[lane];

    while (!s || !s->block) {
        if (!s && w->begun == w->n)
            return 0;
        if (!s) {
            s = &w->stream[w->begun++];
            if (start_stream(s, e) < 0)
                return err_wrap(e, "%s", s->file->name);
            w->lane[lane] = s;
        }
        s->block = ring_drain(s->ring);
        s->at = 0;
        if (!s->block) {
            w->lane[lane] = NULL;
            if (end_stream(s, e) < 0)
                return -1;
            s = NULL;
        }
    }
    return 0;
}

static void advance(struct writing *w, struct stream *s, size_t n)
{
    s->at += n;
    w->done += (int64_t)n;
    if (s->at < s->block->n)
        return;
    ring_drained(s->ring);
    s->block = NULL;
}

static size_t left(const struct stream *s)
{
    return s->block->n - s->at;
}

/* The next n bytes of the block are there. */
static int fetch(const struct stream *s, size_t n, struct err *e)
{
    const struct ring_block *b = s->block;

    if (b->bytes || s->source->read(s->source->arg, b->own + s->at, b->offset + s->at, n, e) == 0)
        return 0;
    return err_wrap(e, "%s", s->file->name);
}

/* In pieces, so that whoever lent this thread a core can have it back soon. `one` is a lane that
 * has something. */
static int hash_lanes(struct writing *w, struct stream *one, struct err *e)
{
    struct stream *a = w->lane[0], *b = w->lane[1];
    size_t n = left(one) < SHA256_PIECE ? left(one) : SHA256_PIECE;

    if (a && b) {
        n = left(b) < n ? left(b) : n;
        if (fetch(a, n, e) < 0 || fetch(b, n, e) < 0)
            return -1;
        sha256_update_pair(a->hash, a->block->own + a->at, b->hash, b->block->own + b->at, n);
        advance(w, a, n);
        advance(w, b, n);
    } else {
        if (fetch(one, n, e) < 0)
            return -1;
        sha256_update(one->hash, one->block->own + one->at, n);
        advance(w, one, n);
    }
    return w->progress ? w->progress(w->arg, w->done, e) : 0;
}

static int pump(struct writing *w, struct err *e)
{
    struct stream *one;

    do {
        for (int i = 0; i < LANES; i++)
            if (fill_lane(w, i, e) < 0)
                return -1;
        one = w->lane[0] ? w->lane[0] : w->lane[1];
        if (one && hash_lanes(w, one, e) < 0)
            return -1;
    } while (one);
    return 0;
}

static void release(struct writing *w)
{
    struct err ignored = {0};

    for (int i = 0; i < w->n; i++) {
        struct stream *s = &w->stream[i];

        if (s->ring) {
            ring_give_up(s->ring);
            stop_stream(s, &ignored);
        }
        sha256_free(s->hash);
    }
}

static int open_all(struct writing *w, int dir_fd, struct stream_file *files, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        int at = w->n++;

        for (; at > 0 && w->stream[at - 1].source->bytes < files[i].source->bytes; at--)
            w->stream[at] = w->stream[at - 1];
        if (open_stream(&w->stream[at], dir_fd, &files[i], e) < 0)
            return -1;
    }
    return 0;
}

int stream_write_all(int dir_fd, struct stream_file *files, int n, stream_progress_fn *progress,
                     void *arg, struct err *e)
{
    struct writing w = {.progress = progress, .arg = arg};
    int rc = -1;

    if (n < 1 || n > STREAMS_MAX)
        return err_set(e, ERR_ARG, "%d streams, of 1 to %d", n, STREAMS_MAX);
    if (open_all(&w, dir_fd, files, n, e) == 0)
        rc = pump(&w, e);
    release(&w);
    for (int i = 0; i < w.n; i++) {
        if (rc < 0)
            fs_close(w.stream[i].fd);
        w.stream[i].file->fd = rc < 0 ? -1 : w.stream[i].fd;
    }
    return rc;
}
