#include "service/batches.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "service/batch_impl.h"
#include "service/batch_runner.h"
#include "service/service.h"

/* ---- life ---- */

struct batches *batches_new(struct service *s, struct err *e)
{
    struct batches *b = calloc(1, sizeof *b);
    pthread_condattr_t attr;

    if (!b) {
        err_nomem(e);
        return NULL;
    }
    b->s = s;
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->wake, &attr);
    pthread_condattr_destroy(&attr);
    b->files = batch_files_open(s->settings, s->db, s->leftovers, e);
    if (b->files)
        return b;
    batches_free(b);
    return NULL;
}

int batches_start(struct batches *b, batch_row_fn *fn, void *arg, struct err *e)
{
    int rc;

    b->row_fn = fn;
    b->row_arg = arg;
    rc = pthread_create(&b->thread, NULL, batch_runner, b);
    if (rc != 0)
        return err_set(e, ERR_IO, "no thread for the batches: %s", strerror(rc));
    b->started = true;
    return 0;
}

void batches_free(struct batches *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    pthread_cond_broadcast(&b->wake);
    pthread_mutex_unlock(&b->lock);
    if (b->started)
        pthread_join(b->thread, NULL);
    batch_files_close(b->files);
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
    free(b->notes);
    free(b);
}

struct batch_files *batches_files(struct batches *b)
{
    return b->files;
}

int64_t batches_backlog(struct batches *b)
{
    struct err e = {0};
    int64_t n;

    return batch_rows_backlog(b->s->db, &n, &e) < 0 ? -1 : n;
}

/* ---- between the requests and the thread ---- */

void batch_poke(struct batches *b)
{
    pthread_mutex_lock(&b->lock);
    b->poked = true;
    pthread_cond_broadcast(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

bool batch_stopping(struct batches *b)
{
    bool stopping;

    pthread_mutex_lock(&b->lock);
    stopping = b->stopping;
    pthread_mutex_unlock(&b->lock);
    return stopping;
}

struct batch_note *batch_note_locked(struct batches *b, const char *id)
{
    struct batch_note *grown;

    for (int i = 0; i < b->n_notes; i++)
        if (strcmp(b->notes[i].id, id) == 0)
            return &b->notes[i];
    grown = realloc(b->notes, (size_t)(b->n_notes + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    b->notes = grown;
    b->notes[b->n_notes] = (struct batch_note){0};
    str_copy(b->notes[b->n_notes].id, BATCH_ID_MAX, id);
    return &b->notes[b->n_notes++];
}

void batch_set_waits(struct batches *b, const char *id, const char *why)
{
    struct batch_note *note;

    pthread_mutex_lock(&b->lock);
    note = batch_note_locked(b, id);
    if (note)
        note->waits = why;
    pthread_mutex_unlock(&b->lock);
}

void batch_forget_note(struct batches *b, const char *id)
{
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < b->n_notes; i++)
        if (strcmp(b->notes[i].id, id) == 0) {
            b->notes[i] = b->notes[--b->n_notes];
            break;
        }
    pthread_mutex_unlock(&b->lock);
}
