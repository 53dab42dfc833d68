/* Requests, streams, and clients that leave. */
#include "http/server_fixture.h"

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
    wire_read_all(fd, &got); /* what it gets later, if anything was sent, does not look complete */
    assert_false(got.len >= 5 && memcmp(got.data + got.len - 5, "0\r\n\r\n", 5) == 0);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
