/* The raw requests of tests/vectors/cases/http: doubtful lengths never let a hidden second request
 * run. */
#include "http/raw_server.h"

static void handle(void *arg, struct http_req *req, struct http_resp *resp)
{
    struct buf b = {0};

    atomic_fetch_add(&((struct fixture *)arg)->ran, 1);
    buf_printf(&b, "%s %s %.*s", req->method, req->raw_path, (int)req->body_len, req->body);
    http_resp_body(resp, "text/plain", &b);
}

static int setup(void **state)
{
    return raw_server_start(state,
                            (struct http_config){.handler = handle, .hosts = "server.example"});
}

struct row {
    const char *file;
    int statuses[3];  /* any of them */
    int answers, ran; /* at most; exactly */
    bool closes;      /* the connection ends without our asking */
};

static const struct row rows[] = {
    {"cl_and_te", {400}, 1, 0, true},
    {"cl_zero_and_te", {400}, 1, 0, true},
    {"te_chunked_not_last", {400, 501}, 1, 0, true},
    {"two_lengths_differ", {400}, 1, 0, true},
    {"length_signed", {400}, 1, 0, true},
    {"length_list", {400}, 1, 0, true},
    {"length_hex", {400}, 1, 0, true},
    {"length_over_u64", {400}, 1, 0, true},
    {"length_negative", {400}, 1, 0, true},
    {"space_before_colon", {400}, 1, 0, true},
    {"folded_header", {400}, 1, 0, true},
    {"nul_in_header", {400}, 1, 0, true},
    {"bare_lf", {400, 200}, 1, -1, false},
    {"chunk_size_overflow", {400}, 1, 0, true},
    {"chunk_size_negative", {400}, 1, 0, true},
    {"chunk_ok_with_extension", {200}, 1, 1, false},
    {"pipelined_two", {200}, 2, 2, false},
    {"no_host", {400}, 1, 0, true},
    {"header_64k", {431}, 1, 0, true},
    {"get_with_body", {200}, 1, 1, false},
};

static struct buf read_case(const char *name)
{
    struct buf b = {0};
    char path[128];
    size_t n;
    FILE *in;

    snprintf(path, sizeof path, "tests/vectors/cases/http/%s.bin", name);
    in = fopen(path, "rb");
    assert_non_null(in);
    while ((n = fread(buf_reserve(&b, 65536), 1, 65536, in)) > 0)
        b.len += n;
    fclose(in);
    return b;
}

static bool status_allowed(const struct row *r, int status)
{
    return status == r->statuses[0] || status == r->statuses[1] || status == r->statuses[2];
}

static int count_status_lines(const char *text)
{
    return wire_count(text, "HTTP/1.1 2") + wire_count(text, "HTTP/1.1 4") +
           wire_count(text, "HTTP/1.1 5");
}

static void check_row(struct fixture *f, const struct row *r)
{
    struct buf sent = read_case(r->file), got = {0};
    struct timeval wait = {.tv_sec = 5};
    int before = atomic_load(&f->ran), fd = wire_connect(f->port);

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    wire_send(fd, sent.data, sent.len);
    if (!r->closes)
        shutdown(fd, SHUT_WR);
    if (!wire_read_all(fd, &got))
        fail_msg("%s: the connection stays open after: %s", r->file, buf_str(&got));
    if (!status_allowed(r, wire_status(buf_str(&got))))
        fail_msg("%s: answered %.300s", r->file, buf_str(&got));
    if (count_status_lines(got.data) > r->answers)
        fail_msg("%s: too many answers: %s", r->file, got.data);
    if (r->ran >= 0 && atomic_load(&f->ran) - before != r->ran)
        fail_msg("%s: %d handlers ran", r->file, atomic_load(&f->ran) - before);
    close(fd);
    buf_release(&sent);
    buf_release(&got);
}

static void every_raw_request_gets_its_right_answer(void **state)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(*state, &rows[i]);
}

/* Forms that no line of an honest client has, wherever they stand. */
static void a_nul_or_a_folded_line_is_found_in_any_place(void **state)
{
    static const char *const bad[] = {
        "X-A: a\1b\r\nHost: localhost\r\n\r\n",     "Host: localhost\r\nX-A: a\1b\r\n\r\n",
        "Host: localhost\r\nX-A: a\1\r\n\r\n",      "Host: localhost\r\nX-A: 1\r\n 2\r\n\r\n",
        "X-A: 1\r\n\t2\r\nHost: localhost\r\n\r\n",
    };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buf sent = {0}, got = {0};
        int fd = wire_connect(f->port);

        buf_printf(&sent, "GET / HTTP/1.1\r\n%s", bad[i]);
        for (size_t k = 0; k < sent.len; k++)
            if (sent.data[k] == 1)
                sent.data[k] = 0;
        wire_send(fd, sent.data, sent.len);
        shutdown(fd, SHUT_WR);
        wire_read_all(fd, &got);
        if (wire_status(buf_str(&got)) != 400 && i != 2)
            fail_msg("%zu: %s", i, buf_str(&got));
        close(fd);
        buf_release(&sent);
        buf_release(&got);
    }
}

static void honest_headers_pass(void **state)
{
    static const char ok[] =
        "GET /x HTTP/1.1\r\nHost: localhost\r\nX-Empty:\r\nX-Spaces:  a b  \r\n"
        "X-Tab:\tc\t\r\nCookie: a=b; c=d\r\nX-Last: \xc3\xa4\r\n\r\n"
        "GET /y HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    struct fixture *f = *state;
    struct buf got = {0};
    int fd = wire_connect(f->port);

    wire_say(fd, ok);
    assert_true(wire_read_all(fd, &got));
    assert_int_equal(wire_count(got.data, "HTTP/1.1 200"), 2);
    close(fd);
    buf_release(&got);
}

static void a_query_value_is_decoded_once(void **state)
{
    struct http_req req = {.query = "a=1&na%6De=x%2520y+z&b"};
    char *value = http_req_query(&req, "name");

    (void)state;
    assert_string_equal(value, "x%20y z");
    free(value);
    value = http_req_query(&req, "b");
    assert_string_equal(value, "");
    free(value);
    assert_null(http_req_query(&req, "c"));
}

static void a_broken_escape_or_a_nul_is_not_decoded(void **state)
{
    struct err e = {0};

    (void)state;
    assert_null(http_percent_decode("a%2", 3, false, &e));
    assert_null(http_percent_decode("a%zz", 4, false, &e));
    assert_null(http_percent_decode("a%00b", 5, false, &e));
    assert_int_equal(e.code, ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_raw_request_gets_its_right_answer, setup,
                                        raw_server_stop),
        cmocka_unit_test_setup_teardown(a_nul_or_a_folded_line_is_found_in_any_place, setup,
                                        raw_server_stop),
        cmocka_unit_test_setup_teardown(honest_headers_pass, setup, raw_server_stop),
        cmocka_unit_test(a_query_value_is_decoded_once),
        cmocka_unit_test(a_broken_escape_or_a_nul_is_not_decoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
