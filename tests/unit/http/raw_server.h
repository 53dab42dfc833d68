/* tests/unit/http/raw_server.h - a server that counts how often its handler ran, for requests sent
 * as bytes. */
#ifndef TESTS_HTTP_RAW_SERVER_H
#define TESTS_HTTP_RAW_SERVER_H

#include "http/wire.h"

#include <stdatomic.h>

#include "base/err.h"
#include "http/request.h"
#include "http/response.h"
#include "http/server.h"

struct fixture {
    struct http_server *server;
    int port;
    atomic_int ran; /* counted by the handler, whose argument is the fixture */
};

/* The rest of `c` is the test's. */
static inline int raw_server_start(void **state, struct http_config c)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct err e = {0};

    c.arg = f;
    f->server = http_server_start(&c, &e);
    if (!f->server)
        fail_msg("%s %s", e.msg, e.detail);
    f->port = http_server_port(f->server);
    *state = f;
    return 0;
}

static inline int raw_server_stop(void **state)
{
    struct fixture *f = *state;

    http_server_stop(f->server, 1000);
    free(f);
    return 0;
}
#endif
