/* service/refusal.h - why a request is not done: one code, one sentence, the facts.
 *
 * Every use case of service/ ends with a parameter `struct refusal *r` and returns 0, or -1 with *r
 * filled; a refusal changes nothing unless its code says otherwise. The faces in api/ render it:
 * code and status come from service/refusals.tbl, so both live once. A zeroed struct is empty;
 * refusal_clear frees what a filled one owns and may be called on an empty one. Not safe to share
 * between threads. */
#ifndef SERVICE_REFUSAL_H
#define SERVICE_REFUSAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct err;

enum refusal_code {
    REFUSAL_NONE,
#define MANAGEMENT(name, status)          REFUSAL_##name,
#define OPENAI(name, code, status, type)  REFUSAL_##name,
#define WEAVER(name, code, status, retry) REFUSAL_##name,
#include "service/refusals.tbl"
#undef MANAGEMENT
#undef OPENAI
#undef WEAVER
    REFUSAL_CODES,
};

enum { REFUSAL_MESSAGE_MAX = 1024 };

struct refusal {
    enum refusal_code code;
    char message[REFUSAL_MESSAGE_MAX]; /* one sentence for a person: what, why, what to do */
    json_t *details;                   /* owned object, or NULL for {} */
    char param[256];                   /* /v1 only: path of the field, "" for null */
    int retry_after_s;                 /* 503: whole seconds, 0 = the face's default for the code */
};

const char *refusal_wire_code(enum refusal_code code); /* "WEIGHTS_NOT_CLEAN", "model_not_found" */
int refusal_status(enum refusal_code code);            /* HTTP status */
/* OpenAI's `type`; for a management code the one that its status implies. */
const char *refusal_type(enum refusal_code code);
bool refusal_is_openai(enum refusal_code code);
bool refusal_is_weaver(enum refusal_code code);
/* /api/v1: the same request may succeed later. */
bool refusal_retryable(enum refusal_code code);

/* Fill *r and return -1, so that `return refuse(...)` is one step. What *r held before is freed. */
int refuse(struct refusal *r, enum refusal_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with details, which are consumed (NULL counts as {}). */
int refuse_with(struct refusal *r, enum refusal_code code, json_t *details, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* /v1: the same with `param`, "" for null. */
int refuse_param(struct refusal *r, enum refusal_code code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* INTERNAL_ERROR from an error below: the message is e->msg, details.type the kind of error. */
int refuse_internal(struct refusal *r, const struct err *e);
/* INTERNAL_ERROR: there was no memory, and nothing was changed. */
int refuse_no_memory(struct refusal *r);
/* CLIENT_CLOSED_REQUEST: whoever asked has hung up, and nothing was changed. */
int refuse_client_left(struct refusal *r);
/* MODEL_LOAD_FAILED: a load was cut short before it changed anything. */
int refuse_stopping(struct refusal *r);

void refusal_clear(struct refusal *r);

/* ---- refusal tables ---- */

/* One row of a documented refusal order: the check returns 0 to let the walk go on, or -1 with *r.
 * `n` is the row's number in the documented table, kept beside the check so that a test can compare
 * the two. */
typedef int refusal_check_fn(void *ctx, struct refusal *r);
struct refusal_rule {
    const char *n; /* "1", "1a", "17" */
    refusal_check_fn *check;
};

/* Walks `rules` (ended by a row without check) in order; the first refusal ends the walk. */
int refusal_walk(const struct refusal_rule *rules, void *ctx, struct refusal *r);
#endif
