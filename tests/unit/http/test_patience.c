/* Clients that are slow, idle or many, and the stop of a server. */
#include "http/server_fixture.h"

static int start_and_connect(struct fixture *f, const struct http_config *c)
{
    start(f, c);
    return wire_connect(f->port);
}

static void part(struct fixture *f, int fd, struct buf *got)
{
    close(fd);
    buf_release(got);
    http_server_stop(f->server, 100);
}

/* A byte every 0.1 s for 1.2 s, then what came back. */
static void drip(int fd, struct buf *got)
{
    for (int i = 0; i < 12; i++) {
        wire_say(fd, "X");
        wire_wait_ms(100);
    }
    wire_read_all(fd, got);
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
    fd = start_and_connect(&patient, &c);
    drip(fd, &got);
    part(&patient, fd, &got);
}

static void a_body_sent_byte_by_byte_is_closed_without_an_answer(void **state)
{
    struct fixture patient = {0};
    struct http_config c = small_config(&patient);
    struct buf got = {0};
    int fd;

    (void)state;
    c.body_timeout_ms = 700;
    fd = start_and_connect(&patient, &c);
    wire_say(fd, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
    drip(fd, &got);
    assert_int_equal(atomic_load(&patient.ran), 0);
    part(&patient, fd, &got);
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
    fd = start_and_connect(&patient, &c);
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
    fd = start_and_connect(&patient, &c);
    wire_say(fd, "POST /big HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\nX");
    assert_true(wire_read_all(fd, &got)); /* it has a quarter of an hour for 60 MB that do come */
    assert_int_equal(atomic_load(&patient.ran), 0);
    part(&patient, fd, &got);
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
    fd = start_and_connect(&brief, &c);
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
    fd = start_and_connect(&brief, &c);
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
    fd = start_and_connect(&homeless, &c);
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
