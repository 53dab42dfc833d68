#include "service/audit.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "service/refusal.h"
#include "service/tokens.h"

void audit_begin(struct audit_line *line, const char *operation)
{
    *line = (struct audit_line){.operation = operation, .step = -1, .identity_set = -1};
    line->started_ns = clock_mono_ns();
}

static void add_key(struct buf *b, const char *key)
{
    buf_printf(b, "%s\"%s\":", b->len > 1 ? "," : "", key);
}

static void add_str(struct buf *b, const char *key, const char *value)
{
    add_key(b, key);
    if (value && *value)
        json_write_str(b, value, strlen(value));
    else
        buf_add_str(b, "null");
}

static void add_int(struct buf *b, const char *key, int64_t value)
{
    add_key(b, key);
    if (value >= 0)
        buf_printf(b, "%" PRId64, value);
    else
        buf_add_str(b, "null");
}

/* The word that tells refusals of one code apart. What a lease calls its reason is the free text of
 * whoever holds it. */
static const char *reason_of(const struct refusal *r)
{
    if (!r || r->code == REFUSAL_MODEL_LEASED)
        return NULL;
    return json_string_value(json_object_get(r->details, "reason"));
}

static void add_outcome(struct buf *b, int status, const struct refusal *r)
{
    add_str(b, "outcome", status < 400 ? "accepted" : status == 500 ? "failed" : "refused");
    add_int(b, "http_status", status);
    add_str(b, "code", r ? refusal_wire_code(r->code) : NULL);
    add_str(b, "reason", reason_of(r));
}

static void add_caller(struct buf *b, const struct audit_line *line)
{
    add_str(b, "identity", line->owner ? line->owner->identity : line->identity);
    add_str(b, "role", line->owner ? role_name(line->owner->role) : NULL);
    add_str(b, "attachment_ref", line->attachment_ref);
    add_str(b, "request_id", line->request_id);
}

static void add_weights(struct buf *b, const struct audit_line *line)
{
    add_str(b, "model", line->model);
    add_str(b, "checkpoint", line->checkpoint);
    add_str(b, "run_id", line->run_id);
    add_int(b, "step", line->step);
    add_str(b, "mode", line->mode);
    add_str(b, "parent_check", line->parent_check);
    add_key(b, "identity_set");
    buf_add_str(b, line->identity_set < 0 ? "null" : line->identity_set ? "true" : "false");
    add_str(b, "weights_sha256", line->weights_sha256);
    add_str(b, "manifest_sha256", line->manifest_sha256);
    add_str(b, "state_before", line->state_before);
    add_str(b, "state_after", line->state_after);
}

void audit_format(const struct audit_line *line, int status, const struct refusal *r,
                  struct buf *out)
{
    char now[32];

    clock_iso8601(clock_wall_ms(), now);
    buf_add_char(out, '{');
    add_str(out, "event", "weights_audit");
    add_str(out, "ts", now);
    add_str(out, "operation", line->operation);
    add_outcome(out, status, r);
    add_caller(out, line);
    add_weights(out, line);
    add_key(out, "duration_ms");
    json_write_real(out, round(clock_ms_since(line->started_ns) * 10) / 10);
    add_str(out, "client_addr", line->client_addr);
    buf_add_char(out, '}');
}

static void write_with(void (*log)(const char *line), const struct audit_line *line, int status,
                       const struct refusal *r)
{
    struct buf text = {0};

    audit_format(line, status, r, &text);
    if (!text.failed)
        log(buf_str(&text));
    buf_release(&text);
}

void audit_write(const struct audit_line *line, int status, const struct refusal *r)
{
    write_with(log_audit, line, status, r);
}

void audit_note(const struct audit_line *line)
{
    write_with(log_audit_later, line, 200, NULL);
}
