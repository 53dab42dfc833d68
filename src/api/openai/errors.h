/* api/openai/errors.h - refusals of the /v1 face: {"error": {message, type, param, code}} (ENV-05,
 * ENV-06). */
#ifndef API_OPENAI_ERRORS_H
#define API_OPENAI_ERRORS_H

#include <jansson.h>

struct api_call;
struct buf;

/* A refusal by its code of api/errors.tbl, which gives status and type. param NULL: null.
 * retry_after_s: for 503; 0: the default of section 7.8 for that code. */
void openai_fail(struct api_call *call, const char *code, const char *param, int retry_after_s,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* The error object alone (owned), as it stands in an answer and in the last frame of a broken
 * stream. */
json_t *openai_error(const char *code, const char *param, const char *message);

void openai_ok(struct api_call *call, json_t *body); /* 200; consumed */
#endif
