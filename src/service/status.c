/* service/status.c - the status object, from the published copy: it asks nobody and waits for
 * nobody. */
#include "base/clock.h"
#include "engine/engine.h"
#include "service/service.h"
#include "service/state.h"
#include "service/times.h"
#include "service/weights.h"

static json_t *attachment_object(const struct attachment *a)
{
    if (!a->present)
        return json_null();
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:s}", "state", a->stale ? "stale" : "live",
                     "identity", a->identity, "role", role_name(a->role), "client",
                     json_text(a->client), "attached_at", json_time(a->attached_ms), "last_seen_at",
                     json_time(a->last_seen_ms), "attachment_ref", a->ref);
}

static json_t *model_object(const struct served *served)
{
    if (!served)
        return json_null();
    return json_pack("{s:s, s:s, s:I, s:s, s:o, s:o, s:o}", "name", served->name, "origin",
                     served->checkpoint ? "checkpoint" : "model", "row_id",
                     (json_int_t)served->row_id, "base_model", served->base_model,
                     "manifest_sha256", json_text(served->manifest_sha256), "weights_sha256",
                     json_text(served->weights_sha256), "adapter", json_text(served->adapter));
}

static json_t *last_save_object(const struct last_save *l)
{
    if (!l->any)
        return json_null();
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:o, s:b, s:s}", "name", l->name, "path", l->path,
                     "weights_sha256", l->weights_sha256, "manifest_sha256", l->manifest_sha256,
                     "bytes", (json_int_t)l->bytes, "saved_at", json_time(l->saved_ms),
                     "identity_set", l->identity_set, "parent_check",
                     l->parent_match ? "match" : "mismatch");
}

static json_t *save_object(const struct save_slot *slot)
{
    if (!slot->busy)
        return json_null();
    return json_pack("{s:s, s:s, s:o}", "name", slot->name, "stage", slot->stage, "started_at",
                     json_time(slot->started_ms));
}

static json_t *commit_object(const struct commit *c)
{
    if (c->kind == COMMIT_NONE)
        return json_null();
    return json_pack("{s:o, s:o, s:s, s:o, s:o}", "started_at", json_time(c->started_ms), "open_ms",
                     json_ms(clock_ms_since(c->started_ns)), "kind",
                     c->kind == COMMIT_LOAD ? "load" : "commit", "watchdog_expires_at",
                     json_time(c->watchdog_ms), "identity", json_text(c->identity));
}

static json_t *overrun_object(const struct overrun *o, double watchdog_s)
{
    if (!o->any)
        return json_null();
    return json_pack("{s:o, s:f, s:o}", "commit_ms", json_ms(o->commit_ms), "watchdog_s",
                     watchdog_s, "at", json_time(o->at_ms));
}

static json_t *hold_object(const struct hold *h)
{
    if (!h->on)
        return json_null();
    return json_pack("{s:o, s:o, s:s}", "since", json_time(h->since_ms), "expires_at",
                     json_time(h->expires_ms), "owner", h->owner);
}

static const char *serving_word(const struct weights_state *w)
{
    if (w->condition == WEIGHTS_TORN)
        return "refused";
    return w->hold.on || w->condition == WEIGHTS_WRITING ? "quiesced" : "serving";
}

json_t *weights_status(struct service *s)
{
    struct weights_state w;
    struct served *served;
    struct engine_stats stats;
    json_t *o;

    state_read(s, &w, &served);
    engine_get_stats(s->engine, &stats);
    o = json_pack("{s:b, s:o, s:s, s:i, s:s, s:o, s:I}", "attached", w.attachment.present,
                  "attachment", attachment_object(&w.attachment), "serving", serving_word(&w),
                  "requests_held", w.hold.on || w.condition != WEIGHTS_CLEAN ? stats.waiting : 0,
                  "weights_state", condition_name(w.condition), "model", model_object(served),
                  "steps_since_load", (json_int_t)w.steps_since_load);
    if (o) {
        int64_t commits = served ? served->commits : 0;

        json_object_set_new(o, "commits", json_integer(commits));
        json_object_set_new(o, "unsaved_commits", json_integer(commits));
        json_object_set_new(o, "last_save", last_save_object(&w.last_save));
        json_object_set_new(o, "save_in_progress", save_object(&w.save));
        json_object_set_new(o, "commit", commit_object(&w.commit));
        json_object_set_new(o, "last_overrun",
                            overrun_object(&w.last_overrun, s->settings->commit_watchdog_s));
        json_object_set_new(o, "hold", hold_object(&w.hold));
        json_object_set_new(o, "hold_timeouts", json_integer(w.hold_timeouts));
        json_object_set_new(o, "generation", json_integer(w.generation));
    }
    served_unref(served);
    return o;
}
