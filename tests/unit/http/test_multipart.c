/* multipart/form-data: where parts begin and end, what their headers say, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "http/multipart.h"

#define TYPE "multipart/form-data; boundary=b"
#define DISP "Content-Disposition: form-data; "

/* Copied to the end of a block of its own, so that a sanitizer sees every byte too much. */
static char *copy(const char *text, size_t len)
{
    char *body = malloc(len ? len : 1);

    assert_non_null(body);
    memcpy(body, text, len);
    return body;
}

/* Parses it all; "name[filename]=data;" of each part, then "." or "!". */
static const char *parse(const char *type, const char *text, size_t len, char out[512])
{
    char *body = copy(text, len);
    struct multipart m;
    struct multipart_part p;
    struct err e = {0};
    size_t at = 0;
    int rc = multipart_begin(&m, type, body, len, &e);

    while (rc == 0 && (rc = multipart_next(&m, &p, &e)) > 0) {
        at += (size_t)snprintf(out + at, 512 - at, "%s", p.name);
        if (p.has_filename)
            at += (size_t)snprintf(out + at, 512 - at, "[%s]", p.filename);
        at += (size_t)snprintf(out + at, 512 - at, "=%.*s;", (int)p.len, p.data);
        rc = 0;
    }
    snprintf(out + at, 512 - at, rc == 0 ? "." : "!");
    assert_true(rc == 0 || (e.msg[0] && (e.code == ERR_ARG || e.code == ERR_FORMAT)));
    free(body);
    return out;
}

static void expect(const char *text, const char *right)
{
    char out[512];

    assert_string_equal(parse(TYPE, text, strlen(text), out), right);
}

static void parts_come_in_order_without_a_copy(void **state)
{
    (void)state;
    expect("--b\r\n" DISP "name=\"a\"\r\n\r\n1\r\n--b\r\n" DISP
           "name=\"f\"; filename=\"x.txt\"\r\nContent-Type: text/plain\r\n\r\n2\r\n3\r\n--b--\r\n",
           "a=1;f[x.txt]=2\r\n3;.");
}

static void what_stands_before_and_behind_is_skipped(void **state)
{
    (void)state;
    expect("a preamble\r\n--b\r\n" DISP "name=a\r\n\r\n1\r\n--b--\r\nan epilogue --b", "a=1;.");
    expect("--b--", ".");
    expect("--b \t\r\n" DISP "name=a\r\n\r\n\r\n--b--", "a=;.");
}

static void an_empty_part_may_share_its_line_end(void **state)
{
    (void)state;
    expect("--b\r\n" DISP "name=a\r\n\r\n--b--", "a=;.");
    expect("--b\r\n" DISP "name=a\r\n\r\n--b\r\n" DISP "name=c\r\n\r\n\r\n\r\n--b--",
           "a=;c=\r\n;.");
}

static void data_may_look_like_a_boundary(void **state)
{
    (void)state;
    expect("--b\r\n" DISP "name=a\r\n\r\n--bc\r\n--bb\r\n--\r\n--b x\r\n--b--",
           "a=--bc\r\n--bb\r\n--\r\n--b x;.");
}

static void every_cut_body_is_refused(void **state)
{
    static const char whole[] = "--b\r\n" DISP "name=a; filename=\"q\"\r\n\r\n1\r\n--b--";
    char out[512];

    (void)state;
    for (size_t n = 0; n < sizeof whole - 1; n++)
        assert_non_null(strchr(parse(TYPE, whole, n, out), '!'));
    assert_string_equal(parse(TYPE, whole, sizeof whole - 1, out), "a[q]=1;.");
}

static void headers_that_are_wrong_are_refused(void **state)
{
    (void)state;
    expect("--b\r\n\r\n1\r\n--b--", "!");
    expect("--b\r\nno colon\r\n\r\n1\r\n--b--", "!");
    expect("--b\r\nContent-Disposition: attachment; name=a\r\n\r\n1\r\n--b--", "!");
    expect("--b\r\n" DISP "filename=a\r\n\r\n1\r\n--b--", "!");
    expect("--b\r\n" DISP "name=\"a\r\n\r\n1\r\n--b--", "!");
    expect("--b\r\n" DISP "name=\"\xff\"\r\n\r\n1\r\n--b--", "!");
    expect("--b\r\n" DISP "name=a\r\nContent-Transfer-Encoding: base64\r\n\r\n1\r\n--b--", "!");
    expect("--b\r\n" DISP "name=a\r\ncontent-transfer-encoding: 8BIT\r\n\r\n1\r\n--b--", "a=1;.");
}

static void names_are_unquoted_and_filenames_lose_their_path(void **state)
{
    (void)state;
    expect("--b\r\n" DISP "name=\"a\\\"b\\\\\"; FILENAME=\"/x/y%22z\\\"\"\r\n\r\n\r\n--b--",
           "a\"b\\[y\"z\"]=;.");
    expect("--b\r\n" DISP "name=a; filename=\"c:\\dir\\f\x01.txt\"\r\n\r\n\r\n--b--",
           "a[f_.txt]=;.");
    expect("--b\r\n" DISP "name=a; filename=\"..\"\r\n\r\n\r\n--b--", "a[..]=;.");
}

static void the_content_type_must_name_a_boundary(void **state)
{
    static const char *const bad[] = {
        "",
        "multipart/form-data",
        "multipart/mixed; boundary=b",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"b",
        "multipart/form-data; boundary=\"b \"",
        "multipart/form-data; "
        "boundary=bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"};
    static const char body[] = "--b\r\n" DISP "name=a\r\n\r\n1\r\n--b--";
    char out[512];

    (void)state;
    assert_string_equal(parse(NULL, body, sizeof body - 1, out), "!");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_string_equal(parse(bad[i], body, sizeof body - 1, out), "!");
    assert_string_equal(
        parse("MULTIPART/form-data ; x=\"y;\" ; Boundary=\"b\"", body, sizeof body - 1, out),
        "a=1;.");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_come_in_order_without_a_copy),
        cmocka_unit_test(what_stands_before_and_behind_is_skipped),
        cmocka_unit_test(an_empty_part_may_share_its_line_end),
        cmocka_unit_test(data_may_look_like_a_boundary),
        cmocka_unit_test(every_cut_body_is_refused),
        cmocka_unit_test(headers_that_are_wrong_are_refused),
        cmocka_unit_test(names_are_unquoted_and_filenames_lose_their_path),
        cmocka_unit_test(the_content_type_must_name_a_boundary),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
