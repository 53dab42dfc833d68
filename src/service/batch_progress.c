/* service/batch_progress.c - a batch goes on by one chunk: its rows are answered, recorded together
 * or not at all, and meanwhile the next chunk runs already, so that the engine never waits for the
 * disk. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "engine/engine.h"
#include "engine/served.h"
#include "service/batch_chunk.h"
#include "service/service.h"
#include "service/state.h"

/* ---- may it run now ---- */

/* The batch belongs to the weights that it was validated with, whatever they are called since.
 * After a restart, which forgets how often weights were loaded, the same row under the same name
 * counts as them. */
static bool is_bound(struct batches *b, struct batch_row *row)
{
    struct served *served = engine_peek_served(b->s->engine);
    bool bound = false;

    if (served && strcmp(row->boot, b->s->boot_id) == 0) {
        bound = served->load_counter == row->load_counter;
    } else if (served && served->row_id == row->model_row &&
               strcmp(served->name, row->model) == 0) {
        row->load_counter = served->load_counter;
        memcpy(row->boot, b->s->boot_id, sizeof row->boot);
        bound = true;
    }
    served_unref(served);
    return bound;
}

static const char *why_not(struct batches *b, struct batch_row *row)
{
    const char *why = NULL;

    if (state_torn(b->s))
        return "weights_torn";
    if (!is_bound(b, row))
        return "model_not_resident";
    batch_lease_hold(b, row, &why);
    return why;
}

/* ---- the chunk that runs ahead ---- */

static void set_running(struct batches *b, const char *id)
{
    pthread_mutex_lock(&b->lock);
    if (strcmp(b->running, id) != 0) {
        str_copy(b->running, sizeof b->running, id);
        b->interrupt = false;
    }
    pthread_mutex_unlock(&b->lock);
}

void batch_drop_ahead(struct batches *b)
{
    chunk_free(b->ahead);
    b->ahead = NULL;
    set_running(b, "");
}

/* The chunk that comes next: the one that runs already, if it is that. */
static struct chunk *next_chunk(struct batches *b, const struct batch_row *row, struct err *e)
{
    struct chunk *c = b->ahead;

    if (c && c->seq == row->seq && c->offset == row->next_offset &&
        c->load_counter == row->load_counter) {
        b->ahead = NULL;
        return c;
    }
    batch_drop_ahead(b);
    set_running(b, row->id);
    return chunk_begin(b, row, row->next_offset, row->next_line, e);
}

/* ---- recording ---- */

static int record(struct chunk *c, struct batch_row *row, struct err *e)
{
    struct buf output = {0}, error = {0};
    struct batch_results x;
    int rc = batch_results_open(&x, c->b, row, e);

    chunk_write(c, row, &output, &error);
    if (rc == 0)
        rc = batch_results_add(&x, row, &output, &error, e);
    row->next_offset = c->next_offset;
    row->next_line = c->next_line;
    if (rc == 0)
        rc = batch_rows_record(c->b->s->db, row, e);
    batch_results_close(&x);
    buf_release(&output);
    buf_release(&error);
    return rc;
}

static int finish_rows(const struct chunk *c, struct batch_row *row, struct err *e)
{
    if (!c->end)
        return 0;
    row->status = BATCH_FINALIZING;
    row->at[AT_FINALIZING] = time(NULL);
    return batch_rows_update(c->b->s->db, row, BATCH_IN_PROGRESS, e) < 0 ? -1 : 0;
}

/* ---- one chunk ---- */

struct turn {
    const char *why; /* it has to wait, and for what (static) */
    bool given_up;
    bool no_input; /* the fault is one of the input */
};

static int run(struct batches *b, struct batch_row *row, struct turn *t, struct err *e)
{
    struct err ignored = {0};
    struct chunk *c = next_chunk(b, row, e);
    int rc = -1;

    t->no_input = !c;
    if (!c)
        return -1;
    if (!c->end) /* a fault of the next chunk is told when its turn comes */
        b->ahead = chunk_begin(b, row, c->next_offset, c->next_line, &ignored);
    t->given_up = !chunk_wait(c, row);
    t->why = t->given_up ? NULL : chunk_later(c);
    if (t->given_up || t->why)
        rc = 0;
    else if (record(c, row, e) == 0)
        rc = finish_rows(c, row, e);
    chunk_free(c);
    return rc;
}

/* Some faults do not go away: then the batch ends with what it has. */
static bool end_for_good(struct batches *b, struct batch_row *row, const struct turn *t,
                         const struct err *e)
{
    if (e->code != ERR_FORMAT && (e->code != ERR_NOT_FOUND || !t->no_input))
        return false;
    if (t->no_input)
        return batch_fail_input(b, row, e) == 0;
    return batch_fail(b, row, batch_error("server_error", json_null(), e->msg, NULL), NULL) == 0;
}

bool batch_run_chunk(struct batches *b, struct batch_row *row)
{
    struct turn t = {.why = why_not(b, row)};
    struct err e = {0};
    int rc = t.why ? 0 : run(b, row, &t, &e);

    if (rc < 0)
        log_ev(LOG_ERROR, "batch_rows", "batch=%s cause=\"%s\"", row->id, e.msg);
    if (t.why || t.given_up || rc < 0)
        batch_drop_ahead(b);
    if (t.why || rc < 0)
        batch_lease_drop(b);
    if (!b->ahead)
        set_running(b, "");
    if (rc < 0 && end_for_good(b, row, &t, &e))
        return true;
    batch_set_waits(b, row->id, t.why);
    return rc == 0 && !t.why;
}
