#include "service/state.h"

#include <openssl/crypto.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "service/audit.h"
#include "service/metrics.h"
#include "service/service.h"

#define NS_PER_S      1e9
#define PIDFD_LOOK_NS 50000000 /* how often a client's process is looked at */

struct board {
    pthread_mutex_t lock;
    struct weights_state state;
    struct served *served;
    atomic_bool torn;
    _Atomic(const char *) save_stage;
};

const char *condition_name(enum condition c)
{
    static const char *const names[] = {"clean", "writing", "torn"};

    return names[c];
}

const char *barrier_owner_name(enum barrier_owner o)
{
    static const char *const names[] = {"", "quiesce", "save", "load", "adapter"};

    return names[o];
}

/* ---- publishing ---- */

struct board *board_new(struct err *e)
{
    struct board *b = calloc(1, sizeof *b);

    if (!b) {
        err_nomem(e);
        return NULL;
    }
    pthread_mutex_init(&b->lock, NULL);
    return b;
}

void board_free(struct board *b)
{
    if (!b)
        return;
    served_unref(b->served);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

void state_read(struct service *s, struct weights_state *out, struct served **served)
{
    pthread_mutex_lock(&s->board->lock);
    *out = s->board->state;
    out->save.stage = atomic_load(&s->board->save_stage);
    if (served)
        *served = s->board->served ? served_ref(s->board->served) : NULL;
    pthread_mutex_unlock(&s->board->lock);
}

bool state_torn(struct service *s)
{
    return atomic_load(&s->board->torn);
}

void state_save_stage(struct service *s, const char *stage)
{
    atomic_store(&s->board->save_stage, stage);
}

static enum engine_gate gate_of(const struct weights_state *w)
{
    if (w->condition == WEIGHTS_TORN)
        return GATE_REFUSE;
    return w->hold.on || w->draining || w->condition == WEIGHTS_WRITING ? GATE_HOLD : GATE_OPEN;
}

void state_changed(struct service *s)
{
    struct served *now = engine_served(s->engine);
    struct served *before;

    engine_set_gate(s->engine, gate_of(s->weights));
    metrics_gate(s->metrics, gate_of(s->weights) != GATE_OPEN);
    pthread_mutex_lock(&s->board->lock);
    before = s->board->served;
    s->board->state = *s->weights;
    s->board->served = now ? served_ref(now) : NULL;
    atomic_store(&s->board->torn, s->weights->condition == WEIGHTS_TORN);
    pthread_mutex_unlock(&s->board->lock);
    served_unref(before);
}

/* ---- attachment ---- */

struct attachment_proof attachment_proof(const char *header)
{
    struct attachment_proof p = {.given = header && strncmp(header, "att_", 4) == 0};

    if (p.given)
        sha256_of(header, strlen(header), p.digest);
    return p;
}

bool proof_matches(const struct attachment *a, const struct attachment_proof *p)
{
    return a->present && p->given && CRYPTO_memcmp(a->digest, p->digest, SHA256_BYTES) == 0;
}

void state_sign_of_life(struct service *s)
{
    struct attachment *a = &s->weights->attachment;

    a->last_seen_ns = clock_mono_ns();
    a->last_seen_ms = clock_wall_ms();
    if (a->stale)
        log_ev(LOG_INFO, "weights_attachment_live", "attachment_ref=%s", a->ref);
    a->stale = false;
    state_changed(s);
}

/* One audit line without a caller. */
static void audit_event(struct service *s, const char *operation, enum condition before)
{
    const struct weights_state *w = s->weights;
    struct served *served = engine_served(s->engine);
    struct audit_line line;

    audit_begin(&line, operation);
    line.identity = w->attachment.present ? w->attachment.identity : w->commit.identity;
    memcpy(line.attachment_ref, w->attachment.ref, sizeof line.attachment_ref);
    if (served)
        memcpy(line.model, served->name, sizeof line.model);
    line.state_before = condition_name(before);
    line.state_after = condition_name(w->condition);
    audit_note(&line);
}

void state_attachment_stale(struct service *s, const char *why)
{
    struct weights_state *w = s->weights;

    w->attachment.stale = true;
    audit_event(s, "weights_attachment_stale", w->condition);
    log_ev(LOG_WARNING, "weights_attachment_stale", "attachment_ref=%s why=%s", w->attachment.ref,
           why);
    if (w->hold.on && w->condition == WEIGHTS_CLEAN)
        state_hold_end(s);
    state_changed(s);
}

void state_attachment_end(struct service *s)
{
    struct weights_state *w = s->weights;

    if (w->attachment.pidfd >= 0)
        close(w->attachment.pidfd);
    w->attachment = (struct attachment){.pidfd = -1};
    if (w->hold.on)
        state_hold_end(s);
    state_changed(s);
}

/* ---- hold ---- */

void state_hold_begin(struct service *s, const char *owner)
{
    struct hold *h = &s->weights->hold;

    *h = (struct hold){.on = true, .since_ms = clock_wall_ms()};
    str_copy(h->owner, sizeof h->owner, owner);
    s->weights->owner = OWNER_QUIESCE;
    state_hold_restart(s);
}

void state_hold_suspend(struct service *s)
{
    s->weights->hold.expires_ms = s->weights->hold.expires_ns = 0;
}

void state_hold_restart(struct service *s)
{
    struct weights_state *w = s->weights;
    double seconds = s->settings->quiesce_max_hold_s;

    if (!w->hold.on || w->condition != WEIGHTS_CLEAN)
        return;
    w->hold.expires_ns = clock_mono_ns() + (int64_t)(seconds * NS_PER_S);
    w->hold.expires_ms = clock_wall_ms() + (int64_t)(seconds * 1e3);
}

void state_hold_end(struct service *s)
{
    s->weights->hold = (struct hold){0};
    if (s->weights->owner == OWNER_QUIESCE)
        s->weights->owner = OWNER_NONE;
}

/* ---- loads ---- */

void state_load_begins(struct service *s, const char *identity)
{
    struct weights_state *w = s->weights;

    w->condition = WEIGHTS_WRITING;
    w->commit = (struct commit){
        .kind = COMMIT_LOAD, .started_ms = clock_wall_ms(), .started_ns = clock_mono_ns()};
    str_copy(w->commit.identity, sizeof w->commit.identity, identity);
}

/* ---- timers ---- */

static bool client_died(const struct attachment *a)
{
    struct pollfd p = {.fd = a->pidfd, .events = POLLIN};

    return a->pidfd >= 0 && poll(&p, 1, 0) > 0;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a && b ? (a < b ? a : b) : a + b;
}

static int64_t tick_attachment(struct service *s, int64_t now)
{
    struct attachment *a = &s->weights->attachment;
    int64_t deadline = a->last_seen_ns + (int64_t)(s->settings->heartbeat_timeout_s * NS_PER_S);

    if (!a->present || a->stale)
        return 0;
    if (client_died(a)) {
        close(a->pidfd);
        a->pidfd = -1;
        state_attachment_stale(s, "process_ended");
        return 0;
    }
    if (now >= deadline) {
        state_attachment_stale(s, "no_heartbeat");
        return 0;
    }
    return a->pidfd >= 0 ? earlier(deadline, now + PIDFD_LOOK_NS) : deadline;
}

static int64_t tick_hold(struct service *s, int64_t now)
{
    struct weights_state *w = s->weights;

    if (!w->hold.on || !w->hold.expires_ns)
        return 0;
    if (now < w->hold.expires_ns)
        return w->hold.expires_ns;
    w->hold_timeouts++;
    state_hold_end(s);
    audit_event(s, "weights_hold_timeout", w->condition);
    state_changed(s);
    return 0;
}

static int64_t tick_commit(struct service *s, int64_t now)
{
    struct weights_state *w = s->weights;

    if (w->condition != WEIGHTS_WRITING || !w->commit.watchdog_ns)
        return 0;
    if (now < w->commit.watchdog_ns)
        return w->commit.watchdog_ns;
    w->condition = WEIGHTS_TORN;
    audit_event(s, "weights_torn", WEIGHTS_WRITING);
    log_ev(LOG_ERROR, "weights_torn", "identity=%s open_ms=%.1f", w->commit.identity,
           clock_ms_since(w->commit.started_ns));
    state_changed(s);
    return 0;
}

/* A client that cuts a POSIX arena short has destroyed weights, whatever state they were in. */
void state_note_damage(struct service *s, const struct image *im)
{
    struct weights_state *w = s->weights;
    enum condition before = w->condition;

    if (!im || before == WEIGHTS_TORN || !image_damaged(im))
        return;
    w->condition = WEIGHTS_TORN;
    audit_event(s, "weights_torn", before);
    log_ev(LOG_ERROR, "weights_torn", "identity=%s why=arena_cut_short", w->attachment.identity);
    state_changed(s);
}

int64_t state_tick(struct engine *en, void *service)
{
    struct service *s = service;
    int64_t now = clock_mono_ns();
    int64_t next = tick_attachment(s, now);

    (void)en;
    state_note_damage(s, engine_resident(s->engine));
    next = earlier(next, tick_hold(s, now));
    return earlier(next, tick_commit(s, now));
}
