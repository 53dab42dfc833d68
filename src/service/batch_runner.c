#include "service/batch_runner.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "service/batch_impl.h"
#include "service/service.h"

#define NS_PER_S 1e9

enum { MINUTE_S = 60, DAY_S = 86400 };

/* ---- one batch ---- */

/* Its lease ends first: who sees the end of a batch finds the model free. An end that fails is
 * tried again after a while. true: the batch has ended. */
static bool end(struct batches *b, struct batch_row *row, enum batch_status to, const char *code,
                const char *message)
{
    if (b->ahead && strcmp(b->running, row->id) == 0)
        batch_drop_ahead(b);
    if (strcmp(b->own.id, row->id) == 0)
        batch_lease_drop(b);
    return batch_close(b, row, to, code, message) == 0;
}

/* Validation that still waits when its time is over has no line to answer for. */
static bool expire_unvalidated(struct batches *b, struct batch_row *row)
{
    json_t *why = batch_error("batch_expired", json_null(),
                              "The batch could not be validated before it expired.", NULL);

    return batch_fail(b, row, why, NULL) == 0;
}

/* true: something was done. *ran: a chunk has had its turn in this pass. */
static bool work_on(struct batches *b, struct batch_row *row, bool *ran)
{
    bool late = row->at[AT_EXPIRES] <= time(NULL);

    switch (row->status) {
    case BATCH_CANCELLING:
        return end(b, row, BATCH_CANCELLED, "batch_cancelled",
                   "The batch was cancelled before this row ran.");
    case BATCH_FINALIZING:
        return end(b, row, BATCH_COMPLETED, NULL, NULL);
    case BATCH_VALIDATING:
        return late ? expire_unvalidated(b, row) : batch_validate(b, row);
    case BATCH_IN_PROGRESS:
        if (late)
            return end(b, row, BATCH_EXPIRED, "batch_expired",
                       "The batch expired before this row ran.");
        if (*ran)
            batch_set_waits(b, row->id, "queued");
        else
            *ran = batch_run_chunk(b, row);
        return *ran;
    default:
        return false;
    }
}

static bool pass(struct batches *b)
{
    struct batch_row *rows;
    struct err e = {0};
    bool did = false, ran = false;
    int n;

    if (batch_rows_open(b->s->db, &rows, &n, &e) < 0) {
        log_ev(LOG_ERROR, "batches", "cause=\"%s\"", e.msg);
        return false;
    }
    b->next_expiry_s = 0;
    for (int i = 0; i < n && !batch_stopping(b); i++) {
        int64_t expires_s = rows[i].at[AT_EXPIRES];

        if (!b->next_expiry_s || expires_s < b->next_expiry_s)
            b->next_expiry_s = expires_s;
        did = work_on(b, &rows[i], &ran) || did;
    }
    batch_rows_release(rows, n);
    return did;
}

/* ---- the thread ---- */

static void prune(struct batches *b)
{
    int64_t retention_s = (int64_t)b->s->settings->batch_retention_days * DAY_S;
    struct err e = {0};

    if (clock_mono_ns() < b->prune_ns)
        return;
    if (batch_files_prune(b->files, &e) < 0 ||
        batch_rows_forget(b->s->db, time(NULL) - retention_s, &e) < 0)
        log_ev(LOG_ERROR, "file_retention", "cause=\"%s\"", e.msg);
    b->prune_ns =
        clock_mono_ns() + (int64_t)(b->s->settings->batch_retention_interval_s * NS_PER_S);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void sleep_locked(struct batches *b)
{
    int64_t poll = clock_mono_ns() + (int64_t)(b->s->settings->batch_wait_poll_s * NS_PER_S);
    int64_t until = earlier(poll, b->prune_ns);
    int64_t left_s = b->next_expiry_s - time(NULL);

    if (left_s > 0 && left_s < MINUTE_S)
        until = earlier(until, clock_mono_ns() + left_s * (int64_t)NS_PER_S);
    struct timespec at = {.tv_sec = until / (int64_t)NS_PER_S,
                          .tv_nsec = until % (int64_t)NS_PER_S};

    while (!b->poked && !b->stopping)
        if (pthread_cond_timedwait(&b->wake, &b->lock, &at) != 0)
            break;
}

void *batch_runner(void *batches)
{
    struct batches *b = batches;

    while (!batch_stopping(b)) {
        bool did;

        prune(b);
        service_clear_leftovers(b->s);
        pthread_mutex_lock(&b->lock);
        b->poked = false;
        pthread_mutex_unlock(&b->lock);
        did = pass(b);
        pthread_mutex_lock(&b->lock);
        if (!did)
            sleep_locked(b);
        pthread_mutex_unlock(&b->lock);
    }
    batch_drop_ahead(b);
    batch_lease_drop(b);
    return NULL;
}
