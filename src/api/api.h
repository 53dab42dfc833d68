/* api/api.h - what the handlers of all faces share, and the path of one call.
 *
 * The daemon fills struct api once, before the server starts; it does not change after. api_handle
 * is the handler of http/server.h with a struct api as its argument; api_limit and api_refuse are
 * its companions. */
#ifndef API_API_H
#define API_API_H

#include <stddef.h>
#include <stdint.h>

#include "http/server.h"

struct batch_call;
struct http_req;
struct http_resp;
struct service;

struct api {
    struct service *service; /* every use case: service/service.h */
    const char *version;     /* of the program */
};

/* One request on its way through a handler. */
struct api_call {
    struct api *api;
    struct http_req *req;
    struct http_resp *resp;
    int64_t id;       /* {id} of the pattern, else 0 */
    const char *rest; /* {rest...} of the pattern, decoded once, else "" */
    const char *key;  /* {key} of the pattern as sent, else "" */
    const struct batch_call *row; /* NULL: the request came over the network */
};

typedef void api_fn(struct api_call *call);

http_handler_fn api_handle; /* arg: struct api */
http_limit_fn api_limit;
http_refuse_fn api_refuse;
#endif
