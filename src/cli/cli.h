/* cli/cli.h - the frame of the command line: the table of commands, options, tables, progress,
 * errors.
 *
 * A command is one function in one file, cmd_NAME.c. It gets its arguments without the program's
 * name (argv[0] is the command) and returns the exit status: EXIT_OK done, EXIT_FAILED refused or
 * failed, EXIT_USAGE the command line is wrong. Facts go to out, everything else to err; with
 * --json, out holds one JSON value and nothing else. One thread. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

struct err;
struct cli;

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* The value of a number option that was not given; no text of a command line gives it. */
#define CLI_UNSET INT64_MIN

typedef int cli_fn(struct cli *cli, int argc, char **argv);

struct cli_cmd {
    const char *name;
    const char *args;    /* "FILE.gguf DIR": what --help prints after the name */
    const char *summary; /* one line for the list of commands */
    cli_fn *run;
};

struct cli {
    FILE *out, *err;
    const struct cli_cmd *cmd; /* the running command */
    bool json;                 /* --json was given */
    bool terminal;             /* err is a terminal: progress bars */
};

/* Finds the command and runs it; without arguments, or with help, --help, --version, explains
 * itself. `cmds` ends with a zeroed row. Returns the exit status. */
int cli_main(struct cli *cli, const struct cli_cmd *cmds, int argc, char **argv);

/* Options of a command, ended by a zeroed row; exactly one target is set. --help and --json are
 * always there. Both "--name value" and "--name=value" work; "--" ends options; a bad number or
 * unknown option is reported here. */
struct cli_opt {
    const char *name; /* "url": --url */
    const char *arg;  /* "URL" in the help text; NULL for a flag */
    const char *help;
    const char **str; /* borrowed from argv */
    int64_t *num;
    double *real;
    bool *flag;
};

/* Takes the options out of argv (what is left: argv[1..*argc)) and checks that min to max operands
 * are left. Returns -1 to go on, else the exit status to return at once (help was printed, or usage
 * is wrong). */
int cli_options(struct cli *cli, int *argc, char **argv, const struct cli_opt *opts, int min,
                int max);

/* "cairn NAME: message" on err (and, with --json, {"error": {"code", "message"}} on out);
 * EXIT_FAILED. */
int cli_fail(struct cli *cli, const struct err *e);
/* "what is wrong", then the usage line (with --json also as an error on out); EXIT_USAGE. */
int cli_usage(struct cli *cli, const char *problem);

/* Prints a JSON value (consumed) with a newline; EXIT_OK, or EXIT_FAILED when out cannot be
 * written. */
int cli_print_json(struct cli *cli, json_t *v);

/* A table: the header row first, cells copied; columns are padded to the widest cell (in
 * characters). `right` is a string of 'l' and 'r', one a column. Ended by cli_table_print, which
 * also frees it. */
struct cli_table;
struct cli_table *cli_table_new(int columns, const char *align);
void cli_table_cell(struct cli_table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void cli_table_print(struct cli_table *t, FILE *out);

/* A stream that writes to `to`, a terminal, with every control character but line break and tab as
 * '?': names come from files of anybody. Line by line; closing it leaves `to` open. `to` itself
 * when there is no memory. */
FILE *cli_terminal(FILE *to);

/* A progress bar on a terminal, redrawn at most ten times a second; nothing elsewhere, but one line
 * at the end. A zeroed struct with cli and label set is ready. total 0: unknown, and the time that
 * it takes is shown. */
struct cli_progress {
    struct cli *cli;
    const char *label;
    int64_t started_ns, drawn_ns;
    bool shown;
};
void cli_progress_update(struct cli_progress *p, uint64_t done, uint64_t total);
void cli_progress_end(struct cli_progress *p); /* clears the bar */

/* "269.1 MB", "1.3 s" into out. */
const char *cli_bytes(char out[24], uint64_t n);
const char *cli_duration(char out[24], double seconds);
#endif
