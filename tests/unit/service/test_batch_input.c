/* Lines of a batch's input: where they begin and end, and how they are judged. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "service/batch_input.h"

enum { LINE_MAX_BYTES = 32 };

static int file_of(const char *text, size_t len)
{
    int fd = memfd_create("lines", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, text, len, 0), (ssize_t)len);
    return fd;
}

/* "number:text|" of each line from a place on; a line that is too large is "number:>|". */
static void read_from(int fd, int64_t offset, int64_t line, struct buf *out)
{
    struct batch_reader rd;
    struct batch_raw raw;
    struct err e = {0};

    assert_int_equal(batch_reader_begin(&rd, fd, LINE_MAX_BYTES, offset, line, &e), 0);
    while (batch_reader_next(&rd, &raw, &e) > 0) {
        buf_printf(out, "%d:", (int)raw.line);
        if (raw.too_large)
            buf_add_char(out, '>');
        else
            buf_add(out, raw.text, raw.len);
        buf_add_char(out, '|');
    }
    batch_reader_end(&rd);
}

static void expect(const char *text, const char *right)
{
    struct buf out = {0};
    int fd = file_of(text, strlen(text));

    read_from(fd, 0, 1, &out);
    assert_string_equal(buf_str(&out), right);
    buf_release(&out);
    close(fd);
}

static void lines_end_with_lf_or_crlf_or_the_file(void **state)
{
    (void)state;
    expect("a\nb\r\nc", "1:a|2:b|3:c|");
    expect("a\n", "1:a|");
    expect("", "");
    expect("a\rb\n", "1:a\rb|");
}

static void blank_lines_count_and_are_skipped(void **state)
{
    (void)state;
    expect("\n \t\r\na\n\n\nb\n\n", "3:a|6:b|");
    expect(" a \n", "1: a |");
}

static void a_byte_order_mark_is_no_part_of_the_first_line(void **state)
{
    (void)state;
    expect("\xef\xbb\xbf"
           "a\n\xef\xbb\xbf"
           "b\n",
           "1:a|2:\xef\xbb\xbf"
           "b|");
    expect("\xef\xbb\xbf", "");
    expect("\xef\xbb", "1:\xef\xbb|");
}

static void a_line_may_have_exactly_its_size(void **state)
{
    char text[3 * LINE_MAX_BYTES + 8], right[3 * LINE_MAX_BYTES];

    (void)state;
    snprintf(text, sizeof text, "%032d\r\n%033d\nc", 1, 2);
    snprintf(right, sizeof right, "1:%032d|2:>|3:c|", 1);
    expect(text, right);
}

static void a_line_of_any_length_takes_the_memory_of_one(void **state)
{
    size_t n = 300000;
    char *text = malloc(n + 4);
    struct buf out = {0};
    int fd;

    (void)state;
    assert_non_null(text);
    memset(text, 'x', n);
    memcpy(text + n, "\nb\n", 3);
    fd = file_of(text, n + 3);
    read_from(fd, 0, 1, &out);
    assert_string_equal(buf_str(&out), "1:>|2:b|");
    buf_reset(&out);
    close(fd);
    fd = file_of(text, n); /* the last one */
    read_from(fd, 0, 1, &out);
    assert_string_equal(buf_str(&out), "1:>|");
    buf_release(&out);
    close(fd);
    free(text);
}

/* From the place that each line names, the rest reads the same. */
static void reading_goes_on_from_every_recorded_place(void **state)
{
    static const char text[] = "\xef\xbb\xbf"
                               "a\n\nbb\r\n0123456789012345678901234567890123456789\nccc\n\n d";
    struct buf whole = {0};
    struct batch_reader rd;
    struct batch_raw raw;
    struct err e = {0};
    int fd = file_of(text, sizeof text - 1), n = 0;

    (void)state;
    read_from(fd, 0, 1, &whole);
    assert_string_equal(buf_str(&whole), "1:a|3:bb|4:>|5:ccc|7: d|");
    assert_int_equal(batch_reader_begin(&rd, fd, LINE_MAX_BYTES, 0, 1, &e), 0);
    for (const char *rest = buf_str(&whole); batch_reader_next(&rd, &raw, &e) > 0; n++) {
        struct buf out = {0};

        rest = strchr(rest, '|') + 1;
        read_from(fd, raw.next_offset, raw.next_line, &out);
        assert_string_equal(buf_str(&out), rest);
        buf_release(&out);
    }
    assert_int_equal(n, 5);
    batch_reader_end(&rd);
    buf_release(&whole);
    close(fd);
}

/* ---- judging ---- */

static const char *code_of(const char *text, json_t *seen)
{
    struct batch_raw raw = {.text = text, .len = strlen(text), .line = 7};
    struct batch_line l;
    const char *code;

    batch_line_judge(&l, &raw, "/v1/completions", seen);
    assert_int_equal(l.number, 7);
    assert_true(!l.code || l.message[0]);
    code = l.code ? l.code : "ok";
    batch_line_release(&l);
    return code;
}

static void the_first_fault_in_the_documented_order_is_told(void **state)
{
    static const struct {
        const char *text, *code;
    } cases[] = {
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}", "ok"},
        {"{", "invalid_json"},
        {"{\"a\":1,\"a\":2}", "invalid_json"},
        {"\"text\"", "invalid_line"},
        {"{\"custom_id\":1,\"more\":1}", "invalid_line"},
        {"{\"custom_id\":\"\",\"method\":\"GET\"}", "invalid_custom_id"},
        {"{\"custom_id\":\"b\",\"method\":\"post\",\"url\":\"x\"}", "invalid_method"},
        {"{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/completions/\",\"body\":1}",
         "invalid_url"},
        {"{\"custom_id\":\"d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":[]}",
         "invalid_body"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
         "{\"stream\":true}}",
         "duplicate_custom_id"},
        {"{\"custom_id\":\"d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}",
         "duplicate_custom_id"},
        {"{\"custom_id\":\"e\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
         "{\"stream\":true}}",
         "stream_not_supported"},
        {"{\"custom_id\":\"f\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
         "{\"stream\":false}}",
         "ok"},
    };
    json_t *seen = json_object();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(code_of(cases[i].text, seen), cases[i].code);
    assert_string_equal(code_of(cases[0].text, NULL), "ok"); /* nothing seen, nothing repeated */
    json_decref(seen);
}

static void a_custom_id_has_512_characters_of_any_length(void **state)
{
    struct buf text = {0};

    (void)state;
    for (int n = 512; n <= 513; n++) {
        buf_reset(&text);
        buf_add_str(
            &text, "{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{},\"custom_id\":\"");
        for (int i = 0; i < n; i++)
            buf_add_str(&text, i % 2 ? "\xf0\x9f\x9a\x80" : "\\u0000");
        buf_add_str(&text, "\"}");
        assert_string_equal(code_of(buf_str(&text), NULL), n == 512 ? "ok" : "invalid_custom_id");
    }
    buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_end_with_lf_or_crlf_or_the_file),
        cmocka_unit_test(blank_lines_count_and_are_skipped),
        cmocka_unit_test(a_byte_order_mark_is_no_part_of_the_first_line),
        cmocka_unit_test(a_line_may_have_exactly_its_size),
        cmocka_unit_test(a_line_of_any_length_takes_the_memory_of_one),
        cmocka_unit_test(reading_goes_on_from_every_recorded_place),
        cmocka_unit_test(the_first_fault_in_the_documented_order_is_told),
        cmocka_unit_test(a_custom_id_has_512_characters_of_any_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
