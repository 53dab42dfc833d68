/* api/envelope.h - the management face: {"success", "data", "error"} (ENV-01 to ENV-03, ENV-07,
 * ENV-10).
 *
 * Every handler under /api ends with exactly one of these. `data` and `details` are consumed. */
#ifndef API_ENVELOPE_H
#define API_ENVELOPE_H

#include <jansson.h>
#include <stdint.h>

struct api_call;
struct err;

void api_ok(struct api_call *call, int status, json_t *data);

/* A failure with the status that api/errors.tbl gives the code; `details` may be NULL. A 503 gets
 * Retry-After. */
void api_fail(struct api_call *call, const char *code, const char *message, json_t *details);

/* 500 INTERNAL_ERROR, or 507 INSUFFICIENT_MEMORY for ERR_NOMEM; logs e. */
void api_fail_internal(struct api_call *call, const struct err *e);

/* A list for 422: api_invalid_add(&list, ...) for each finding, then api_fail_invalid. */
void api_invalid_add(json_t **errors, const char *path, const char *type, const char *message);
void api_fail_invalid(struct api_call *call,
                      json_t *errors); /* consumed; cut at 100 entries (D-35) */

/* The body as a JSON object (owned). NULL: the refusal has been sent (content type, malformed, no
 * object). An empty body is {} where `may_be_empty`. */
json_t *api_body_object(struct api_call *call, int may_be_empty);

/* "2026-11-29T19:16:58.123Z", or null for a negative time. */
json_t *api_time(int64_t wall_ms);

/* The bare answers of ENV-09. */
void api_bare(struct api_call *call, int status, const char *detail);
#endif
