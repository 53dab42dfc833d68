#include "engine/snapshot.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/pool.h"
#include "engine/engine_impl.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "engine/runner.h"
#include "tensor/weights.h"

enum {
    PIECE = 1 << 20,     /* a writer waits at most for the copy of one piece */
    RECALL_NS = 2000000, /* the borrower of a core may be waiting for the disk */
};

struct snapshot {
    struct snapshot *next; /* in the engine's list, under its snapshot_lock */
    struct engine *engine;
    struct image *image; /* counted */

    pthread_mutex_t
        lock;      /* guards what follows, and the bytes of the image while a piece is copied */
    size_t unread; /* everything below has been read */
    unsigned char *copy; /* after a detach: the bytes [copy_from, size) of that instant */
    size_t copy_from, copy_block_bytes;
    bool damaged; /* what was read from the image is not what it held: a client cut its memory */
};

struct snapshot *snapshot_begin(struct engine *e, struct image *im, struct err *err)
{
    struct snapshot *s = calloc(1, sizeof *s);

    if (!s) {
        err_nomem(err);
        return NULL;
    }
    s->engine = e;
    s->image = image_ref(im);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_lock(&e->snapshot_lock);
    s->next = e->snapshots;
    e->snapshots = s;
    pthread_mutex_unlock(&e->snapshot_lock);
    return s;
}

size_t snapshot_bytes(const struct snapshot *s)
{
    return s->image->weights->bytes;
}

/* Holds the snapshot's lock. The look after the copy tells whether all of it was there. */
static void copy_from_image(struct snapshot *s, struct pool *pool, void *to, size_t offset,
                            size_t n)
{
    const unsigned char *from = s->image->weights->base + offset;

    if (pool)
        pool_memcpy(pool, to, from, n);
    else
        memcpy(to, from, n);
    s->damaged = s->damaged || image_damaged(s->image);
}

static int read_piece(struct snapshot *s, void *to, size_t offset, size_t n, struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&s->lock);
    if (!s->copy)
        copy_from_image(s, NULL, to, offset, n);
    else if (offset >= s->copy_from)
        memcpy(to, s->copy + (offset - s->copy_from), n);
    else
        rc = err_set(err, ERR_ARG, "offset %zu of a snapshot has been passed already", offset);
    if (rc == 0 && s->damaged)
        rc = err_set(err, ERR_IO, "a client has cut the shared memory of the weights short");
    if (offset + n > s->unread)
        s->unread = offset + n;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int snapshot_read(struct snapshot *s, void *to, size_t offset, size_t n, struct err *err)
{
    size_t bytes = snapshot_bytes(s);

    if (offset > bytes || n > bytes - offset)
        return err_set(err, ERR_ARG, "bytes %zu to %zu of a snapshot of %zu", offset, offset + n,
                       bytes);
    for (size_t done = 0; done < n;) {
        size_t piece = n - done < PIECE ? n - done : PIECE;

        if (read_piece(s, (unsigned char *)to + done, offset + done, piece, err) < 0)
            return -1;
        done += piece;
    }
    return 0;
}

void snapshot_end(struct snapshot *s)
{
    if (!s)
        return;
    struct engine *e = s->engine;

    pthread_mutex_lock(&e->snapshot_lock);
    struct snapshot **at = &e->snapshots;

    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&e->snapshot_lock);
    image_bank_give(s->image->bank, s->copy, s->copy_block_bytes);
    image_unref(s->image);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Holds the snapshot's lock: its reader waits. */
static int detach(struct engine *e, struct snapshot *s, struct err *err)
{
    size_t left = snapshot_bytes(s) - s->unread;

    if (s->copy || left == 0)
        return 0;
    s->copy = image_bank_take_resident(s->image->bank, left, &s->copy_block_bytes);
    if (!s->copy)
        s->copy = image_bank_take(s->image->bank, left, &s->copy_block_bytes, err);
    if (!s->copy)
        return err_wrap(err, "keep the weights of a save that is being written");
    s->copy_from = s->unread;
    copy_from_image(s, e->pool, s->copy, s->copy_from, left);
    return 0;
}

int snapshot_detach_all(struct engine *e, const struct image *im, struct err *err)
{
    int rc = 0;

    runners_drop_prefixes(e); /* the writer changes what they were computed from */
    pthread_mutex_lock(&e->snapshot_lock);
    for (struct snapshot *s = e->snapshots; s && rc == 0; s = s->next) {
        if (s->image != im)
            continue;
        pool_recall_now(e->pool, RECALL_NS); /* the copy is for all cores */
        pthread_mutex_lock(&s->lock);
        rc = detach(e, s, err);
        pthread_mutex_unlock(&s->lock);
    }
    pool_recall_at(e->pool, 0);
    pthread_mutex_unlock(&e->snapshot_lock);
    return rc;
}
