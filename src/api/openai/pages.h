/* api/openai/pages.h - how calls about files and batches end: one object, or a page of a list,
 * {"object": "list", "data", "first_id", "last_id", "has_more"}. */
#ifndef API_OPENAI_PAGES_H
#define API_OPENAI_PAGES_H

#include <jansson.h>
#include <stdbool.h>

struct api_call;
struct refusal;

/* The query's `limit`: invalid_parameter outside 1 to `most`; `fallback` when it is absent. */
int page_limit(struct api_call *call, int most, int fallback, int *out, struct refusal *r);
/* Ends a call: `answer` (consumed) with 200, or the refusal when rc < 0. Clears *r. */
void openai_end(struct api_call *call, int rc, json_t *answer, struct refusal *r);
/* `data` (consumed): objects with an "id". */
void page_answer(struct api_call *call, json_t *data, bool more);
#endif
