#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/version.h"

static const struct cli_cmd *find(const struct cli_cmd *cmds, const char *name)
{
    for (; cmds->name; cmds++)
        if (strcmp(cmds->name, name) == 0)
            return cmds;
    return NULL;
}

static int explain(const struct cli_cmd *cmds, FILE *out)
{
    fputs("Cairn trains, saves, loads, traces and serves language models; every checkpoint it "
          "writes is\n"
          "whole, verified and traceable.\n\n"
          "usage: cairn COMMAND [ARGUMENTS]\n\n",
          out);
    for (; cmds->name; cmds++)
        fprintf(out, "  %-13s %s\n", cmds->name, cmds->summary);
    fputs("\nTo see it work:\n"
          "  cairn import MODEL.gguf DIR     turn a GGUF file into a model directory\n"
          "  cairn serve                     start the server on 127.0.0.1\n"
          "  cairn models add DIR            register the directory\n"
          "  cairn load MODEL                load it\n"
          "  cairn chat                      talk to it\n\n"
          "`cairn COMMAND --help` explains a command; --json prints results as JSON.\n",
          out);
    return EXIT_OK;
}

static bool is_any(const char *s, const char *a, const char *b, const char *c)
{
    return strcmp(s, a) == 0 || strcmp(s, b) == 0 || strcmp(s, c) == 0;
}

static int help_for(struct cli *cli, const struct cli_cmd *cmds, const char *name)
{
    char help[] = "--help";
    char *argv[] = {NULL, help, NULL};

    cli->cmd = find(cmds, name);
    if (!cli->cmd) {
        fprintf(cli->err, "cairn: there is no command \"%s\"; `cairn help` lists them\n", name);
        return EXIT_USAGE;
    }
    argv[0] = (char *)(uintptr_t)cli->cmd->name;
    return cli->cmd->run(cli, 2, argv);
}

int cli_main(struct cli *cli, const struct cli_cmd *cmds, int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "help", *term = getenv("TERM");

    cli->terminal = isatty(fileno(cli->err)) == 1 && !(term && strcmp(term, "dumb") == 0);
    if (is_any(name, "--version", "-V", "version")) {
        fprintf(cli->out, "cairn %s\n", CAIRN_VERSION);
        return EXIT_OK;
    }
    if (is_any(name, "help", "--help", "-h"))
        return argc > 2 ? help_for(cli, cmds, argv[2]) : explain(cmds, cli->out);
    cli->cmd = find(cmds, name);
    if (!cli->cmd) {
        fprintf(cli->err, "cairn: there is no command \"%s\"; `cairn help` lists them\n", name);
        return EXIT_USAGE;
    }
    return cli->cmd->run(cli, argc - 1, argv + 1);
}

static const char *code_word(enum err_code code)
{
    switch (code) {
    case ERR_ARG:
        return "argument";
    case ERR_NOT_FOUND:
        return "not_found";
    case ERR_CONFLICT:
        return "conflict";
    case ERR_FORMAT:
        return "format";
    case ERR_SPACE:
        return "space";
    case ERR_NOMEM:
        return "memory";
    case ERR_IO:
        return "io";
    case ERR_CANCELLED:
        return "cancelled";
    }
    return "error";
}

int cli_fail(struct cli *cli, const struct err *e)
{
    fprintf(cli->err, "cairn %s: %s\n", cli->cmd->name, e->msg);
    if (cli->json)
        cli_print_json(cli, json_pack("{s:{s:s, s:o}}", "error", "code", code_word(e->code),
                                      "message", json_repaired(e->msg)));
    return EXIT_FAILED;
}

int cli_usage(struct cli *cli, const char *problem)
{
    fprintf(cli->err, "cairn %s: %s\nusage: cairn %s [OPTIONS]%s%s\n", cli->cmd->name, problem,
            cli->cmd->name, *cli->cmd->args ? " " : "", cli->cmd->args);
    if (cli->json)
        cli_print_json(cli, json_pack("{s:{s:s, s:o}}", "error", "code", "usage", "message",
                                      json_repaired(problem)));
    return EXIT_USAGE;
}

int cli_print_json(struct cli *cli, json_t *v)
{
    struct buf text = {0};
    int rc = EXIT_FAILED;

    if (v) {
        json_write(&text, v);
        buf_add_char(&text, '\n');
    }
    if (!v || text.failed)
        fprintf(cli->err, "cairn %s: the result cannot be written as JSON\n", cli->cmd->name);
    else if (fwrite(text.data, 1, text.len, cli->out) == text.len && fflush(cli->out) == 0)
        rc = EXIT_OK;
    json_decref(v);
    buf_release(&text);
    return rc;
}
