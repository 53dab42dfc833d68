/* Clients that are slow, idle or many, and the stop of a server. */
#include "http/server_fixture.h"

/* A server with settings of its own, and one client of it. */
struct guest {
    struct fixture host;
    struct http_config c; /* to be changed before the client comes */
    int fd;               /* of the client; -1 before */
    struct buf got;       /* what came back */
};

static int guest_expected(void **state)
{
    struct guest *g = calloc(1, sizeof *g);

    assert_non_null(g);
    g->c = small_config(&g->host);
    g->fd = -1;
    *state = g;
    return 0;
}

static void guest_comes(struct guest *g, const char *says)
{
    start(&g->host, &g->c);
    g->fd = wire_connect(g->host.port);
    wire_say(g->fd, says);
}

static void stop_host(struct guest *g, int grace_ms)
{
    http_server_stop(g->host.server, grace_ms);
    g->host.server = NULL;
}

static int guest_gone(void **state)
{
    struct guest *g = *state;

    if (g->fd >= 0)
        close(g->fd);
    buf_release(&g->got);
    stop_host(g, 100);
    free(g);
    return 0;
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
    struct guest *g = *state;

    g->c.head_timeout_ms = 700;
    guest_comes(g, "");
    drip(g->fd, &g->got);
}

static void a_body_sent_byte_by_byte_is_closed_without_an_answer(void **state)
{
    struct guest *g = *state;

    g->c.body_timeout_ms = 700;
    guest_comes(g, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
    drip(g->fd, &g->got);
    assert_int_equal(atomic_load(&g->host.ran), 0);
}

static void a_body_in_chunks_has_time_as_long_as_bytes_come(void **state)
{
    struct guest *g = *state;
    enum { PIECE = 65536, PIECES = 30 };
    char *piece = calloc(1, PIECE);

    g->c.body_timeout_ms = 1500; /* half of what the body takes */
    guest_comes(g, "POST /big HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" CLOSE);
    for (int i = 0; i < PIECES; i++) {
        wire_say(g->fd, "10000\r\n");
        wire_send(g->fd, piece, PIECE);
        wire_say(g->fd, "\r\n");
        wire_wait_ms(100);
    }
    wire_say(g->fd, "0\r\n\r\n");
    free(piece);
    assert_true(wire_read_all(g->fd, &g->got));
    assert_int_equal(wire_status(buf_str(&g->got)), 200);
    assert_non_null(strstr(g->got.data, "len=1966080"));
}

static void a_large_body_that_is_announced_and_does_not_come_is_closed(void **state)
{
    struct guest *g = *state;

    g->c.body_timeout_ms = 300;
    guest_comes(g, "POST /big HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\nX");
    assert_true(
        wire_read_all(g->fd, &g->got)); /* it has a quarter of an hour for 60 MB that do come */
    assert_int_equal(atomic_load(&g->host.ran), 0);
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
    struct guest *g = *state;
    int idle[80];
    struct buf other;

    g->c.max_connections = 40;
    guest_comes(g, "GET /slow HTTP/1.1\r\n" CLOSE);
    wait_until(&g->host.ran, 1);
    for (int i = 0; i < 80; i++)
        idle[i] = wire_connect(g->host.port);
    other = ask(&g->host, "GET /hello HTTP/1.1\r\n" CLOSE);
    assert_int_equal(wire_status(other.data), 200);
    buf_release(&other);
    assert_true(wire_read_all(g->fd, &g->got)); /* who is being answered stays */
    assert_non_null(strstr(g->got.data, "slept"));
    for (int i = 0; i < 80; i++)
        close(idle[i]);
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
    struct guest *g = *state;

    guest_comes(g, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wait_until(&g->host.ran, 1);
    stop_host(g, 50);
    assert_int_equal(atomic_load(&g->host.gone_seen), 1);
    wire_read_all(g->fd, &g->got);
    assert_int_equal(wire_status(buf_str(&g->got)), 200);
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
    struct guest *g = *state;
    enum { CLIENTS = 4 };
    pthread_t clients[CLIENTS];

    start(&g->host, &g->c);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, ask_on_and_on, &g->host), 0);
    wait_until(&g->host.ran, CLIENTS);
    stop_host(g, 50);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i], NULL);
    assert_int_equal(atomic_load(&g->host.ran), CLIENTS);
}

/* Two requests on one connection, the second while the server stops. */
static void a_request_during_a_stop_is_refused_and_the_connection_closes(void **state)
{
    struct guest *g = *state;

    guest_comes(g, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n"
                   "GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wait_until(&g->host.ran, 1);
    stop_host(g, 50);
    wire_read_all(g->fd, &g->got);
    assert_int_equal(wire_status(buf_str(&g->got)), 200);
    assert_non_null(strstr(g->got.data, "Connection: close"));
    assert_int_equal(wire_count(g->got.data, "HTTP/1.1 200"), 1);
    assert_int_equal(atomic_load(&g->host.ran), 1);
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
    struct guest *g = *state;
    enum { OPEN = 200 };
    int busy, open[OPEN];
    pthread_t stopper;

    guest_comes(g, "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhe");
    busy = wire_connect(g->host.port);
    for (int i = 0; i < OPEN; i++)
        open[i] = wire_connect(g->host.port);
    wire_say(busy, "GET /wait HTTP/1.1\r\n" CLOSE);
    wait_until(&g->host.ran, 1);
    assert_int_equal(pthread_create(&stopper, NULL, stop_patiently, g->host.server), 0);
    assert_int_equal(refused_at_last(open, OPEN), 503);
    wire_say(g->fd, "llo"); /* its header came before the stop */
    assert_true(wire_read_all(g->fd, &g->got));
    assert_int_equal(wire_status(buf_str(&g->got)), 503);
    assert_non_null(strstr(g->got.data, "Connection: close"));
    wire_reset(busy);
    pthread_join(stopper, NULL);
    g->host.server = NULL;
    for (int i = 0; i < OPEN; i++)
        close(open[i]);
}

static void a_large_body_without_a_place_for_it_is_refused(void **state)
{
    struct guest *g = *state;
    size_t n = (size_t)4 << 20;
    char *body = calloc(1, n);
    struct buf small;

    g->c.spool_dir = "/no/such/directory";
    guest_comes(g, "POST /big HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4194304\r\n\r\n");
    wire_send(g->fd, body, n);
    free(body);
    wire_read_all(g->fd, &g->got);
    assert_int_equal(wire_status(buf_str(&g->got)), 503);
    assert_int_equal(atomic_load(&g->host.ran), 0);
    small = ask(&g->host, "POST /small HTTP/1.1\r\nContent-Length: 2\r\n" CLOSE "ok");
    assert_int_equal(wire_status(small.data), 200);
    buf_release(&small);
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
#define T(f)     cmocka_unit_test_setup_teardown(f, setup, teardown)
#define GUEST(f) cmocka_unit_test_setup_teardown(f, guest_expected, guest_gone)
    const struct CMUnitTest tests[] = {
        GUEST(a_header_that_never_ends_is_closed),
        GUEST(a_body_sent_byte_by_byte_is_closed_without_an_answer),
        GUEST(a_body_in_chunks_has_time_as_long_as_bytes_come),
        GUEST(a_large_body_that_is_announced_and_does_not_come_is_closed),
        T(a_thousand_idle_connections_disturb_nobody),
        GUEST(idle_connections_give_way_when_places_run_out),
        T(handlers_that_block_do_not_block_others),
        GUEST(a_stop_ends_running_handlers_and_says_so_to_them),
        GUEST(who_asks_on_and_on_does_not_hold_up_a_stop),
        GUEST(a_request_during_a_stop_is_refused_and_the_connection_closes),
        GUEST(what_comes_while_others_are_let_end_is_refused),
        GUEST(a_large_body_without_a_place_for_it_is_refused),
        T(a_taken_port_is_a_conflict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
