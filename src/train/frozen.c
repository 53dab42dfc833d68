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
    struct optim *o;       /* counted */
    bool fresh;            /* moments were zero */
    atomic_bool failed;    /* a copy could not be made: the view is lost */
    size_t done[SECTIONS]; /* bytes of each that were read; under its lock */
    float **kept;          /* [SECTIONS][n_pieces], NULL: not changed since, or read already */
    struct trainer_frozen *next;
};

/* In its section. */
static size_t piece_end(const struct piece *p)
{
    return (p->at + p->n) * sizeof(float);
}

static void keep_piece(struct trainer_frozen *f, int section, int piece)
{
    const struct piece *p = &f->o->piece[piece];
    float **kept = &f->kept[(size_t)section * (size_t)f->o->n_pieces + (size_t)piece];

    if (*kept || f->failed || f->done[section] >= piece_end(p))
        return;
    *kept = malloc(p->n * sizeof **kept);
    if (*kept)
        memcpy(*kept, optim_floats(f->o, (enum section)section) + p->at, p->n * sizeof **kept);
    else
        f->failed = true;
}

void optim_keep(struct optim *o, int piece)
{
    for (int s = 0; s < SECTIONS && o->array[s]; s++) {
        pthread_mutex_lock(&o->lock[s]);
        for (struct trainer_frozen *f = o->frozen; f; f = f->next)
            if (s == SECTION_MASTER || !f->fresh)
                keep_piece(f, s, piece);
        pthread_mutex_unlock(&o->lock[s]);
    }
}

static void lock_all(struct optim *o)
{
    for (int s = 0; s < SECTIONS; s++)
        pthread_mutex_lock(&o->lock[s]);
}

static void unlock_all(struct optim *o)
{
    for (int s = SECTIONS - 1; s >= 0; s--)
        pthread_mutex_unlock(&o->lock[s]);
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
    lock_all(o);
    f->next = o->frozen;
    o->frozen = f;
    unlock_all(o);
    return f;
}

void trainer_thaw(struct trainer_frozen *f)
{
    struct trainer_frozen **at;

    if (!f)
        return;
    lock_all(f->o);
    for (at = &f->o->frozen; *at != f; at = &(*at)->next)
        ;
    *at = f->next;
    unlock_all(f->o);
    for (size_t i = 0; i < (size_t)SECTIONS * (size_t)f->o->n_pieces; i++)
        free(f->kept[i]);
    optim_unref(f->o);
    free(f->kept);
    free(f);
}

int frozen_files(struct trainer_frozen *f, struct frozen_file out[FROZEN_FILES])
{
    for (int i = 0; i < f->o->n_files; i++) {
        const struct optim_file *file = &f->o->file[i];

        out[i] = (struct frozen_file){.name = file->name,
                                      .bytes = (int64_t)(file->header.len + file->index.data_bytes),
                                      .view = f,
                                      .index = i};
    }
    return f->o->n_files;
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

/* Where bytes of a file's data are. */
struct spot {
    int section, piece;
    size_t byte; /* in the section */
    size_t len;  /* to the end of the piece, or what is wanted */
};

static struct spot find_spot(const struct optim *o, int file, size_t offset, size_t n)
{
    size_t section_bytes = o->floats * sizeof(float);
    struct spot at = {.byte = offset % section_bytes};
    const struct piece *p;

    at.section = (int)o->file[file].first + (int)(offset / section_bytes);
    at.piece = find_piece(o, at.byte / sizeof(float));
    p = &o->piece[at.piece];
    at.len = piece_end(p) - at.byte;
    if (at.len > n)
        at.len = n;
    return at;
}

/* The lock of the section is held. */
static void read_spot(struct trainer_frozen *f, const struct spot *at, char *to)
{
    const struct optim *o = f->o;
    const struct piece *p = &o->piece[at->piece];
    float **kept = &f->kept[(size_t)at->section * (size_t)o->n_pieces + (size_t)at->piece];

    if (f->fresh && at->section != SECTION_MASTER)
        memset(to, 0, at->len);
    else if (*kept)
        memcpy(to, (const char *)*kept + (at->byte - p->at * sizeof(float)), at->len);
    else
        memcpy(to, (const char *)optim_floats(o, (enum section)at->section) + at->byte, at->len);
    if (*kept && at->byte + at->len == piece_end(p)) {
        free(*kept);
        *kept = NULL;
    }
    f->done[at->section] = at->byte + at->len;
}

static size_t read_header(const struct buf *header, char *to, size_t offset, size_t n)
{
    size_t len = header->len - offset < n ? header->len - offset : n;

    memcpy(to, header->data + offset, len);
    return len;
}

int frozen_read(void *file, void *to, size_t offset, size_t n, struct err *e)
{
    const struct frozen_file *part = file;
    struct trainer_frozen *f = part->view;
    struct optim *o = f->o;
    const struct buf *header = &o->file[part->index].header;
    char *at = to;

    if (offset < header->len) {
        size_t len = read_header(header, at, offset, n);

        at += len;
        offset += len;
        n -= len;
    }
    while (n > 0 && !atomic_load(&f->failed)) {
        struct spot s = find_spot(o, part->index, offset - header->len, n);

        pthread_mutex_lock(&o->lock[s.section]);
        read_spot(f, &s, at);
        pthread_mutex_unlock(&o->lock[s.section]);
        at += s.len;
        offset += s.len;
        n -= s.len;
    }
    return atomic_load(&f->failed)
               ? err_set(e, ERR_NOMEM,
                         "no memory to keep the optimizer's state of this moment while the run "
                         "goes on")
               : 0;
}
