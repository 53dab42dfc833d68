/* The frame of the command line: options, help, errors, tables, units. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "cli/cli.h"

struct screen {
    struct cli cli;
    char *out, *err;
    size_t out_len, err_len;
};

static int nothing(struct cli *cli, int argc, char **argv)
{
    const struct cli_opt none[] = {{0}};
    int rc = cli_options(cli, &argc, argv, none, 0, 1);

    return rc >= 0 ? rc : EXIT_OK;
}

static const struct cli_cmd commands[] = {{"nothing", "[WORD]", "does nothing at all", nothing},
                                          {0}};

static void open_screen(struct screen *s)
{
    *s = (struct screen){.cli.cmd = &commands[0]};
    s->cli.out = open_memstream(&s->out, &s->out_len);
    s->cli.err = open_memstream(&s->err, &s->err_len);
}

static void flush(struct screen *s)
{
    fflush(s->cli.out);
    fflush(s->cli.err);
}

static void close_screen(struct screen *s)
{
    fclose(s->cli.out);
    fclose(s->cli.err);
    free(s->out);
    free(s->err);
}

struct values {
    const char *url;
    int64_t count;
    double heat;
    bool fast;
    int argc;
    char *argv[16];
};

/* argv is text split at spaces. */
static int parse(struct screen *s, struct values *v, char *text, int min, int max)
{
    const struct cli_opt opts[] = {
        {.name = "url", .arg = "URL", .help = "where", .str = &v->url},
        {.name = "count", .arg = "N", .help = "how many", .num = &v->count},
        {.name = "heat", .arg = "T", .help = "how warm", .real = &v->heat},
        {.name = "fast", .help = "no waiting", .flag = &v->fast},
        {0},
    };

    v->argc = 0;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        v->argv[v->argc++] = word;
    v->argv[v->argc] = NULL;
    return cli_options(&s->cli, &v->argc, v->argv, opts, min, max);
}

static void options_and_operands_may_be_mixed(void **state)
{
    char text[] = "nothing a --url=http://x --count -3 b --heat 0.5 --fast --json";
    struct screen s;
    struct values v = {0};

    (void)state;
    open_screen(&s);
    assert_int_equal(parse(&s, &v, text, 2, 2), -1);
    assert_string_equal(v.url, "http://x");
    assert_int_equal(v.count, -3);
    assert_true(v.heat == 0.5 && v.fast && s.cli.json);
    assert_int_equal(v.argc, 3);
    assert_string_equal(v.argv[1], "a");
    assert_string_equal(v.argv[2], "b");
    close_screen(&s);
}

static void two_dashes_end_the_options(void **state)
{
    char text[] = "nothing -- --json --fast";
    struct screen s;
    struct values v = {0};

    (void)state;
    open_screen(&s);
    assert_int_equal(parse(&s, &v, text, 0, 2), -1);
    assert_false(v.fast || s.cli.json);
    assert_string_equal(v.argv[1], "--json");
    close_screen(&s);
}

static void usage_error(const char *line, int min, int max, const char *word)
{
    char text[64];
    struct screen s;
    struct values v = {0};

    open_screen(&s);
    snprintf(text, sizeof text, "%s", line);
    assert_int_equal(parse(&s, &v, text, min, max), EXIT_USAGE);
    flush(&s);
    if (!strstr(s.err, word) || !strstr(s.err, "usage: cairn nothing"))
        fail_msg("\"%s\" does not explain %s", s.err, word);
    close_screen(&s);
}

static void a_wrong_command_line_is_explained(void **state)
{
    (void)state;
    usage_error("nothing --speed 3", 0, 9, "--speed");
    usage_error("nothing --count 3x", 0, 9, "whole number");
    usage_error("nothing --count 99999999999999999999", 0, 9, "whole number");
    usage_error("nothing --heat nan", 0, 9, "number");
    usage_error("nothing --url", 0, 9, "value is missing");
    usage_error("nothing --fast=yes", 0, 9, "no value");
    usage_error("nothing", 1, 1, "missing");
    usage_error("nothing a b", 1, 1, "too many");
}

static void help_lists_every_option(void **state)
{
    char text[] = "nothing --help";
    struct screen s;
    struct values v = {0};

    (void)state;
    open_screen(&s);
    assert_int_equal(parse(&s, &v, text, 5, 5), EXIT_OK);
    flush(&s);
    assert_non_null(strstr(s.out, "usage: cairn nothing [OPTIONS] [WORD]"));
    assert_non_null(strstr(s.out, "does nothing at all"));
    assert_non_null(strstr(s.out, "--count N"));
    assert_non_null(strstr(s.out, "--json"));
    close_screen(&s);
}

static void cairn_alone_explains_itself_and_an_unknown_command_is_refused(void **state)
{
    char name[] = "cairn", wrong[] = "frobnicate";
    char *alone[] = {name, NULL}, *unknown[] = {name, wrong, NULL};
    struct screen s;

    (void)state;
    open_screen(&s);
    assert_int_equal(cli_main(&s.cli, commands, 1, alone), EXIT_OK);
    assert_int_equal(cli_main(&s.cli, commands, 2, unknown), EXIT_USAGE);
    flush(&s);
    assert_non_null(strstr(s.out, "does nothing at all"));
    assert_non_null(strstr(s.err, "frobnicate"));
    close_screen(&s);
}

static void an_error_is_one_line_and_with_json_an_object(void **state)
{
    struct screen s;
    struct err e = {0};
    json_t *v;

    (void)state;
    open_screen(&s);
    s.cli.json = true;
    err_set(&e, ERR_FORMAT, "bad bytes \xff here");
    assert_int_equal(cli_fail(&s.cli, &e), EXIT_FAILED);
    flush(&s);
    assert_string_equal(s.err, "cairn nothing: bad bytes ? here\n");
    v = json_loads(s.out, 0, NULL);
    assert_non_null(v);
    assert_string_equal(json_string_value(json_object_get(json_object_get(v, "error"), "message")),
                        "bad bytes ? here");
    json_decref(v);
    close_screen(&s);
}

static void columns_of_a_table_line_up_by_characters(void **state)
{
    struct cli_table *t = cli_table_new(2, "lr");
    struct screen s;

    (void)state;
    open_screen(&s);
    cli_table_cell(t, "NAME");
    cli_table_cell(t, "N");
    cli_table_cell(t, "\xc3\xa4\xc3\xb6");
    cli_table_cell(t, "%d", 1234);
    cli_table_print(t, s.cli.out);
    flush(&s);
    assert_string_equal(s.out, "NAME     N\n\xc3\xa4\xc3\xb6    1234\n");
    close_screen(&s);
}

static void sizes_and_times_are_short(void **state)
{
    char out[24];

    (void)state;
    assert_string_equal(cli_bytes(out, 0), "0 B");
    assert_string_equal(cli_bytes(out, 999), "999 B");
    assert_string_equal(cli_bytes(out, 269062784), "269.1 MB");
    assert_string_equal(cli_bytes(out, 999960), "1.0 MB");
    assert_string_equal(cli_bytes(out, UINT64_MAX), "18.4 EB");
    assert_string_equal(cli_duration(out, 0.25), "250 ms");
    assert_string_equal(cli_duration(out, 1.25), "1.2 s");
    assert_string_equal(cli_duration(out, 61), "1 min 1 s");
}

static void a_progress_bar_is_drawn_on_a_terminal_only(void **state)
{
    struct screen s;
    struct cli_progress quiet = {.cli = &s.cli, .label = "read"}, loud = quiet;

    (void)state;
    open_screen(&s);
    cli_progress_update(&quiet, 1, 2);
    cli_progress_end(&quiet);
    flush(&s);
    assert_int_equal(s.err_len, 0);
    s.cli.terminal = true;
    cli_progress_update(&loud, 1, 2);
    cli_progress_end(&loud);
    flush(&s);
    assert_non_null(strstr(s.err, "50%"));
    close_screen(&s);
}

static void a_terminal_gets_no_control_characters(void **state)
{
    char *got;
    size_t len;
    FILE *screen = open_memstream(&got, &len), *plain = cli_terminal(screen);

    (void)state;
    assert_ptr_not_equal(plain, screen);
    fprintf(plain, "a\x1b]0;title\a\tb\r\n\xc2");
    fflush(plain); /* in the middle of a character */
    fprintf(plain, "\x9b"
                   "31m \xc2\xa9 \xe2\x82\xac \x7f\n");
    fclose(plain);
    fclose(screen);
    assert_string_equal(got, "a?]0;title?\tb?\n?31m \xc2\xa9 \xe2\x82\xac ?\n");
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_and_operands_may_be_mixed),
        cmocka_unit_test(two_dashes_end_the_options),
        cmocka_unit_test(a_wrong_command_line_is_explained),
        cmocka_unit_test(help_lists_every_option),
        cmocka_unit_test(cairn_alone_explains_itself_and_an_unknown_command_is_refused),
        cmocka_unit_test(an_error_is_one_line_and_with_json_an_object),
        cmocka_unit_test(columns_of_a_table_line_up_by_characters),
        cmocka_unit_test(sizes_and_times_are_short),
        cmocka_unit_test(a_terminal_gets_no_control_characters),
        cmocka_unit_test(a_progress_bar_is_drawn_on_a_terminal_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
