/* `cairn`: the table of commands. */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "daemon/cmd_reindex.h"
#include "daemon/serve.h"

/* Options win over the environment, which daemon/config.c reads. */
static int cmd_serve(struct cli *cli, int argc, char **argv)
{
    struct serve_options o = {.port = CLI_UNSET, .threads = CLI_UNSET};
    const struct cli_opt opts[] = {
        {.name = "host", .arg = "ADDRESS", .help = "listen here (HOST)", .str = &o.host},
        {.name = "port", .arg = "N", .help = "0: any free port (PORT)", .num = &o.port},
        {.name = "model",
         .arg = "MODEL",
         .help = "load this row or directory (AUTO_LOAD_MODEL)",
         .str = &o.model},
        {.name = "state-dir",
         .arg = "DIR",
         .help = "the catalogue lives here (STATE_DIR)",
         .str = &o.state_dir},
        {.name = "checkpoint-dir",
         .arg = "DIR",
         .help = "checkpoints are written here (WEIGHTS_CHECKPOINT_DIR)",
         .str = &o.checkpoint_dir},
        {.name = "threads", .arg = "N", .help = "0: every core (CAIRN_THREADS)", .num = &o.threads},
        {0},
    };
    int status = cli_options(cli, &argc, argv, opts, 0, 0);
    struct err e = {0};

    if (status >= 0)
        return status;
    o.json = cli->json;
    status = serve(&o, cli->out, &e) == 0 ? EXIT_OK : cli_fail(cli, &e);
    clearerr(cli->out); /* a server may be started without a standard output */
    return status;
}

static const struct cli_cmd commands[] = {
    {"import", "FILE.gguf DIR", "turn a GGUF file into a model directory", cmd_import},
    {"inspect", "FILE", "list the tensors of a safetensors or GGUF file", cmd_inspect},
    {"serve", "", "run the server", cmd_serve},
    {"tokenize", "DIR", "turn standard input into token ids", cmd_tokenize},
    {"models", "[ls | add DIR | rm MODEL]", "list, register and remove models", cmd_models},
    {"load", "MODEL | CHECKPOINT", "make a model or a checkpoint answer", cmd_load},
    {"unload", "MODEL", "free the memory of a model", cmd_unload},
    {"chat", "", "talk to the resident model", cmd_chat},
    {"complete", "PROMPT", "let the resident model go on with a text", cmd_complete},
    {"save", "RUN_ID STEP", "write the weights as a checkpoint", cmd_save},
    {"lineage", "[NAME]", "print the tree of checkpoints", cmd_lineage},
    {"adapters", "[ls | apply NAME | rm]", "LoRA adapters beside the resident", cmd_adapters},
    {"lease", "MODEL [show | take | renew | end]", "keep the resident model where it is",
     cmd_lease},
    {"runs", "[ls | show RUN | redo FILE]",
     "training runs, the losses of one, its steps done again", cmd_runs},
    {"checkpoints", "[ls | show C | ttl C SECONDS | rm C]", "checkpoints of training runs",
     cmd_checkpoints},
    {"ops", "[ls | show ID]", "operations of the training API", cmd_ops},
    {"promote", "CHECKPOINT RUN_ID STEP", "make an ordinary checkpoint of a training one",
     cmd_promote},
    {"export", "CHECKPOINT DIR", "download a checkpoint for Hugging Face tools", cmd_export},
    {"status", "", "say which weights answer", cmd_status},
    {"attach-status", "", "say who is attached, and what is held", cmd_attach_status},
    {"quiesce", "", "let running requests end and hold new ones", cmd_quiesce},
    {"resume", "", "let held requests go on", cmd_resume},
    {"detach", "", "end an attachment; --force clears a stale one", cmd_detach},
    {"reindex", "", "rebuild the catalogue's checkpoints from the directories, offline",
     cmd_reindex},
    {"verify", "DIR | NAME", "check a model or checkpoint directory offline", cmd_verify},
    {0},
};

/* The next file that is opened must not become standard output, or messages would be written into
 * it. What was closed refuses to be read, or written. */
static void fill_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(EXIT_FAILED);
}

int main(int argc, char **argv)
{
    struct cli cli = {.out = stdout, .err = stderr};
    int status;
    bool lost;

    fill_standard_streams();
    json_memory_watch();
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit fails the write, not the process */
    if (isatty(STDOUT_FILENO))
        cli.out = cli_terminal(stdout);
    status = cli_main(&cli, commands, argc, argv);
    lost = fflush(cli.out) != 0 || ferror(cli.out); /* a full disk shows here at the latest */
    if (cli.out != stdout)
        fclose(cli.out);
    if (!lost)
        return status;
    fputs("cairn: the output could not be written\n", stderr);
    return status == EXIT_OK ? EXIT_FAILED : status;
}
