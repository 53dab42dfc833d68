/* service/audit.h - one JSON line for every call of a protected weights route, and for what the
 * server does on its own (torn, hold timeout, stale).
 *
 * Fill an audit_line while the call runs, write it once when the outcome is decided, before the
 * answer is sent. Never in a line: tokens, ids of attachments, absolute paths, free text of a
 * manifest. */
#ifndef SERVICE_AUDIT_H
#define SERVICE_AUDIT_H

#include <stdint.h>

#include "base/buf.h"
#include "engine/served.h"

struct refusal;
struct token_owner;

enum { AUDIT_TEXT_MAX = SERVED_NAME_MAX };

/* NULL, "" and -1 are written as null. */
struct audit_line {
    const char *operation; /* "weights_save"; static */
    const struct token_owner *owner;
    const char *identity; /* where no caller is behind the event; borrowed */
    char attachment_ref[9];
    const char *request_id;  /* borrowed */
    const char *client_addr; /* borrowed */
    char model[AUDIT_TEXT_MAX];
    char checkpoint[AUDIT_TEXT_MAX];
    char run_id[256];
    int64_t step;
    const char *mode;
    const char *parent_check;
    int identity_set;
    char weights_sha256[65], manifest_sha256[65];
    const char *state_before, *state_after;
    int64_t started_ns; /* monotonic */
};

void audit_begin(struct audit_line *line, const char *operation);

/* The line as JSON text, keys in their fixed order. r NULL: accepted with `status`. */
void audit_format(const struct audit_line *line, int status, const struct refusal *r,
                  struct buf *out);
/* Returns when the line is on record. */
void audit_write(const struct audit_line *line, int status, const struct refusal *r);
/* What the server does on its own, written by the engine's thread, which waits for nobody. */
void audit_note(const struct audit_line *line);
#endif
