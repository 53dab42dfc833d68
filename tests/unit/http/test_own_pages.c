/* What the HTTP library cannot read: one answer in our form, then the end; the server lives on. */
#include "http/raw_server.h"

static void handle(void *arg, struct http_req *req, struct http_resp *resp)
{
    (void)req;
    atomic_fetch_add(&((struct fixture *)arg)->ran, 1);
    http_resp_text(resp, "text/plain", "here");
}

static int setup(void **state)
{
    return raw_server_start(
        state, (struct http_config){.handler = handle, .cors_origins = "http://app.example"});
}

#define HOST    "Host: localhost\r\n"
#define CHUNKED "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"

/* A request: `head`, then `piece` so many times, then `tail`. */
struct broken {
    const char *head, *piece, *tail;
    int times, status;
    const char *says;
};

static const struct broken unreadable[] = {
    {"GET /x\r\n\r\n", "", "", 0, 400, "malformed"},
    {"GET / HTPP/1.1\r\n" HOST "\r\n", "", "", 0, 400, "malformed"},
    {"GET / HTTP/0.9\r\n" HOST "\r\n", "", "", 0, 505, "Only HTTP/1.1"},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", "", 0, 505, "Only HTTP/1.1"},
    {"GET / HTTP/1.1\r\n" HOST "no colon\r\n\r\n", "", "", 0, 400, "malformed"},
    {"GET /", "a", " HTTP/1.1\r\n" HOST "\r\n", 70000, 414, "request line"},
    {"GET / HTTP/1.1\r\n" HOST "X: ", "a", "\r\n\r\n", 70000, 431, "header"},
    {"GET / HTTP/1.1\r\n" HOST, "X: a\r\n", "\r\n", 4000, 431, "header"},
    {"GET /?", "a&", " HTTP/1.1\r\n" HOST "\r\n", 12000, 431, "header"},
    {"GET / HTTP/1.1\r\n" HOST "Cookie: ", "a=b;", "\r\n\r\n", 7000, 431, "header"},
    {"POST / HTTP/1.1\r\n" HOST "Content-Length: abc\r\n\r\n", "", "", 0, 400, "malformed"},
    {"POST / HTTP/1.1\r\n" HOST "Content-Length: ", "9", "\r\n\r\n{}", 30, 400, "18 digits"},
    {CHUNKED "zz\r\n{}\r\n0\r\n\r\n", "", "", 0, 400, "chunks"},
    {CHUNKED "-1\r\n{}\r\n0\r\n\r\n", "", "", 0, 400, "chunks"},
    {CHUNKED "11111111111111111\r\n{}\r\n0\r\n\r\n", "", "", 0, 400, "64 bits"},
    {CHUNKED "2\r\n{}0\r\n\r\n", "", "", 0, 400, "chunks"},
    {CHUNKED "2;", "x", "\r\n{}\r\n0\r\n\r\n", 70000, 400, "chunks"},
    {CHUNKED "2\r\n{}\r\n0\r\nX: ", "x", "\r\n\r\n", 70000, 431, "trailer"},
};

static struct buf bytes_of(const struct broken *b)
{
    struct buf out = {0};

    buf_add_str(&out, b->head);
    for (int i = 0; i < b->times; i++)
        buf_add_str(&out, b->piece);
    buf_add_str(&out, b->tail);
    assert_false(out.failed);
    return out;
}

static struct buf answer_to(struct fixture *f, const struct buf *sent)
{
    struct buf got = {0};
    int fd = wire_connect(f->port);

    wire_send(fd, sent->data, sent->len);
    if (!wire_read_all(fd, &got))
        fail_msg("%.60s: no end after: %.300s", sent->data, buf_str(&got));
    close(fd);
    return got;
}

static void check(struct fixture *f, const struct broken *b)
{
    struct buf sent = bytes_of(b), got = answer_to(f, &sent);
    const char *body = strstr(buf_str(&got), "\r\n\r\n");

    if (wire_status(buf_str(&got)) != b->status || !body || !strstr(body, b->says))
        fail_msg("%.60s: answered %.400s", sent.data, buf_str(&got));
    if (strncmp(body + 4, "{\"detail\":\"", 11) != 0 || strstr(body + 4, "\r\n"))
        fail_msg("%.60s: not one body of ours: %.400s", sent.data, body);
    assert_non_null(strstr(got.data, "\r\nContent-Type: application/json\r\n"));
    assert_non_null(strstr(got.data, "\r\nX-Request-ID: req_"));
    assert_non_null(strstr(got.data, "\r\nDate: "));
    assert_non_null(strstr(got.data, "\r\nConnection: close\r\n"));
    buf_release(&sent);
    buf_release(&got);
}

static void what_the_library_cannot_read_is_refused_once_in_our_form(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof unreadable / sizeof *unreadable; i++)
        check(f, &unreadable[i]);
    assert_int_equal(atomic_load(&f->ran), 0);
}

static void the_server_answers_others_after_each_of_them(void **state)
{
    struct fixture *f = *state;
    struct buf good = {0};

    buf_add_str(&good, "GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    for (size_t i = 0; i < sizeof unreadable / sizeof *unreadable; i++) {
        struct buf sent = bytes_of(&unreadable[i]), got = {0};
        int fd = wire_connect(f->port);

        wire_send(fd, sent.data, sent.len);
        if (i % 2)
            wire_reset(fd);
        else
            close(fd);
        got = answer_to(f, &good);
        assert_int_equal(wire_status(buf_str(&got)), 200);
        buf_release(&sent);
        buf_release(&got);
    }
    buf_release(&good);
}

static void an_answer_before_the_unreadable_request_still_arrives(void **state)
{
    struct buf sent = {0}, got;

    buf_add_str(&sent, "GET / HTTP/1.1\r\n" HOST "\r\n" CHUNKED "zz\r\n");
    got = answer_to(*state, &sent);
    assert_int_equal(wire_status(buf_str(&got)), 200);
    assert_int_equal(wire_count(got.data, "\r\n\r\nhere"), 1);
    assert_int_equal(wire_count(got.data, "HTTP/1.1 400 Bad Request\r\n"), 1);
    buf_release(&sent);
    buf_release(&got);
}

static void a_listed_origin_may_read_the_refusal_of_its_broken_body(void **state)
{
    struct buf sent = {0}, got;

    buf_add_str(&sent, "POST / HTTP/1.1\r\n" HOST "Origin: http://app.example\r\n"
                       "X-Request-ID: mine\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
    got = answer_to(*state, &sent);
    assert_non_null(strstr(got.data, "\r\nAccess-Control-Allow-Origin: http://app.example\r\n"));
    assert_non_null(strstr(got.data, "\r\nX-Request-ID: mine\r\n"));
    buf_release(&sent);
    buf_release(&got);
}

static void a_stop_comes_in_the_middle_of_broken_requests(void **state)
{
    enum { ROUNDS = 40, AT_ONCE = 9 };

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        void *own = NULL;
        int fds[AT_ONCE];

        assert_int_equal(setup(&own), 0);
        for (int i = 0; i < AT_ONCE; i++) {
            struct buf sent = bytes_of(
                &unreadable[(size_t)(round + 2 * i) % (sizeof unreadable / sizeof *unreadable)]);

            fds[i] = wire_connect(((struct fixture *)own)->port);
            wire_send(fds[i], sent.data, sent.len);
            buf_release(&sent);
        }
        assert_int_equal(raw_server_stop(&own), 0);
        for (int i = 0; i < AT_ONCE; i++)
            close(fds[i]);
    }
}

/* The address would end at the NUL, or begin after the second space. */
static void a_request_line_with_doubtful_parts_is_refused(void **state)
{
    static const char nul[] = "GET /a\0b HTTP/1.1\r\n" HOST "\r\n";
    static const char method[] = "G\0T /a HTTP/1.1\r\n" HOST "\r\n";
    static const char space[] = "GET /a b HTTP/1.1\r\n" HOST "\r\n";
    const struct buf sent[] = {{.data = (char *)nul, .len = sizeof nul - 1},
                               {.data = (char *)method, .len = sizeof method - 1},
                               {.data = (char *)space, .len = sizeof space - 1}};

    for (int i = 0; i < 3; i++) {
        struct buf got = answer_to(*state, &sent[i]);

        assert_int_equal(wire_status(buf_str(&got)), 400);
        assert_non_null(strstr(got.data, "one space each"));
        buf_release(&got);
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, raw_server_stop)
    const struct CMUnitTest tests[] = {
        T(what_the_library_cannot_read_is_refused_once_in_our_form),
        T(the_server_answers_others_after_each_of_them),
        T(an_answer_before_the_unreadable_request_still_arrives),
        T(a_listed_origin_may_read_the_refusal_of_its_broken_body),
        T(a_request_line_with_doubtful_parts_is_refused),
        cmocka_unit_test(a_stop_comes_in_the_middle_of_broken_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
