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

static void on_gone(void *arg)
{
    atomic_fetch_add(&((struct fixture *)arg)->gone_calls, 1);
}

static void echo(struct http_req *req, struct http_resp *resp)
{
    struct buf b = {0};

    buf_printf(&b, "%s %s?%s len=%zu ", req->method, req->path, req->query, req->body_len);
    buf_add(&b, req->body, req->body_len < 4096 ? req->body_len : 16);
    http_resp_body(resp, "text/plain", &b);
}

/* Waits until the client leaves, at most 5 s. */
static void wait_gone(struct fixture *f, struct http_req *req, struct http_resp *resp)
{
    http_req_on_gone(req, on_gone, f);
    for (int i = 0; i < 1000 && !atomic_load(http_req_gone(req)); i++)
        wire_wait_ms(5);
    http_req_on_gone(req, NULL, NULL);
    if (atomic_load(http_req_gone(req)))
        atomic_fetch_add(&f->gone_seen, 1);
    http_resp_text(resp, "text/plain", "waited");
}

static void slow(struct http_resp *resp)
{
    wire_wait_ms(300);
    http_resp_text(resp, "text/plain", "slept");
}

static void stream(struct fixture *f, struct http_req *req, struct http_resp *resp, int n,
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

static void *write_later(void *arg)
{
    struct http_stream *s = arg;

    wire_wait_ms(50);
    http_stream_write(s, "later", 5);
    http_stream_end(s);
    return NULL;
}

static void stream_from_another_thread(struct http_resp *resp)
{
    struct http_stream *s = http_stream_begin(resp, "text/plain");
    pthread_t t;

    assert_int_equal(pthread_create(&t, NULL, write_later, s), 0);
    pthread_detach(t);
}

static void flood(struct fixture *f, struct http_resp *resp)
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

static void handle(void *arg, struct http_req *req, struct http_resp *resp)
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

static size_t limit(void *arg, const char *method, const char *path)
{
    (void)arg, (void)method;
    return strncmp(path, "/big", 4) == 0 ? (size_t)64 << 20 : 100000;
}

/* ---- set up ---- */

static struct http_config small_config(struct fixture *f)
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

static void start(struct fixture *f, const struct http_config *c)
{
    struct err e = {0};

    f->server = http_server_start(c, &e);
    if (!f->server)
        fail_msg("%s %s", e.msg, e.detail);
    f->port = http_server_port(f->server);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct http_config c = small_config(f);

    start(f, &c);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    http_server_stop(f->server, 1000);
    free(f);
    return 0;
}

/* One request with Connection: close; the whole answer. */
static struct buf ask(struct fixture *f, const char *text)
{
    struct buf got = {0};
    int fd = wire_connect(f->port);

    wire_say(fd, text);
    assert_true(wire_read_all(fd, &got));
    close(fd);
    return got;
}

static void wait_until(atomic_int *v, int wanted)
{
    for (int i = 0; i < 2000 && atomic_load(v) < wanted; i++)
        wire_wait_ms(5);
    assert_int_equal(atomic_load(v), wanted);
}

#define CLOSE "Host: localhost\r\nConnection: close\r\n\r\n"

/* ---- requests and answers ---- */

static void a_request_reaches_the_handler_with_its_parts(void **state)
{
    struct buf got = ask(*state, "POST /a%20b/c?x=1&y HTTP/1.1\r\nHost: localhost\r\n"
                                 "Content-Length: 5\r\nConnection: close\r\n\r\nhello");

    assert_int_equal(wire_status(got.data), 200);
    assert_non_null(strstr(got.data, "POST /a b/c?x=1&y len=5 hello"));
    assert_non_null(strstr(got.data, "X-Request-ID: req_"));
    buf_release(&got);
}

static void a_callers_request_id_comes_back_when_it_is_well_formed(void **state)
{
    struct buf got = ask(*state, "GET / HTTP/1.1\r\nX-Request-ID: abc.DEF_1-2\r\n" CLOSE);

    assert_non_null(strstr(got.data, "X-Request-ID: abc.DEF_1-2\r\n"));
    buf_reset(&got);
    buf_release(&got);
    got = ask(*state, "GET / HTTP/1.1\r\nX-Request-ID: a b\r\n" CLOSE);
    assert_non_null(strstr(got.data, "X-Request-ID: req_"));
    buf_release(&got);
}

static void a_head_request_gets_no_body(void **state)
{
    struct buf got = ask(*state, "HEAD / HTTP/1.1\r\n" CLOSE);

    assert_int_equal(wire_status(got.data), 200);
    assert_null(strstr(got.data, "len=0"));
    buf_release(&got);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    struct buf got = ask(*state, "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
                                 "GET /second HTTP/1.1\r\n" CLOSE);
    const char *first = strstr(got.data, "slept");
    const char *second = strstr(got.data, "GET /second");

    assert_int_equal(wire_count(got.data, "HTTP/1.1 200"), 2);
    assert_true(first && second && first < second);
    buf_release(&got);
}

static void a_body_in_chunks_is_joined(void **state)
{
    struct buf got = ask(*state, "POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE
                                 "5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nX-T: 1\r\n\r\n");

    assert_non_null(strstr(got.data, "len=11 hello world"));
    buf_release(&got);
}

static void a_large_body_is_spooled_and_arrives_whole(void **state)
{
    struct fixture *f = *state;
    size_t n = (size_t)5 << 20;
    char *body = malloc(n);
    struct buf got = {0};
    int fd = wire_connect(f->port);
    char head[128];

    memset(body, 'z', n);
    sprintf(head, "POST /big HTTP/1.1\r\nContent-Length: %zu\r\n" CLOSE, n);
    wire_say(fd, head);
    wire_send(fd, body, n);
    assert_true(wire_read_all(fd, &got));
    assert_non_null(strstr(got.data, "len=5242880 zzzzzzzzzzzzzzzz"));
    close(fd);
    free(body);
    buf_release(&got);
}

static void a_body_over_the_limit_is_refused_before_it_is_sent(void **state)
{
    struct fixture *f = *state;
    struct buf got =
        ask(f, "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n{");

    assert_int_equal(wire_status(got.data), 413);
    assert_non_null(strstr(got.data, "Connection: close"));
    assert_int_equal(atomic_load(&f->ran), 0);
    buf_release(&got);
}

static void the_answer_arrives_while_a_body_over_the_limit_is_sent(void **state)
{
    struct fixture *f = *state;
    size_t n = (size_t)4 << 20;
    char *body = calloc(1, n);
    struct buf got = {0};
    int fd = wire_connect(f->port);

    wire_say(fd, "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4194304\r\n\r\n");
    wire_send(fd, body, n);
    assert_true(wire_read_all(fd, &got));
    assert_int_equal(wire_status(got.data), 413);
    close(fd);
    free(body);
    buf_release(&got);
}

static void a_chunked_body_over_the_limit_is_refused_on_the_way(void **state)
{
    struct fixture *f = *state;
    struct buf got = {0};
    char chunk[16392];
    int fd = wire_connect(f->port);

    memset(chunk, 'x', sizeof chunk);
    memcpy(chunk, "4000\r\n", 6);
    memcpy(chunk + 6 + 16384, "\r\n", 2);
    wire_say(fd, "POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 20; i++)
        wire_send(fd, chunk, sizeof chunk);
    assert_true(wire_read_all(fd, &got));
    assert_int_equal(wire_status(got.data), 413);
    assert_int_equal(wire_count(got.data, "HTTP/1.1 "), 1);
    assert_int_equal(atomic_load(&f->ran), 0);
    close(fd);
    buf_release(&got);
}

static void bodies_together_are_bounded(void **state)
{
    struct fixture *f = *state;
    struct fixture tight = {0};
    struct http_config c = small_config(&tight);
    struct http_stats stats;
    struct buf got = {0};
    int fd, other, rounds = 0;

    (void)f;
    c.max_inflight_bytes = 50000;
    c.retry_after_s = 17;
    start(&tight, &c);
    fd = wire_connect(tight.port);
    other = wire_connect(tight.port);
    wire_say(fd, "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n");
    for (int i = 0; i < 6; i++)
        wire_send(fd, (char[10000]){0}, 10000);
    assert_true(wire_read_all(fd, &got));
    assert_int_equal(wire_status(got.data), 503);
    assert_non_null(strstr(got.data, "Retry-After: 17\r\n"));
    buf_reset(&got);
    wire_say(other, "POST /x HTTP/1.1\r\nContent-Length: 2\r\n" CLOSE "ok");
    assert_true(wire_read_all(other, &got));
    assert_int_equal(wire_status(got.data), 200);
    close(fd);
    close(other);
    do
        http_server_stats(tight.server, &stats); /* given back just after the answer has left */
    while (stats.inflight_bytes && (wire_wait_ms(5), ++rounds < 1000));
    assert_int_equal(stats.inflight_bytes, 0);
    http_server_stop(tight.server, 100);
    buf_release(&got);
}

/* ---- who may talk to us ---- */

static void a_foreign_host_name_is_refused(void **state)
{
    struct buf got = ask(*state, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");

    assert_int_equal(wire_status(got.data), 403);
    buf_release(&got);
    got = ask(*state, "GET / HTTP/1.1\r\nHost: server.example:80\r\nConnection: close\r\n\r\n");
    assert_int_equal(wire_status(got.data), 200);
    buf_release(&got);
}

static void a_foreign_origin_is_refused_and_a_listed_one_is_named(void **state)
{
    struct buf got = ask(*state, "GET / HTTP/1.1\r\nOrigin: http://evil.example\r\n" CLOSE);

    assert_int_equal(wire_status(got.data), 403);
    buf_release(&got);
    got = ask(*state, "GET / HTTP/1.1\r\nOrigin: http://app.example\r\n" CLOSE);
    assert_int_equal(wire_status(got.data), 200);
    assert_non_null(strstr(got.data, "Access-Control-Allow-Origin: http://app.example\r\n"));
    buf_release(&got);
    got = ask(*state, "GET / HTTP/1.1\r\nOrigin: http://localhost\r\n" CLOSE);
    assert_int_equal(wire_status(got.data), 200);
    buf_release(&got);
}

static void a_preflight_is_answered_with_what_was_asked(void **state)
{
    struct fixture *f = *state;
    struct buf got = ask(
        f, "OPTIONS /v1/x HTTP/1.1\r\nOrigin: http://app.example\r\nAccess-Control-Request-Method: "
           "POST\r\nAccess-Control-Request-Headers: authorization,content-type\r\n" CLOSE);

    assert_int_equal(wire_status(got.data), 204);
    assert_non_null(strstr(got.data, "Access-Control-Allow-Headers: authorization,content-type"));
    assert_non_null(strstr(got.data, "Access-Control-Max-Age: 600"));
    assert_int_equal(atomic_load(&f->ran), 0);
    buf_release(&got);
}

/* ---- streams ---- */

static void a_stream_arrives_in_order_and_ends(void **state)
{
    struct buf got = ask(*state, "GET /stream HTTP/1.1\r\n" CLOSE);

    assert_non_null(strstr(got.data, "text/event-stream"));
    assert_int_equal(wire_count(got.data, "data: {"), 20);
    assert_non_null(strstr(got.data, "data: {\"i\": 19}\n\n"));
    assert_non_null(strstr(got.data, "data: [DONE]\n\n"));
    buf_release(&got);
}

static void a_stream_may_outlive_its_handler(void **state)
{
    struct buf got = ask(*state, "GET /later HTTP/1.1\r\n" CLOSE);

    assert_non_null(strstr(got.data, "later"));
    buf_release(&got);
}

static void a_silent_stream_is_kept_alive_by_comments_between_its_events(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct http_config c = small_config(f);
    const char *text, *comment;
    struct buf got;

    (void)state;
    c.keep_alive_ms = 200;
    start(f, &c);
    got = ask(f, "GET /quiet HTTP/1.1\r\n" CLOSE);
    text = strstr(got.data, "data: {\"i\": 0}\n\n");
    comment = text ? strstr(text, ": keep-alive\n\n") : NULL;
    assert_non_null(comment);
    assert_non_null(strstr(comment, "data: {\"i\": 1}\n\n"));
    assert_non_null(strstr(comment, "data: [DONE]\n\n"));
    assert_int_equal(wire_count(got.data, "data: "), 3);
    buf_release(&got);
    http_server_stop(f->server, 1000);
    free(f);
}

static void a_connection_goes_on_after_a_stream(void **state)
{
    struct buf got = ask(*state, "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
                                 "GET /next HTTP/1.1\r\n" CLOSE);

    assert_int_equal(wire_count(got.data, "HTTP/1.1 200"), 2);
    assert_non_null(strstr(got.data, "GET /next"));
    buf_release(&got);
}

static void a_client_that_reads_nothing_is_dropped(void **state)
{
    struct fixture *f = *state;
    struct http_stats stats = {.connections = 1};
    struct buf got = {0};
    int fd = wire_connect(f->port);

    wire_say(fd, "GET /flood HTTP/1.1\r\n" CLOSE);
    wait_until(&f->gone_seen, 1);
    for (int i = 0; i < 1000 && stats.connections; i++) {
        wire_wait_ms(5);
        http_server_stats(f->server, &stats);
    }
    assert_int_equal(stats.connections, 0);
    wire_read_all(fd, &got); /* what it gets later does not look complete */
    assert_true(got.len > 100 && memcmp(got.data + got.len - 5, "0\r\n\r\n", 5) != 0);
    close(fd);
    buf_release(&got);
}

/* ---- clients that leave ---- */

static void a_reset_is_seen_while_the_handler_runs(void **state)
{
    struct fixture *f = *state;
    int fd = wire_connect(f->port);

    wire_say(fd, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wait_until(&f->ran, 1);
    wire_reset(fd);
    wait_until(&f->gone_seen, 1);
    assert_int_equal(atomic_load(&f->gone_calls), 1);
}

static void a_plain_close_is_seen_while_the_handler_runs(void **state)
{
    struct fixture *f = *state;
    int fd = wire_connect(f->port);

    wire_say(fd, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wait_until(&f->ran, 1);
    close(fd);
    wait_until(&f->gone_seen, 1);
}

static void a_half_closed_client_gets_its_answer(void **state)
{
    struct fixture *f = *state;
    struct buf got = {0};
    int fd = wire_connect(f->port);

    wire_say(fd, "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n");
    shutdown(fd, SHUT_WR);
    wire_read_all(fd, &got);
    assert_int_equal(wire_status(got.data), 200);
    assert_non_null(strstr(got.data, "slept"));
    close(fd);
    buf_reset(&got);
    fd = wire_connect(f->port);
    wire_say(fd, "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    shutdown(fd, SHUT_WR);
    wire_read_all(fd, &got);
    assert_non_null(strstr(got.data, "data: [DONE]"));
    assert_int_equal(atomic_load(&f->gone_seen), 0);
    close(fd);
    buf_release(&got);
}

static void many_half_closed_clients_at_once_get_their_answers(void **state)
{
    struct fixture *f = *state;
    static int fds[200];

    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 200; i++) {
            fds[i] = wire_connect(f->port);
            wire_say(fds[i], "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nok");
            shutdown(fds[i], SHUT_WR);
        }
        for (int i = 0; i < 200; i++) {
            struct buf got = {0};

            wire_read_all(fds[i], &got);
            assert_int_equal(wire_status(buf_str(&got)), 200);
            close(fds[i]);
            buf_release(&got);
        }
    }
}

static void a_client_that_half_closes_and_then_leaves_is_seen(void **state)
{
    struct fixture *f = *state;
    int fd = wire_connect(f->port);

    wire_say(fd, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
    shutdown(fd, SHUT_WR);
    wait_until(&f->ran, 1);
    wire_wait_ms(50);
    assert_int_equal(atomic_load(&f->gone_calls), 0);
    close(fd);
    wait_until(&f->gone_seen, 1);
}

static void fifty_streams_that_are_reset_leave_nothing_behind(void **state)
{
    struct fixture *f = *state;
    struct http_stats stats = {.requests_running = 1};

    for (int i = 0; i < 50; i++) {
        int fd = wire_connect(f->port);

        wire_say(fd, "GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n");
        wire_wait_ms(i % 7);
        if (i % 3)
            wire_reset(fd);
        else
            close(fd);
    }
    for (int i = 0; i < 1000 && (stats.requests_running || stats.connections); i++) {
        wire_wait_ms(5);
        http_server_stats(f->server, &stats);
    }
    assert_int_equal(stats.requests_running, 0);
    assert_int_equal(stats.connections, 0);
}

/* ---- slow and idle clients ---- */

static void a_header_that_never_ends_is_closed(void **state)
{
    struct fixture patient = {0};
    struct http_config c = small_config(&patient);
    struct buf got = {0};
    int fd;

    (void)state;
    c.head_timeout_ms = 700;
    start(&patient, &c);
    fd = wire_connect(patient.port);
    for (int i = 0; i < 12; i++) {
        wire_say(fd, "X");
        wire_wait_ms(100);
    }
    wire_read_all(fd, &got);
    close(fd);
    buf_release(&got);
    http_server_stop(patient.server, 100);
}

static void a_body_sent_byte_by_byte_is_closed_without_an_answer(void **state)
{
    struct fixture patient = {0};
    struct http_config c = small_config(&patient);
    struct buf got = {0};
    int fd;

    (void)state;
    c.body_timeout_ms = 700;
    start(&patient, &c);
    fd = wire_connect(patient.port);
    wire_say(fd, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
    for (int i = 0; i < 12; i++) {
        wire_say(fd, "X");
        wire_wait_ms(100);
    }
    wire_read_all(fd, &got);
    assert_int_equal(atomic_load(&patient.ran), 0);
    close(fd);
    buf_release(&got);
    http_server_stop(patient.server, 100);
}

static void a_body_in_chunks_has_time_as_long_as_bytes_come(void **state)
{
    enum { PIECE = 65536, PIECES = 30 };
    struct fixture patient = {0};
    struct http_config c = small_config(&patient);
    char *piece = calloc(1, PIECE);
    struct buf got = {0};
    int fd;

    (void)state;
    c.body_timeout_ms = 1500; /* half of what the body takes */
    start(&patient, &c);
    fd = wire_connect(patient.port);
    wire_say(fd, "POST /big HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE);
    for (int i = 0; i < PIECES; i++) {
        wire_say(fd, "10000\r\n");
        wire_send(fd, piece, PIECE);
        wire_say(fd, "\r\n");
        wire_wait_ms(100);
    }
    wire_say(fd, "0\r\n\r\n");
    assert_true(wire_read_all(fd, &got));
    assert_int_equal(wire_status(buf_str(&got)), 200);
    assert_non_null(strstr(got.data, "len=1966080"));
    close(fd);
    free(piece);
    buf_release(&got);
    http_server_stop(patient.server, 100);
}

static void a_large_body_that_is_announced_and_does_not_come_is_closed(void **state)
{
    struct fixture patient = {0};
    struct http_config c = small_config(&patient);
    struct buf got = {0};
    int fd;

    (void)state;
    c.body_timeout_ms = 300;
    start(&patient, &c);
    fd = wire_connect(patient.port);
    wire_say(fd, "POST /big HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\nX");
    assert_true(wire_read_all(fd, &got)); /* it has a quarter of an hour for 60 MB that do come */
    assert_int_equal(atomic_load(&patient.ran), 0);
    close(fd);
    buf_release(&got);
    http_server_stop(patient.server, 100);
}

static void a_thousand_idle_connections_disturb_nobody(void **state)
{
    struct fixture *f = *state;
    static int idle[1000];
    struct buf got;

    for (int i = 0; i < 1000; i++)
        idle[i] = wire_connect(f->port);
    got = ask(f, "GET /hello HTTP/1.1\r\n" CLOSE);
    assert_int_equal(wire_status(got.data), 200);
    buf_release(&got);
    for (int i = 0; i < 1000; i++)
        close(idle[i]);
}

static void idle_connections_give_way_when_places_run_out(void **state)
{
    struct fixture few = {0};
    struct http_config c = small_config(&few);
    int idle[80], busy;
    struct buf got = {0};

    (void)state;
    c.max_connections = 40;
    start(&few, &c);
    busy = wire_connect(few.port);
    wire_say(busy, "GET /slow HTTP/1.1\r\n" CLOSE);
    wait_until(&few.ran, 1);
    for (int i = 0; i < 80; i++)
        idle[i] = wire_connect(few.port);
    got = ask(&few, "GET /hello HTTP/1.1\r\n" CLOSE);
    assert_int_equal(wire_status(got.data), 200);
    buf_reset(&got);
    assert_true(wire_read_all(busy, &got)); /* who is being answered stays */
    assert_non_null(strstr(got.data, "slept"));
    for (int i = 0; i < 80; i++)
        close(idle[i]);
    close(busy);
    buf_release(&got);
    http_server_stop(few.server, 100);
}

static void handlers_that_block_do_not_block_others(void **state)
{
    struct fixture *f = *state;
    int waiting[40];
    struct buf got;

    for (int i = 0; i < 40; i++) {
        waiting[i] = wire_connect(f->port);
        wire_say(waiting[i], "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    wait_until(&f->ran, 40);
    got = ask(f, "GET /hello HTTP/1.1\r\n" CLOSE);
    assert_int_equal(wire_status(got.data), 200);
    buf_release(&got);
    for (int i = 0; i < 40; i++)
        wire_reset(waiting[i]);
    wait_until(&f->gone_seen, 40);
}

static void a_stop_ends_running_handlers_and_says_so_to_them(void **state)
{
    struct fixture brief = {0};
    struct http_config c = small_config(&brief);
    struct buf got = {0};
    int fd;

    (void)state;
    start(&brief, &c);
    fd = wire_connect(brief.port);
    wire_say(fd, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wait_until(&brief.ran, 1);
    http_server_stop(brief.server, 50);
    assert_int_equal(atomic_load(&brief.gone_seen), 1);
    wire_read_all(fd, &got);
    assert_int_equal(wire_status(buf_str(&got)), 200);
    close(fd);
    buf_release(&got);
}

/* Asks again as soon as it is answered, a few times. */
static void *ask_on_and_on(void *arg)
{
    struct fixture *f = arg;
    int fd = wire_connect(f->port);

    for (int i = 0; i < 4; i++) {
        struct buf got = {0};
        bool more;

        wire_say(fd, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
        more = wire_read_until(fd, &got, "waited");
        buf_release(&got);
        if (!more)
            break;
    }
    close(fd);
    return NULL;
}

static void who_asks_on_and_on_does_not_hold_up_a_stop(void **state)
{
    enum { CLIENTS = 4 };
    struct fixture brief = {0};
    struct http_config c = small_config(&brief);
    pthread_t clients[CLIENTS];

    (void)state;
    start(&brief, &c);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, ask_on_and_on, &brief), 0);
    wait_until(&brief.ran, CLIENTS);
    http_server_stop(brief.server, 50);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i], NULL);
    assert_int_equal(atomic_load(&brief.ran), CLIENTS);
}

/* Two requests on one connection, the second while the server stops. */
static void a_request_during_a_stop_is_refused_and_the_connection_closes(void **state)
{
    struct fixture brief = {0};
    struct http_config c = small_config(&brief);
    struct buf got = {0};
    int fd;

    (void)state;
    start(&brief, &c);
    fd = wire_connect(brief.port);
    wire_say(fd, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n"
                 "GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wait_until(&brief.ran, 1);
    http_server_stop(brief.server, 50);
    wire_read_all(fd, &got);
    assert_int_equal(wire_status(buf_str(&got)), 200);
    assert_non_null(strstr(got.data, "Connection: close"));
    assert_int_equal(wire_count(got.data, "HTTP/1.1 200"), 1);
    assert_int_equal(atomic_load(&brief.ran), 1);
    close(fd);
    buf_release(&got);
}

static void *stop_patiently(void *arg)
{
    http_server_stop(arg, 20000);
    return NULL;
}

/* The status of one request on each connection in turn, until it is 503; -1: it never was. */
static int refused_at_last(const int *fds, int n)
{
    int status = -1;

    for (int i = 0; i < n && status != 503; i++) {
        struct buf got = {0};

        wire_say(fds[i], "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
        wire_read_until(fds[i], &got, "\r\n\r\n");
        status = wire_status(buf_str(&got));
        buf_release(&got);
        wire_wait_ms(20);
    }
    return status;
}

static void what_comes_while_others_are_let_end_is_refused(void **state)
{
    enum { OPEN = 200 };
    struct fixture slow_end = {0};
    struct http_config c = small_config(&slow_end);
    struct buf got = {0};
    int busy, half, open[OPEN];
    pthread_t stopper;

    (void)state;
    start(&slow_end, &c);
    busy = wire_connect(slow_end.port);
    half = wire_connect(slow_end.port);
    for (int i = 0; i < OPEN; i++)
        open[i] = wire_connect(slow_end.port);
    wire_say(busy, "GET /wait HTTP/1.1\r\n" CLOSE);
    wire_say(half, "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhe");
    wait_until(&slow_end.ran, 1);
    assert_int_equal(pthread_create(&stopper, NULL, stop_patiently, slow_end.server), 0);
    assert_int_equal(refused_at_last(open, OPEN), 503);
    wire_say(half, "llo"); /* its header came before the stop */
    assert_true(wire_read_all(half, &got));
    assert_int_equal(wire_status(buf_str(&got)), 503);
    assert_non_null(strstr(got.data, "Connection: close"));
    wire_reset(busy);
    pthread_join(stopper, NULL);
    for (int i = 0; i < OPEN; i++)
        close(open[i]);
    close(half);
    buf_release(&got);
}

static void a_large_body_without_a_place_for_it_is_refused(void **state)
{
    struct fixture homeless = {0};
    struct http_config c = small_config(&homeless);
    size_t n = (size_t)4 << 20;
    char *body = calloc(1, n);
    struct buf got = {0};
    int fd;

    (void)state;
    c.spool_dir = "/no/such/directory";
    start(&homeless, &c);
    fd = wire_connect(homeless.port);
    wire_say(fd, "POST /big HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4194304\r\n\r\n");
    wire_send(fd, body, n);
    wire_read_all(fd, &got);
    assert_int_equal(wire_status(buf_str(&got)), 503);
    assert_int_equal(atomic_load(&homeless.ran), 0);
    close(fd);
    buf_release(&got);
    got = ask(&homeless, "POST /small HTTP/1.1\r\nContent-Length: 2\r\n" CLOSE "ok");
    assert_int_equal(wire_status(got.data), 200);
    free(body);
    buf_release(&got);
    http_server_stop(homeless.server, 100);
}

static void a_taken_port_is_a_conflict(void **state)
{
    struct fixture *f = *state;
    struct http_config c = small_config(f);
    struct err e = {0};

    c.port = (uint16_t)f->port;
    assert_null(http_server_start(&c, &e));
    assert_int_equal(e.code, ERR_CONFLICT);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_request_reaches_the_handler_with_its_parts),
        T(a_callers_request_id_comes_back_when_it_is_well_formed),
        T(a_head_request_gets_no_body),
        T(pipelined_requests_are_answered_in_order),
        T(a_body_in_chunks_is_joined),
        T(a_large_body_is_spooled_and_arrives_whole),
        T(a_body_over_the_limit_is_refused_before_it_is_sent),
        T(the_answer_arrives_while_a_body_over_the_limit_is_sent),
        T(a_chunked_body_over_the_limit_is_refused_on_the_way),
        T(bodies_together_are_bounded),
        T(a_foreign_host_name_is_refused),
        T(a_foreign_origin_is_refused_and_a_listed_one_is_named),
        T(a_preflight_is_answered_with_what_was_asked),
        T(a_stream_arrives_in_order_and_ends),
        T(a_stream_may_outlive_its_handler),
        cmocka_unit_test(a_silent_stream_is_kept_alive_by_comments_between_its_events),
        T(a_connection_goes_on_after_a_stream),
        T(a_client_that_reads_nothing_is_dropped),
        T(a_reset_is_seen_while_the_handler_runs),
        T(a_plain_close_is_seen_while_the_handler_runs),
        T(a_half_closed_client_gets_its_answer),
        T(many_half_closed_clients_at_once_get_their_answers),
        T(a_client_that_half_closes_and_then_leaves_is_seen),
        T(fifty_streams_that_are_reset_leave_nothing_behind),
        T(a_header_that_never_ends_is_closed),
        T(a_body_sent_byte_by_byte_is_closed_without_an_answer),
        cmocka_unit_test(a_body_in_chunks_has_time_as_long_as_bytes_come),
        cmocka_unit_test(a_large_body_that_is_announced_and_does_not_come_is_closed),
        T(a_thousand_idle_connections_disturb_nobody),
        T(idle_connections_give_way_when_places_run_out),
        T(handlers_that_block_do_not_block_others),
        T(a_stop_ends_running_handlers_and_says_so_to_them),
        cmocka_unit_test(who_asks_on_and_on_does_not_hold_up_a_stop),
        cmocka_unit_test(a_request_during_a_stop_is_refused_and_the_connection_closes),
        cmocka_unit_test(what_comes_while_others_are_let_end_is_refused),
        cmocka_unit_test(a_large_body_without_a_place_for_it_is_refused),
        T(a_taken_port_is_a_conflict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
