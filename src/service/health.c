#include "service/health.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "service/batches.h"
#include "service/leases.h"
#include "service/service.h"
#include "service/state.h"
#include "service/times.h"
#include "service/weights.h"

static json_t *object(struct service *s, const char *version, const char *status)
{
    return json_pack("{s:s, s:s, s:o, s:f}", "status", status, "version", version, "timestamp",
                     json_time(clock_wall_ms()), "uptime_seconds",
                     clock_ms_since(s->started_ns) / 1e3);
}

json_t *health_object(struct service *s, const char *version)
{
    return object(s, version, "healthy");
}

json_t *health_ready(struct service *s, const char *version, int *retry_after_s)
{
    struct served *served;
    struct weights_state w;
    bool ready;

    state_read(s, &w, &served);
    ready = w.condition != WEIGHTS_TORN && (served || !w.loading_row);
    served_unref(served);
    *retry_after_s = ready ? 0 : s->settings->retry_readiness_s;
    return object(s, version, ready ? "ready" : "not_ready");
}

/* Median slot time x (waiting + running) / slots; null below three samples. */
static json_t *estimated_wait(const struct engine_stats *st)
{
    if (st->median_slot_ms < 0)
        return json_null();
    return json_ms(st->median_slot_ms * (st->waiting + st->running) / (1000.0 * st->max_running));
}

static json_t *backlog(struct service *s)
{
    int64_t rows = s->batches ? batches_backlog(s->batches) : -1;

    return rows < 0 ? json_null() : json_integer(rows);
}

static json_t *inference(struct service *s)
{
    struct engine_stats st;
    struct weights_state w;
    bool held;
    json_t *o;

    engine_get_stats(s->engine, &st);
    state_read(s, &w, NULL);
    held = w.hold.on || w.draining || w.condition != WEIGHTS_CLEAN;
    o = json_pack("{s:s, s:b, s:i, s:i, s:i, s:i, s:i, s:i}", "backend", "queue", "cbm_enabled",
                  s->settings->continuous_batching, "cbm_running", st.running, "queue_pending",
                  st.waiting, "queue_max_concurrent", st.max_running, "queue_max_pending",
                  st.max_waiting, "in_flight", st.running, "queue_waiting", held ? 0 : st.waiting);
    if (o) {
        json_object_set_new(o, "batch_backlog_rows", backlog(s));
        json_object_set_new(o, "estimated_wait_seconds", estimated_wait(&st));
        json_object_set_new(o, "images_alive", json_integer(st.images_alive));
        json_object_set_new(o, "error", json_null());
    }
    return o;
}

json_t *health_detailed(struct service *s, const char *version)
{
    json_t *o = health_object(s, version);

    if (o) {
        json_object_set_new(o, "inference", inference(s));
        json_object_set_new(o, "lease", leases_live(s->leases, 0));
        json_object_set_new(o, "weights", weights_status(s));
    }
    return o;
}
