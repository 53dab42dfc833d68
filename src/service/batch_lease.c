/* service/batch_lease.c - a batch runs under a lease of its model, so that nobody swaps it: its
 * own, or one that the caller handed over. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "service/batch_impl.h"
#include "service/leases.h"
#include "service/models.h"
#include "service/refusal.h"
#include "service/service.h"

#define NS_PER_S 1000000000

static int64_t third_of(int64_t ttl_s)
{
    return clock_mono_ns() + ttl_s * NS_PER_S / 3;
}

/* ---- the caller's ---- */

int batch_lease_lend(struct batches *b, const char *id, const char *lease)
{
    const struct lease_ask ask = {
        .id = lease, .operation = "batch", .code = REFUSAL_V1_MODEL_LEASED};
    json_t *live = leases_live(b->s->leases, 0);
    int64_t ttl_s = json_integer_value(json_object_get(live, "ttl_seconds"));
    struct refusal r = {0};
    struct batch_note *note;
    int lent = 0;

    if (json_is_object(live) && leases_refuse(b->s->leases, &ask, &r) == 0) {
        pthread_mutex_lock(&b->lock);
        note = batch_note_locked(b, id);
        if (note && strlen(lease) < sizeof note->lease) {
            str_copy(note->lease, sizeof note->lease, lease);
            note->ttl_s = ttl_s;
            note->renew_ns = third_of(ttl_s);
            lent = 1;
        }
        pthread_mutex_unlock(&b->lock);
    }
    refusal_clear(&r);
    json_decref(live);
    return lent;
}

/* Renews when a third of its time is over. -1: it has ended. */
static int renew(struct batches *b, struct batch_note *lease, int64_t model)
{
    struct refusal r = {0};
    json_t *renewed = NULL;
    int rc = 0;

    if (clock_mono_ns() >= lease->renew_ns) {
        rc = leases_renew(b->s->leases, model, lease->lease, lease->ttl_s, &renewed, &r);
        lease->renew_ns = third_of(lease->ttl_s);
        json_decref(renewed);
        refusal_clear(&r);
    }
    return rc;
}

/* 1: the batch has a lease of its caller that lives. */
static int hold_lent(struct batches *b, const struct batch_row *row)
{
    struct batch_note copy = {0}, *note;
    int rc;

    pthread_mutex_lock(&b->lock);
    note = batch_note_locked(b, row->id);
    if (note)
        copy = *note;
    pthread_mutex_unlock(&b->lock);
    if (!copy.lease[0])
        return 0;
    rc = renew(b, &copy, row->model_row);
    if (rc < 0)
        log_ev(LOG_INFO, "batch_lease_ended", "batch=%s", row->id);
    pthread_mutex_lock(&b->lock);
    note = batch_note_locked(b, row->id);
    if (note && strcmp(note->lease, copy.lease) == 0) {
        note->renew_ns = copy.renew_ns;
        if (rc < 0)
            note->lease[0] = '\0';
    }
    pthread_mutex_unlock(&b->lock);
    return rc == 0;
}

/* ---- the batches' own ---- */

void batch_lease_drop(struct batches *b)
{
    struct refusal r = {0};
    json_t *ended = NULL;

    if (!b->own.lease[0])
        return;
    leases_release(b->s->leases, b->own_model, b->own.lease, &ended, &r);
    json_decref(ended);
    refusal_clear(&r);
    b->own = (struct batch_note){0};
}

static int64_t own_ttl(const struct settings *set)
{
    return set->batch_lease_ttl_s < set->lease_max_ttl_s ? set->batch_lease_ttl_s
                                                         : set->lease_max_ttl_s;
}

static int acquire(struct batches *b, const struct batch_row *row, struct refusal *r)
{
    int64_t ttl_s = own_ttl(b->s->settings);
    json_t *terms = json_pack("{s:o, s:s, s:I}", "holder", json_sprintf("millm-batch:%s", row->id),
                              "reason", "a batch is running", "ttl_seconds", (json_int_t)ttl_s);
    json_t *lease = NULL;
    int rc = models_lease_take(b->s, row->model_row, terms, NULL, true, &lease, r);

    if (rc == 0) {
        str_copy(b->own.id, sizeof b->own.id, row->id);
        str_copy(b->own.lease, sizeof b->own.lease,
                 json_string_value(json_object_get(lease, "lease_id")));
        b->own.ttl_s = ttl_s;
        b->own.renew_ns = third_of(ttl_s);
        b->own_model = row->model_row;
    }
    json_decref(terms);
    json_decref(lease);
    return rc;
}

static bool renew_own(struct batches *b, const struct batch_row *row)
{
    return b->own.lease[0] && strcmp(b->own.id, row->id) == 0 &&
           renew(b, &b->own, row->model_row) == 0;
}

void batch_lease_renew(struct batches *b, const struct batch_row *row)
{
    if (!hold_lent(b, row))
        renew_own(b, row);
}

int batch_lease_hold(struct batches *b, const struct batch_row *row, const char **why)
{
    struct refusal r = {0};
    int rc;

    if (hold_lent(b, row))
        return 0;
    if (renew_own(b, row))
        return 0;
    batch_lease_drop(b);
    rc = acquire(b, row, &r);
    if (rc < 0)
        *why = r.code == REFUSAL_MODEL_LEASED ? "lease_unavailable" : "model_not_resident";
    refusal_clear(&r);
    return rc;
}
