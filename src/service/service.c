#include "service/service.h"

#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "engine/engine.h"
#include "service/arena.h"
#include "service/batches.h"
#include "service/grammar_cache.h"
#include "service/jobs.h"
#include "service/leases.h"
#include "service/metrics.h"
#include "service/row_status.h"
#include "service/state.h"
#include "service/weaver/weaver.h"
#include "store/leftovers.h"

static int new_boot_id(char out[9], struct err *e)
{
    unsigned char raw[4];

    if (RAND_bytes(raw, sizeof raw) != 1)
        return err_set(e, ERR_IO, "no random bytes");
    snprintf(out, 9, "%02x%02x%02x%02x", raw[0], raw[1], raw[2], raw[3]);
    return 0;
}

struct service *service_open(const struct service_parts *parts, struct err *e)
{
    struct service *s = calloc(1, sizeof *s);

    if (!s) {
        err_nomem(e);
        return NULL;
    }
    *s = (struct service){.settings = parts->settings,
                          .engine = parts->engine,
                          .db = parts->db,
                          .roots = parts->roots,
                          .schema = parts->schema,
                          .chat = parts->chat,
                          .faults = parts->faults,
                          .tokens = parts->tokens,
                          .keys = parts->keys,
                          .cut = parts->cut,
                          .started_wall_ms = clock_wall_ms(),
                          .started_ns = clock_mono_ns()};
    s->weights = calloc(1, sizeof *s->weights);
    s->board = board_new(e);
    s->metrics = metrics_new(e);
    s->jobs = jobs_new(e);
    s->row_status = row_status_new(e);
    s->leftovers = leftovers_new(e);
    s->leases = leases_new(s->settings->lease_ended_memory, e);
    s->grammars = grammar_cache_new(e);
    if (!s->weights)
        err_nomem(e);
    if (!s->weights || !s->board || !s->metrics || !s->jobs || !s->row_status || !s->leases ||
        !s->leftovers || !s->grammars || new_boot_id(s->boot_id, e) < 0) {
        service_close(s);
        return NULL;
    }
    s->weights->attachment.pidfd = -1;
    arena_sweep(s->boot_id);
    engine_set_tick(s->engine, state_tick, s);
    if (s->settings->weaver_dir && !(s->weaver = weaver_open(s, e))) {
        service_close(s);
        return NULL;
    }
    if (s->settings->batch_files_dir && !(s->batches = batches_new(s, e))) {
        service_close(s);
        return NULL;
    }
    return s;
}

void service_clear_leftovers(struct service *s)
{
    int left, gone = leftovers_retry(s->leftovers, &left);

    if (gone)
        log_ev(LOG_INFO, "leftovers_removed", "removed=%d left=%d", gone, left);
}

void service_stop_loads(struct service *s)
{
    atomic_store(&s->stopping, true);
}

void service_stop(struct service *s)
{
    if (!s)
        return;
    service_stop_loads(s);
    weaver_stop(s->weaver);
}

static void end_everything(struct engine *en, void *arg)
{
    struct service *s = arg;

    state_attachment_end(s);
    engine_set_resident(en, NULL, NULL);
}

void service_close(struct service *s)
{
    if (!s)
        return;
    weaver_stop(s->weaver);
    batches_free(s->batches);
    weaver_settle(s->weaver);
    jobs_free(s->jobs);
    weaver_close(s->weaver);
    if (s->weights && s->board) {
        engine_set_tick(s->engine, NULL, NULL);
        engine_call(s->engine, end_everything, s);
    }
    leftovers_free(s->leftovers);
    leases_free(s->leases);
    grammar_cache_free(s->grammars);
    board_free(s->board);
    metrics_free(s->metrics);
    row_status_free(s->row_status);
    free(s->weights);
    free(s);
}
