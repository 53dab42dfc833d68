/* Reads a model directory into an image: each byte of data goes from its file straight to its
 * place.
 *
 * The tensors of a file tile its data area, so placing them in file order reads every file once
 * from front to back, and hashing the placed bytes in the same order hashes the file. What is
 * hashed is what is in the image. With a hash a second thread reads ahead: SHA-256 is the slower of
 * the two. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "tensor/model_dir.h"
#include "tensor/weights.h"
#include "tensor/weights_map.h"

enum { STEP = 4 << 20 }; /* bytes of one read, one hash update, one progress call */

struct run {
    int file;
    size_t offset; /* in the file */
    size_t bytes;
    unsigned char *to;
};

struct reader {
    const struct model_dir *md;
    struct run *runs; /* in file order; neighbours in both file and image are one run */
    size_t n_runs;
    uint64_t total;
    pthread_mutex_t lock; /* of all below, in the read-ahead case */
    pthread_cond_t moved;
    uint64_t done; /* bytes placed */
    bool stop, failed;
    struct err err;
};

static int by_place(const void *a, const void *b)
{
    const struct run *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static void join_runs(struct reader *r)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_runs; i++) {
        struct run *last = n ? &r->runs[n - 1] : NULL, *this = &r->runs[i];

        if (last && last->file == this->file && last->offset + last->bytes == this->offset &&
            last->to + last->bytes == this->to)
            last->bytes += this->bytes;
        else
            r->runs[n++] = *this;
    }
    r->n_runs = n;
}

static int plan_runs(struct reader *r, const struct weights *w, struct err *e)
{
    const struct st_index *all = &r->md->all;

    r->runs = calloc(all->n + 1, sizeof *r->runs);
    if (!r->runs)
        return err_nomem(e);
    for (size_t i = 0; i < all->n; i++) { /* both tables are in byte order of the names */
        const struct st_tensor *t = &all->tensors[i];

        if (!t->bytes)
            continue;
        r->runs[r->n_runs++] = (struct run){.file = t->file,
                                            .offset = r->md->files[t->file].data_start + t->offset,
                                            .bytes = t->bytes,
                                            .to = weights_data(w, &w->tensors[i])};
        r->total += t->bytes;
    }
    qsort(r->runs, r->n_runs, sizeof *r->runs, by_place);
    join_runs(r);
    return 0;
}

static int read_piece(const struct reader *r, const struct run *run, size_t at, size_t n,
                      struct err *e)
{
    const struct model_file *f = &r->md->files[run->file];

    for (size_t got = 0; got < n;) {
        ssize_t k = pread(f->fd, run->to + at + got, n - got, (off_t)(run->offset + at + got));

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_io(e, "read %s", f->name);
        if (k == 0)
            return err_set(e, ERR_FORMAT,
                           "%s became shorter while it was read; load it again when it is whole",
                           f->name);
        got += (size_t)k;
    }
    return 0;
}

/* Walks the runs in steps; fn gets each piece, in file order. */
typedef int piece_fn(struct reader *r, const struct run *run, size_t at, size_t n, void *arg,
                     struct err *e);

static int each_piece(struct reader *r, piece_fn *fn, void *arg, struct err *e)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        for (size_t at = 0; at < r->runs[i].bytes; at += STEP) {
            size_t left = r->runs[i].bytes - at, n = left < STEP ? left : STEP;

            if (fn(r, &r->runs[i], at, n, arg, e) < 0)
                return -1;
        }
    }
    return 0;
}

static int report(const struct weights_read *opt, uint64_t done, uint64_t total, struct err *e)
{
    if (opt && opt->progress && opt->progress(opt->arg, done, total))
        return err_set(e, ERR_CANCELLED, "reading the weights was cancelled");
    return 0;
}

static int read_and_report(struct reader *r, const struct run *run, size_t at, size_t n, void *arg,
                           struct err *e)
{
    if (read_piece(r, run, at, n, e) < 0)
        return -1;
    r->done += n;
    return report(arg, r->done, r->total, e);
}

/* ---- read ahead ---- */

static int read_and_signal(struct reader *r, const struct run *run, size_t at, size_t n, void *arg,
                           struct err *e)
{
    bool stop;

    (void)arg;
    if (read_piece(r, run, at, n, e) < 0)
        return -1;
    pthread_mutex_lock(&r->lock);
    r->done += n;
    stop = r->stop;
    pthread_cond_signal(&r->moved);
    pthread_mutex_unlock(&r->lock);
    return stop ? err_set(e, ERR_CANCELLED, "stopped") : 0;
}

static void *read_ahead(void *arg)
{
    struct reader *r = arg;
    struct err e = {0};

    if (each_piece(r, read_and_signal, NULL, &e) < 0) {
        pthread_mutex_lock(&r->lock);
        r->failed = true;
        r->err = e;
        pthread_cond_signal(&r->moved);
        pthread_mutex_unlock(&r->lock);
    }
    return NULL;
}

struct hashing {
    struct weights_read *opt;
    struct sha256 *hash;
    uint64_t done; /* bytes hashed */
};

/* Waits until the reader is past this piece. */
static int wait_for(struct reader *r, uint64_t upto, struct err *e)
{
    bool failed;

    pthread_mutex_lock(&r->lock);
    while (r->done < upto && !r->failed)
        pthread_cond_wait(&r->moved, &r->lock);
    failed = r->done < upto;
    if (failed)
        *e = r->err;
    pthread_mutex_unlock(&r->lock);
    return failed ? -1 : 0;
}

static int hash_piece(struct reader *r, const struct run *run, size_t at, size_t n, void *arg,
                      struct err *e)
{
    struct hashing *h = arg;

    if (wait_for(r, h->done + n, e) < 0)
        return -1;
    sha256_update(h->hash, run->to + at, n);
    h->done += n;
    return report(h->opt, h->done, r->total, e);
}

static int read_hashed(struct reader *r, struct weights_read *opt, struct err *e)
{
    struct hashing h = {.opt = opt, .hash = sha256_new()};
    pthread_t thread;
    int rc;

    if (!h.hash)
        return err_nomem(e);
    errno = pthread_create(&thread, NULL, read_ahead, r);
    if (errno) {
        sha256_free(h.hash);
        return err_io(e, "start a reading thread");
    }
    sha256_update(h.hash, r->md->files[0].header, r->md->files[0].data_start);
    rc = each_piece(r, hash_piece, &h, e);
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_mutex_unlock(&r->lock);
    pthread_join(thread, NULL);
    if (rc == 0)
        sha256_hex(h.hash, opt->sha256);
    sha256_free(h.hash);
    return rc;
}

int weights_read_into(struct weights *w, const struct model_dir *md, struct weights_read *opt,
                      struct err *e)
{
    struct reader r = {
        .md = md, .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    int rc = -1;

    if (opt)
        opt->sha256[0] = 0;
    if (!weights_same_layout(w, &md->all))
        return err_set(e, ERR_ARG, "the image has other tensors than the directory");
    if (plan_runs(&r, w, e) < 0)
        goto done;
    rc = opt && opt->hash && !md->sharded ? read_hashed(&r, opt, e)
                                          : each_piece(&r, read_and_report, opt, e);

done:
    free(r.runs);
    return rc;
}

struct weights *weights_read(const struct model_dir *md, void *memory, size_t memory_bytes,
                             struct weights_read *opt, struct err *e)
{
    struct weights *w = weights_lay_out(&md->all, memory, memory_bytes, e);

    if (w && weights_read_into(w, md, opt, e) < 0) {
        weights_free(w);
        return NULL;
    }
    return w;
}
