/* api/body.h - reads the JSON body of a request, the same rules on every face. */
#ifndef API_BODY_H
#define API_BODY_H

#include <jansson.h>

struct err;
struct http_req;

/* An owned object, or NULL with ERR_ARG (none, or not declared as application/json) or ERR_FORMAT
 * (malformed, or no object); the message says what is wrong. */
json_t *api_body_read(const struct http_req *req, struct err *e);
#endif
