#include "service/row_status.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "service/service.h"

struct kept {
    struct kept *next;
    int64_t row;
    enum model_status status;
    char *why; /* NULL: none */
};

struct row_status {
    pthread_mutex_t lock; /* held over each write: the last one that is kept or written counts */
    struct kept *first;
    struct err last; /* why the catalogue did not take the last note */
};

struct row_status *row_status_new(struct err *e)
{
    struct row_status *n = calloc(1, sizeof *n);

    if (n)
        pthread_mutex_init(&n->lock, NULL);
    else
        err_nomem(e);
    return n;
}

static void drop(struct kept **at)
{
    struct kept *k = *at;

    *at = k->next;
    free(k->why);
    free(k);
}

void row_status_free(struct row_status *n)
{
    if (!n)
        return;
    while (n->first)
        drop(&n->first);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

/* ---- the lock is held ---- */

/* Where the row's note is, or would be. */
static struct kept **find(struct row_status *n, int64_t row)
{
    struct kept **at = &n->first;

    while (*at && (*at)->row != row)
        at = &(*at)->next;
    return at;
}

static void forget(struct row_status *n, int64_t row)
{
    struct kept **at = find(n, row);

    if (*at)
        drop(at);
}

/* Without memory the note is lost, as it was before there were notes; the log has it. */
static void keep(struct row_status *n, int64_t row, enum model_status status, const char *why)
{
    struct kept *k = calloc(1, sizeof *k);

    if (!k)
        return;
    *k = (struct kept){n->first, row, status, why ? strdup(why) : NULL};
    n->first = k;
}

/* A row that is not there counts as written. */
static int write_status(struct service *s, int64_t row, enum model_status status, const char *why)
{
    struct err e = {0};

    if (catalogue_set_status(s->db, row, status, why, &e) == 0 || e.code == ERR_NOT_FOUND)
        return 0;
    s->row_status->last = e;
    return -1;
}

/* ---- calls ---- */

int row_status_set(struct service *s, int64_t row, enum model_status status, struct err *e)
{
    struct row_status *n = s->row_status;
    int rc;

    pthread_mutex_lock(&n->lock);
    rc = catalogue_set_status(s->db, row, status, NULL, e);
    if (rc == 0)
        forget(n, row);
    pthread_mutex_unlock(&n->lock);
    return rc;
}

void row_status_note(struct service *s, int64_t row, enum model_status status, const char *why)
{
    struct row_status *n = s->row_status;

    pthread_mutex_lock(&n->lock);
    forget(n, row);
    if (write_status(s, row, status, why) < 0) {
        log_ev(LOG_WARNING, "catalogue_status", "row=%" PRId64 " status=%s cause=\"%s\"", row,
               model_status_name(status), n->last.msg);
        keep(n, row, status, why);
    }
    pthread_mutex_unlock(&n->lock);
}

void row_status_forget(struct service *s, int64_t row)
{
    pthread_mutex_lock(&s->row_status->lock);
    forget(s->row_status, row);
    pthread_mutex_unlock(&s->row_status->lock);
}

static void correct(const struct kept *k, struct model_row *row)
{
    row->status = k->status;
    free(row->error_message);
    row->error_message = k->why ? strdup(k->why) : NULL;
}

void row_status_correct(struct service *s, struct model_row *rows, int n_rows)
{
    struct row_status *n = s->row_status;

    pthread_mutex_lock(&n->lock);
    for (struct kept **at = &n->first; *at;) {
        for (int i = 0; i < n_rows; i++)
            if (rows[i].id == (*at)->row)
                correct(*at, &rows[i]);
        if (write_status(s, (*at)->row, (*at)->status, (*at)->why) == 0)
            drop(at);
        else
            at = &(*at)->next;
    }
    pthread_mutex_unlock(&n->lock);
}

int row_status_written(struct service *s, int64_t row, struct err *e)
{
    struct row_status *n = s->row_status;
    int rc = 0;

    pthread_mutex_lock(&n->lock);
    if (*find(n, row)) {
        *e = n->last;
        rc = -1;
    }
    pthread_mutex_unlock(&n->lock);
    return rc;
}
