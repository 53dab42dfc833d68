/* tests/unit/http/server_fixture.h - a server whose handlers do what their path says: answer, wait,
 * stream; and how many of them began and saw their client leave. */
#ifndef TESTS_HTTP_SERVER_FIXTURE_H
#define TESTS_HTTP_SERVER_FIXTURE_H

#include "http/wire.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"
#include "http/request.h"
#include "http/response.h"
#include "http/server.h"
#include "http/sse.h"

struct fixture {
    struct http_server *server;
    int port;
    atomic_int ran;        /* handlers begun */
    atomic_int gone_seen;  /* handlers that saw their client leave */
    atomic_int gone_calls; /* calls of the gone function */
};

/* ---- the handlers under test, by path ---- */

static inline void on_gone(void *arg)
{
    atomic_fetch_add(&((struct fixture *)arg)->gone_calls, 1);
}

static inline void echo(struct http_req *req, struct http_resp *resp)
{
    struct buf b = {0};

    buf_printf(&b, "%s %s?%s len=%zu ", req->method, req->path, req->query, req->body_len);
    buf_add(&b, req->body, req->body_len < 4096 ? req->body_len : 16);
    http_resp_body(resp, "text/plain", &b);
}

/* Waits until the client leaves, at most 5 s. */
static inline void wait_gone(struct fixture *f, struct http_req *req, struct http_resp *resp)
{
    http_req_on_gone(req, on_gone, f);
    for (int i = 0; i < 1000 && !atomic_load(http_req_gone(req)); i++)
        wire_wait_ms(5);
    http_req_on_gone(req, NULL, NULL);
    if (atomic_load(http_req_gone(req)))
        atomic_fetch_add(&f->gone_seen, 1);
    http_resp_text(resp, "text/plain", "waited");
}

static inline void slow(struct http_resp *resp)
{
    wire_wait_ms(300);
    http_resp_text(resp, "text/plain", "slept");
}

static inline void stream(struct fixture *f, struct http_req *req, struct http_resp *resp, int n,
                          int pause)
{
    struct http_stream *s = sse_begin(resp);
    char text[64];

    for (int i = 0; i < n; i++) {
        if (sse_send(s, text, (size_t)sprintf(text, "{\"i\": %d}", i)) < 0) {
            atomic_fetch_add(&f->gone_seen, atomic_load(http_req_gone(req)));
            break;
        }
        wire_wait_ms(pause);
    }
    sse_send(s, "[DONE]", 6);
    sse_end(s);
}

static inline void *write_later(void *arg)
{
    struct http_stream *s = arg;

    wire_wait_ms(50);
    http_stream_write(s, "later", 5);
    http_stream_end(s);
    return NULL;
}

static inline void stream_from_another_thread(struct http_resp *resp)
{
    struct http_stream *s = http_stream_begin(resp, "text/plain");
    pthread_t t;

    assert_int_equal(pthread_create(&t, NULL, write_later, s), 0);
    pthread_detach(t);
}

static inline void flood(struct fixture *f, struct http_resp *resp)
{
    struct http_stream *s = http_stream_begin(resp, "text/plain");
    static const char block[65536];

    for (int i = 0; i < 2000; i++)
        if (http_stream_write(s, block, sizeof block) < 0) {
            atomic_fetch_add(&f->gone_seen, 1);
            break;
        }
    http_stream_end(s);
}

static inline void handle(void *arg, struct http_req *req, struct http_resp *resp)
{
    struct fixture *f = arg;

    atomic_fetch_add(&f->ran, 1);
    if (strcmp(req->path, "/wait") == 0)
        wait_gone(f, req, resp);
    else if (strcmp(req->path, "/slow") == 0)
        slow(resp);
    else if (strcmp(req->path, "/stream") == 0)
        stream(f, req, resp, 20, 5);
    else if (strcmp(req->path, "/endless") == 0)
        stream(f, req, resp, 1000, 5);
    else if (strcmp(req->path, "/quiet") == 0)
        stream(f, req, resp, 2, 2500);
    else if (strcmp(req->path, "/later") == 0)
        stream_from_another_thread(resp);
    else if (strcmp(req->path, "/flood") == 0)
        flood(f, resp);
    else
        echo(req, resp);
}

static inline size_t limit(void *arg, const char *method, const char *path)
{
    (void)arg, (void)method;
    return strncmp(path, "/big", 4) == 0 ? (size_t)64 << 20 : 100000;
}

/* ---- set up ---- */

static inline struct http_config small_config(struct fixture *f)
{
    return (struct http_config){
        .cors_origins = "http://app.example, http://other.example",
        .hosts = "server.example",
        .handler = handle,
        .limit = limit,
        .arg = f,
        .spool_bytes = 1 << 20,
        .stream_bytes = 1 << 20,
        .head_timeout_ms = 20000,
    };
}

static inline void start(struct fixture *f, const struct http_config *c)
{
    struct err e = {0};

    f->server = http_server_start(c, &e);
    if (!f->server)
        fail_msg("%s %s", e.msg, e.detail);
    f->port = http_server_port(f->server);
}

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct http_config c = small_config(f);

    start(f, &c);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;

    http_server_stop(f->server, 1000);
    free(f);
    return 0;
}

/* One request with Connection: close; the whole answer. */
static inline struct buf ask(struct fixture *f, const char *text)
{
    struct buf got = {0};
    int fd = wire_connect(f->port);

    wire_say(fd, text);
    assert_true(wire_read_all(fd, &got));
    close(fd);
    return got;
}

static inline void wait_until(atomic_int *v, int wanted)
{
    for (int i = 0; i < 2000 && atomic_load(v) < wanted; i++)
        wire_wait_ms(5);
    assert_int_equal(atomic_load(v), wanted);
}

#define CLOSE "Host: localhost\r\nConnection: close\r\n\r\n"
#endif
