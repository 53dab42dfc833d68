#include "service/leases.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "service/secret.h"
#include "service/times.h"

#define NS_PER_S 1000000000

struct lease {
    int64_t model_id; /* 0: the slot is empty */
    char *model_name, *holder, *reason;
    unsigned char digest[SHA256_BYTES];
    bool for_batch;
    int64_t ttl_s;
    int64_t acquired_ms, renewed_ms, expires_ms; /* wall */
    int64_t expires_ns;                          /* monotonic */
    const char *end_reason;                      /* ended: static word */
    int64_t ended_ms;
};

struct leases {
    pthread_mutex_t lock;
    struct lease live;
    struct lease *ended; /* a ring; the newest is the one before `next` */
    int n_ended, next;
};

static void lease_release(struct lease *x)
{
    free(x->model_name);
    free(x->holder);
    free(x->reason);
    *x = (struct lease){0};
}

struct leases *leases_new(int remembered, struct err *e)
{
    struct leases *l = calloc(1, sizeof *l);
    int n = remembered < 1 ? 1 : remembered;

    if (!l || !(l->ended = calloc((size_t)n, sizeof *l->ended))) {
        free(l);
        err_nomem(e);
        return NULL;
    }
    l->n_ended = n;
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

void leases_free(struct leases *l)
{
    if (!l)
        return;
    lease_release(&l->live);
    for (int i = 0; i < l->n_ended; i++)
        lease_release(&l->ended[i]);
    free(l->ended);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- as objects ---- */

static json_t *common_object(const struct lease *x)
{
    return json_pack("{s:I, s:s, s:s, s:s, s:o}", "model_id", (json_int_t)x->model_id, "model_name",
                     x->model_name, "holder", x->holder, "reason", x->reason, "acquired_at",
                     json_time(x->acquired_ms));
}

static json_t *live_object(const struct lease *x)
{
    json_t *o = common_object(x);
    double left_s = (double)(x->expires_ns - clock_mono_ns()) / NS_PER_S;

    json_object_set_new(o, "renewed_at", json_time(x->renewed_ms));
    json_object_set_new(o, "expires_at", json_time(x->expires_ms));
    json_object_set_new(o, "ttl_seconds", json_integer(x->ttl_s));
    json_object_set_new(o, "seconds_remaining", json_real(left_s > 0 ? left_s : 0));
    return o;
}

static json_t *ended_object(const struct lease *x)
{
    json_t *o = common_object(x);

    json_object_set_new(o, "expires_at", json_time(x->expires_ms));
    json_object_set_new(o, "end_reason", json_string(x->end_reason));
    json_object_set_new(o, "ended_at", json_time(x->ended_ms));
    return o;
}

/* ---- time; the lock is held in functions that end in _locked ---- */

static void end_locked(struct leases *l, const char *why, int64_t ended_ms)
{
    struct lease *slot = &l->ended[l->next];
    char ref[SECRET_REF];

    l->live.end_reason = why;
    l->live.ended_ms = ended_ms;
    secret_ref(l->live.digest, ref);
    log_ev(LOG_INFO, "lease_ended", "lease_ref=%s model=%" PRId64 " reason=%s", ref,
           l->live.model_id, why);
    lease_release(slot);
    *slot = l->live;
    l->live = (struct lease){0};
    l->next = (l->next + 1) % l->n_ended;
}

static struct lease *live_locked(struct leases *l)
{
    if (l->live.model_id && clock_mono_ns() >= l->live.expires_ns)
        end_locked(l, "expired", l->live.expires_ms);
    return l->live.model_id ? &l->live : NULL;
}

static void start_clock(struct lease *x, int64_t ttl_s)
{
    x->ttl_s = ttl_s;
    x->renewed_ms = clock_wall_ms();
    x->expires_ms = x->renewed_ms + ttl_s * 1000;
    x->expires_ns = clock_mono_ns() + ttl_s * NS_PER_S;
}

/* ---- acquire ---- */

static int fill(struct lease *x, int64_t model_id, const char *model_name,
                const struct lease_terms *t, char id[SECRET_MAX], struct err *e)
{
    if (secret_new("", id, e) < 0)
        return -1;
    *x = (struct lease){.model_id = model_id,
                        .model_name = strdup(model_name),
                        .holder = strdup(t->holder),
                        .reason = strdup(t->reason),
                        .for_batch = t->for_batch};
    if (!x->model_name || !x->holder || !x->reason) {
        lease_release(x);
        return err_nomem(e);
    }
    secret_digest(id, x->digest);
    start_clock(x, t->ttl_s);
    x->acquired_ms = x->renewed_ms;
    return 0;
}

int leases_acquire(struct leases *l, int64_t model_id, const char *model_name,
                   const struct lease_terms *t, json_t **lease, struct refusal *r)
{
    const struct lease_ask ask = {
        .operation = "lease", .target = model_id, .code = REFUSAL_MODEL_LEASED};
    char id[SECRET_MAX], ref[SECRET_REF];
    struct lease made;
    struct err e = {0};

    if (leases_refuse(l, &ask, r) < 0)
        return -1;
    if (fill(&made, model_id, model_name, t, id, &e) < 0)
        return refuse_internal(r, &e);
    pthread_mutex_lock(&l->lock);
    l->live = made; /* only the engine thread acquires: nobody came in between */
    *lease = live_object(&l->live);
    pthread_mutex_unlock(&l->lock);
    json_object_set_new(*lease, "lease_id", json_string(id));
    secret_ref(made.digest, ref);
    log_ev(LOG_INFO, "lease_acquired", "lease_ref=%s model=%" PRId64 " ttl_s=%" PRId64, ref,
           model_id, t->ttl_s);
    return 0;
}

/* ---- looking ---- */

json_t *leases_live(struct leases *l, int64_t model_id)
{
    const struct lease *x;
    json_t *o;

    pthread_mutex_lock(&l->lock);
    x = live_locked(l);
    o = x && (!model_id || x->model_id == model_id) ? live_object(x) : json_null();
    pthread_mutex_unlock(&l->lock);
    return o;
}

/* The i-th newest ended lease, or NULL. */
static const struct lease *ended_locked(const struct leases *l, int i)
{
    const struct lease *x = &l->ended[(l->next - 1 - i + 2 * l->n_ended) % l->n_ended];

    return x->model_id ? x : NULL;
}

json_t *leases_last_ended(struct leases *l, int64_t model_id)
{
    json_t *o = NULL;

    pthread_mutex_lock(&l->lock);
    live_locked(l);
    for (int i = 0; i < l->n_ended && !o; i++) {
        const struct lease *x = ended_locked(l, i);

        if (!x)
            break;
        if (x->model_id == model_id)
            o = ended_object(x);
    }
    pthread_mutex_unlock(&l->lock);
    return o ? o : json_null();
}

/* ---- the owner's calls ---- */

static int refuse_unknown(int64_t model_id, struct refusal *r)
{
    return refuse_with(r, REFUSAL_LEASE_NOT_FOUND,
                       json_pack("{s:I}", "model_id", (json_int_t)model_id),
                       "Unknown lease of model %" PRId64 "; a restart ends every lease.", model_id);
}

static int refuse_ended(const struct lease *x, struct refusal *r)
{
    return refuse_with(r, REFUSAL_LEASE_EXPIRED,
                       json_pack("{s:s, s:o, s:I}", "end_reason", x->end_reason, "ended_at",
                                 json_time(x->ended_ms), "model_id", (json_int_t)x->model_id),
                       "This lease has ended (%s); acquire a new one.", x->end_reason);
}

/* The live lease with this id, or NULL with *r. */
static struct lease *own_locked(struct leases *l, int64_t model_id, const char *id,
                                struct refusal *r)
{
    struct lease *live = live_locked(l);
    unsigned char digest[SHA256_BYTES];

    secret_digest(id, digest);
    if (live && live->model_id == model_id && secret_equal(live->digest, digest))
        return live;
    for (int i = 0; i < l->n_ended; i++) {
        const struct lease *x = ended_locked(l, i);

        if (x && x->model_id == model_id && secret_equal(x->digest, digest)) {
            refuse_ended(x, r);
            return NULL;
        }
    }
    refuse_unknown(model_id, r);
    return NULL;
}

int leases_renew(struct leases *l, int64_t model_id, const char *id, int64_t ttl_s, json_t **lease,
                 struct refusal *r)
{
    struct lease *x;

    pthread_mutex_lock(&l->lock);
    x = own_locked(l, model_id, id, r);
    if (x) {
        start_clock(x, ttl_s);
        *lease = live_object(x);
    }
    pthread_mutex_unlock(&l->lock);
    return x ? 0 : -1;
}

int leases_release(struct leases *l, int64_t model_id, const char *id, json_t **ended,
                   struct refusal *r)
{
    struct lease *x;

    pthread_mutex_lock(&l->lock);
    x = own_locked(l, model_id, id, r);
    if (x) {
        end_locked(l, "released", clock_wall_ms());
        *ended = ended_object(ended_locked(l, 0));
    }
    pthread_mutex_unlock(&l->lock);
    return x ? 0 : -1;
}

void leases_end_resident(struct leases *l)
{
    pthread_mutex_lock(&l->lock);
    if (live_locked(l))
        end_locked(l, "model_unloaded", clock_wall_ms());
    pthread_mutex_unlock(&l->lock);
}

/* ---- what a lease stands in the way of ---- */

static int refuse_leased(const struct lease *x, const struct lease_ask *ask, struct refusal *r)
{
    json_t *details = json_pack("{s:s, s:s, s:o, s:I, s:s, s:s}", "holder", x->holder, "reason",
                                x->reason, "expires_at", json_time(x->expires_ms),
                                "leased_model_id", (json_int_t)x->model_id, "leased_model_name",
                                x->model_name, "operation", ask->operation);

    json_object_set_new(details, "target_model_id",
                        ask->target ? json_integer(ask->target) : json_null());
    return refuse_with(r, ask->code, details,
                       "'%.128s' leases the resident model '%.400s' for another %" PRId64
                       " s; wait, or send the lease's own id in X-miLLM-Lease.",
                       x->holder, x->model_name,
                       (x->expires_ns - clock_mono_ns() + NS_PER_S - 1) / NS_PER_S);
}

int leases_refuse(struct leases *l, const struct lease_ask *ask, struct refusal *r)
{
    unsigned char digest[SHA256_BYTES];
    const struct lease *live;
    bool own = false;
    int rc = 0;

    if (ask->id)
        secret_digest(ask->id, digest);
    pthread_mutex_lock(&l->lock);
    live = live_locked(l);
    own = live && ask->id && secret_equal(live->digest, digest);
    if (live && !own && !(ask->for_batch && live->for_batch))
        rc = refuse_leased(live, ask, r);
    pthread_mutex_unlock(&l->lock);
    if (ask->id && !live)
        log_ev(LOG_WARNING, "lease_ignored", "operation=%s why=no_live_lease", ask->operation);
    return rc;
}
