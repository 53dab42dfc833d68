/* Options of a command: one table gives the parser and the help text. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "cli/cli.h"

static int print_help(struct cli *cli, const struct cli_opt *opts)
{
    char left[64];

    fprintf(cli->out, "usage: cairn %s [OPTIONS]%s%s\n\n%s\n\n", cli->cmd->name,
            *cli->cmd->args ? " " : "", cli->cmd->args, cli->cmd->summary);
    for (; opts && opts->name; opts++) {
        snprintf(left, sizeof left, "--%s%s%s", opts->name, opts->arg ? " " : "",
                 opts->arg ? opts->arg : "");
        fprintf(cli->out, "  %-24s %s\n", left, opts->help);
    }
    fprintf(cli->out, "  %-24s %s\n  %-24s %s\n", "--json", "print the result as JSON", "--help",
            "print this text");
    return EXIT_OK;
}

static int complain(struct cli *cli, const char *what, const char *name)
{
    char text[256];

    snprintf(text, sizeof text, "%s: %s%s", what, *name == '-' ? "" : "--", name);
    return cli_usage(cli, text);
}

/* There are none but -h; "-" and negative numbers are operands. */
static bool is_short(const char *arg)
{
    return arg[0] == '-' && ((arg[1] >= 'a' && arg[1] <= 'z') || (arg[1] >= 'A' && arg[1] <= 'Z'));
}

static bool parse_int(const char *text, int64_t *out)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (errno || end == text || *end || v == CLI_UNSET)
        return false;
    *out = v;
    return true;
}

static bool parse_real(const char *text, double *out)
{
    char *end;
    double v;

    errno = 0;
    v = strtod(text, &end);
    if (errno || end == text || *end || !isfinite(v))
        return false;
    *out = v;
    return true;
}

static int set(struct cli *cli, const struct cli_opt *o, const char *value)
{
    if (o->str)
        *o->str = value;
    else if (o->num && !parse_int(value, o->num))
        return complain(cli, "a whole number is expected", o->name);
    else if (o->real && !parse_real(value, o->real))
        return complain(cli, "a number is expected", o->name);
    return -1;
}

static const struct cli_opt *find(const struct cli_opt *opts, const char *name, size_t len)
{
    for (; opts && opts->name; opts++)
        if (strlen(opts->name) == len && memcmp(opts->name, name, len) == 0)
            return opts;
    return NULL;
}

/* One option at argv[*i]; *i moves to its value when that stands apart. -1: go on. */
static int take_option(struct cli *cli, int argc, char **argv, int *i, const struct cli_opt *opts)
{
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t len = equals ? (size_t)(equals - name) : strlen(name);
    const struct cli_opt *o = find(opts, name, len);

    if (!o)
        return complain(cli, "unknown option", name);
    if (o->flag) {
        *o->flag = true;
        return equals ? complain(cli, "this option takes no value", o->name) : -1;
    }
    if (equals)
        return set(cli, o, equals + 1);
    if (*i + 1 >= argc)
        return complain(cli, "a value is missing", o->name);
    return set(cli, o, argv[++*i]);
}

/* Known before anything can fail, so that a wrong option is reported as JSON too. */
static bool wants(int argc, char **argv, const char *option, const char *brief)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], option) == 0 || (brief && strcmp(argv[i], brief) == 0))
            return true;
    return false;
}

/* What goes into requests: commands that talk to a server have --url. */
static bool can_be_sent(int argc, char **argv, const struct cli_opt *opts)
{
    if (!find(opts, "url", 3))
        return true;
    for (int i = 1; i < argc; i++)
        if (!utf8_valid(argv[i], strlen(argv[i])))
            return false;
    return true;
}

int cli_options(struct cli *cli, int *argc, char **argv, const struct cli_opt *opts, int min,
                int max)
{
    int kept = 1, rc;
    bool done = false;

    cli->json = wants(*argc, argv, "--json", NULL);
    if (wants(*argc, argv, "--help", "-h"))
        return print_help(cli, opts);
    if (!can_be_sent(*argc, argv, opts))
        return cli_usage(cli, "an argument is not UTF-8, as what is sent to a server must be");
    for (int i = 1; i < *argc; i++) {
        if (!done && strcmp(argv[i], "--") == 0) {
            done = true;
        } else if (!done && is_short(argv[i])) {
            return complain(cli, "unknown option", argv[i]);
        } else if (done || strncmp(argv[i], "--", 2) != 0) {
            argv[kept++] = argv[i];
        } else if (strcmp(argv[i], "--json") != 0) {
            rc = take_option(cli, *argc, argv, &i, opts);
            if (rc >= 0)
                return rc;
        }
    }
    argv[kept] = NULL;
    *argc = kept;
    if (kept - 1 < min)
        return cli_usage(cli, "an argument is missing");
    if (kept - 1 > max)
        return cli_usage(cli, "there are too many arguments");
    return -1;
}
