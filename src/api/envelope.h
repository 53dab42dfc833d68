/* api/envelope.h - the management face: {"success", "data", "error"} (ENV-01 to ENV-03, ENV-07,
 * ENV-10).
 *
 * Every handler under /api ends with exactly one of api_ok, api_fail and api_bare. */
#ifndef API_ENVELOPE_H
#define API_ENVELOPE_H

#include <jansson.h>
#include <stdint.h>

struct api_call;
struct buf;
struct refusal;

void api_ok(struct api_call *call, int status, json_t *data); /* data is consumed */
/* The same for long data that is written as JSON text: begin, append the data, end (the buffer is
 * emptied). */
void api_text_begin(struct buf *text);
void api_text_end(struct api_call *call, int status, struct buf *text);
/* Status, message and details of the refusal; *r is left as it is. A 503 gets Retry-After. */
void api_fail(struct api_call *call, const struct refusal *r);

/* The body that api_fail sends, owned; NULL: out of memory. */
json_t *api_failure(const struct refusal *r);
extern const char api_challenge[]; /* WWW-Authenticate of a 401 */

/* The body of a management request. *object owned, or NULL with *errors, an owned list of
 * {path, message, type}: the body is missing, malformed, no object, or not declared as
 * application/json. An empty body counts as {} where `may_be_empty`. */
void api_body_object(struct api_call *call, int may_be_empty, json_t **object, json_t **errors);

/* The same for routes that check nothing before the body: -1 when 422 VALIDATION_ERROR has been
 * sent. */
int api_take_body(struct api_call *call, int may_be_empty, json_t **object);

/* "2026-11-29T19:16:58.123Z" (owned), or null for a negative time. */
json_t *api_time(int64_t wall_ms);

void api_json(struct api_call *call, int status, json_t *body); /* as it stands; consumed */
/* JSON that is written already; the buffer is emptied. */
void api_text(struct api_call *call, int status, struct buf *text);
void api_bare(struct api_call *call, int status, const char *detail); /* {"detail": ...} (ENV-09) */
#endif
