#include "service/weaver/answers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sha256.h"
#include "db/db.h"
#include "service/weaver/impl.h"
#include "service/weaver/operations.h"

enum { WAIT_S = 50 }; /* for the first one: the client gives up after 60 */

/* A request that is being answered now. */
struct w_answer {
    char key[SHA256_HEX];
    struct w_answer *next;
};

static struct w_answer *find(struct weaver *w, const char *key)
{
    struct w_answer *a = w->answers;

    while (a && strcmp(a->key, key) != 0)
        a = a->next;
    return a;
}

/* In the place of a body, which is JSON: the rest is the id of the operation. */
static const char by_id = '=';

static int read_body(struct weaver *w, const char *kept, struct buf *body, struct err *e)
{
    if (*kept != by_id) {
        buf_add_str(body, kept);
        return 0;
    }
    return w_op_envelope(w, kept + 1, body, e) > 0 ? 0 : -1;
}

/* 1: there was one, 0: none. -1 with *e: nobody knows. */
static int read_row(struct weaver *w, const char *key, int *status, struct buf *body, struct err *e)
{
    struct buf kept = {0};
    struct db_stmt q;
    int rc =
        db_query(&q, w->ops, e, "SELECT status, body FROM weaver_answers WHERE key = ?", "t", key);

    if (rc == 0)
        rc = db_step(&q, e);
    if (rc > 0) {
        *status = (int)db_int(&q, 0);
        buf_add_str(&kept, db_text(&q, 1));
    }
    db_query_end(&q, w->ops);
    if (rc > 0 && kept.failed)
        rc = err_nomem(e);
    if (rc > 0 && read_body(w, buf_str(&kept), body, e) < 0)
        rc = -1;
    buf_release(&kept);
    return rc;
}

/* False: the first one is still running after all this time. */
static bool wait_turn(struct weaver *w, const char *key)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += WAIT_S;
    while (find(w, key) && !w->stopping)
        if (pthread_cond_timedwait(&w->changed, &w->lock, &until) != 0)
            return false;
    return !w->stopping;
}

/* Who waits for this request goes on. */
static void end_turn(struct weaver *w, struct w_answer *a)
{
    struct w_answer **at;

    pthread_mutex_lock(&w->lock);
    for (at = &w->answers; *at != a; at = &(*at)->next)
        ;
    *at = a->next;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    free(a);
}

struct w_answer *w_answer_take(struct weaver *w, const char *key, int *status, struct buf *body)
{
    struct w_answer *a = calloc(1, sizeof *a);
    struct err e = {0};
    bool mine;
    int found;

    *status = 0;
    if (!a)
        return NULL;
    sha256_hex_of(key, strlen(key), a->key);
    pthread_mutex_lock(&w->lock);
    mine = wait_turn(w, a->key);
    if (mine) {
        a->next = w->answers;
        w->answers = a;
    }
    pthread_mutex_unlock(&w->lock);
    if (!mine) {
        free(a);
        return NULL;
    }
    found = read_row(w, a->key, status, body, &e);
    if (found == 0)
        return a;
    if (found < 0) { /* it may have been done already: it is not done again */
        log_ev(LOG_WARNING, "weaver_answer", "cause=\"%s\"", e.msg);
        buf_release(body);
        *status = 0;
    }
    end_turn(w, a);
    return NULL;
}

static void write_row(struct weaver *w, const char *key, int status, const struct buf *body,
                      const char *ended)
{
    char id[UUID_TEXT + 1];
    struct err e = {0};

    snprintf(id, sizeof id, "%c%s", by_id, ended);
    if (db_run(w->ops, &e, "INSERT OR REPLACE INTO weaver_answers VALUES (?, ?, ?, ?)", "titi", key,
               (int64_t)status, *ended ? id : buf_str(body), clock_wall_ms()) < 0)
        log_ev(LOG_WARNING, "weaver_answer", "cause=\"%s\"", e.msg);
}

void w_answer_keep(struct weaver *w, struct w_answer *a, int status, const struct buf *body,
                   const char *ended)
{
    if (status && status < 500 && status != 429)
        write_row(w, a->key, status, body, ended);
    end_turn(w, a);
}

void w_answers_sweep(struct weaver *w)
{
    struct err e = {0};

    if (db_run(w->ops, &e, "DELETE FROM weaver_answers WHERE created_ms < ?", "i",
               clock_wall_ms() - ANSWERS_KEEP_MS) < 0)
        log_ev(LOG_WARNING, "weaver_sweep", "cause=\"%s\"", e.msg);
}
