/* api/openai/errors.h - refusals of the /v1 face: {"error": {message, type, param, code}} (ENV-05,
 * ENV-06). */
#ifndef API_OPENAI_ERRORS_H
#define API_OPENAI_ERRORS_H

#include <jansson.h>

struct api_call;
struct refusal;
struct service;

/* Status, body and, for a 503, Retry-After. A management code is written in lower case. */
void openai_fail(struct api_call *call, const struct refusal *r);

/* The error object alone (owned), as it stands in an answer; `retry_after` is added for the last
 * frame of a stream that breaks with a 503. */
json_t *openai_error(const struct service *s, const struct refusal *r, int in_stream);
#endif
