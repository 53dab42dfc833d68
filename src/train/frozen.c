/* train/frozen.c - moments and masters of one moment, read while the run goes on.
 *
 * The reader takes piece after piece, under the lock: from the run's own arrays where the piece has
 * not changed since, else from the copy that optim_keep made just before the change. A copy is
 * freed as soon as it was read, so a save that keeps up costs little memory. */
#include "train/frozen.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tensor/weights.h"

struct trainer_frozen {
    struct optim *o; /* counted */
    bool fresh;      /* moments were zero */
    bool failed;     /* a copy could not be made: the view is lost */
    size_t done;     /* bytes of the file that were read */
    float **kept;    /* [SECTIONS][n_pieces], NULL: not changed since, or read already */
    struct trainer_frozen *next;
};

static size_t piece_end(const struct optim *o, int section, int piece)
{
    return o->header.len +
           ((size_t)section * o->floats + o->piece[piece].at + o->piece[piece].n) * sizeof(float);
}

static void keep_piece(struct trainer_frozen *f, int section, int piece)
{
    const struct piece *p = &f->o->piece[piece];
    float **kept = &f->kept[(size_t)section * (size_t)f->o->n_pieces + (size_t)piece];

    if (*kept || f->failed || f->done >= piece_end(f->o, section, piece))
        return;
    *kept = malloc(p->n * sizeof **kept);
    if (*kept)
        memcpy(*kept, optim_floats(f->o, (enum section)section) + p->at, p->n * sizeof **kept);
    else
        f->failed = true;
}

void optim_keep(struct optim *o, int piece)
{
    pthread_mutex_lock(&o->lock);
    for (struct trainer_frozen *f = o->frozen; f; f = f->next)
        for (int s = 0; s < SECTIONS; s++)
            if (o->array[s] && (s == SECTION_MASTER || !f->fresh))
                keep_piece(f, s, piece);
    pthread_mutex_unlock(&o->lock);
}

struct trainer_frozen *frozen_new(struct optim *o, struct err *e)
{
    struct trainer_frozen *f = calloc(1, sizeof *f);

    if (!f || !(f->kept = calloc((size_t)SECTIONS * (size_t)o->n_pieces + 1, sizeof *f->kept))) {
        err_nomem(e);
        free(f);
        return NULL;
    }
    atomic_fetch_add(&o->refs, 1);
    f->o = o;
    f->fresh = o->fresh;
    pthread_mutex_lock(&o->lock);
    f->next = o->frozen;
    o->frozen = f;
    pthread_mutex_unlock(&o->lock);
    return f;
}

void trainer_thaw(struct trainer_frozen *f)
{
    struct trainer_frozen **at;

    if (!f)
        return;
    pthread_mutex_lock(&f->o->lock);
    for (at = &f->o->frozen; *at != f; at = &(*at)->next)
        ;
    *at = f->next;
    pthread_mutex_unlock(&f->o->lock);
    for (size_t i = 0; i < (size_t)SECTIONS * (size_t)f->o->n_pieces; i++)
        free(f->kept[i]);
    optim_unref(f->o);
    free(f->kept);
    free(f);
}

int64_t frozen_bytes(const struct trainer_frozen *f)
{
    return (int64_t)(f->o->header.len + f->o->file.data_bytes);
}

/* The piece that holds element `at` of a section. */
static int find_piece(const struct optim *o, size_t at)
{
    int low = 0, high = o->n_pieces;

    while (high - low > 1) {
        int mid = low + (high - low) / 2;

        if (o->piece[mid].at <= at)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Bytes from `offset` of the data on, up to the end of their piece or n; how many. */
static size_t read_piece(struct trainer_frozen *f, char *to, size_t offset, size_t n)
{
    const struct optim *o = f->o;
    size_t section = offset / (o->floats * sizeof(float)),
           byte = offset % (o->floats * sizeof(float));
    int piece = find_piece(o, byte / sizeof(float));
    const struct piece *p = &o->piece[piece];
    float **kept = &f->kept[section * (size_t)o->n_pieces + (size_t)piece];
    size_t end = (p->at + p->n) * sizeof(float), len = end - byte < n ? end - byte : n;

    if (f->fresh && section != SECTION_MASTER) {
        memset(to, 0, len);
    } else if (*kept) {
        memcpy(to, (const char *)*kept + (byte - p->at * sizeof(float)), len);
    } else {
        memcpy(to, (const char *)optim_floats(o, (enum section)section) + byte, len);
    }
    if (*kept && byte + len == end) {
        free(*kept);
        *kept = NULL;
    }
    f->done = o->header.len + offset + len;
    return len;
}

int frozen_read(void *frozen, void *to, size_t offset, size_t n, struct err *e)
{
    struct trainer_frozen *f = frozen;
    const struct buf *header = &f->o->header;
    char *at = to;
    bool failed = false;

    if (offset < header->len) {
        size_t len = header->len - offset < n ? header->len - offset : n;

        memcpy(at, header->data + offset, len);
        at += len;
        offset += len;
        n -= len;
    }
    while (n > 0 && !failed) {
        size_t len;

        pthread_mutex_lock(&f->o->lock);
        failed = f->failed;
        len = read_piece(f, at, offset - header->len, n);
        pthread_mutex_unlock(&f->o->lock);
        at += len;
        offset += len;
        n -= len;
    }
    return failed ? err_set(e, ERR_NOMEM,
                            "no memory to keep the optimizer's state of this moment while the run "
                            "goes on")
                  : 0;
}
