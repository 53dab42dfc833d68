/* cli/cmd_import.c - cairn import FILE.gguf DIR: a GGUF file as a model directory.
 * Exit 0 written; 1 refused or failed, nothing is left behind; 2 usage. */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "cli/commands.h"
#include "tensor/gguf_import.h"

static int on_progress(void *arg, uint64_t done, uint64_t total)
{
    cli_progress_update(arg, done, total);
    return 0;
}

/* How much of the path is there already: the length of that beginning. */
static size_t there_already(const char *path)
{
    char part[PATH_MAX];
    size_t n = strnlen(path, sizeof part - 1);

    for (memcpy(part, path, n); n; n--) {
        part[n] = 0;
        if ((path[n] == '/' || path[n] == 0) && access(part, F_OK) == 0)
            break;
    }
    return n;
}

/* Opens DIR, which is made with what leads to it. */
static int open_target(const char *path, struct err *e)
{
    int fd;

    if (fs_make_dirs(path, 0755, e) < 0)
        return -1;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? err_io(e, "open the directory %s", path) : fd;
}

/* Removes the directories of the path behind its first `kept` bytes, as far as they are empty. */
static void unmake(const char *path, size_t kept)
{
    char part[PATH_MAX];
    size_t n = strnlen(path, sizeof part - 1);

    for (memcpy(part, path, n); n > kept; n--) {
        part[n] = 0;
        if (path[n] == '/' || path[n] == 0)
            rmdir(part);
    }
}

static int open_source(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    return fd < 0 ? err_io(e, "open %s", path) : fd;
}

static int import(struct cli *cli, const char *file, const char *dir, struct gguf_import *job,
                  struct err *e)
{
    struct cli_progress bar = {.cli = cli, .label = "import"};
    size_t kept = there_already(dir);
    int from = open_source(file, e), to = -1, rc = -1;

    if (from < 0)
        return -1;
    to = open_target(dir, e);
    if (to >= 0) {
        job->progress = on_progress;
        job->arg = &bar;
        rc = gguf_import(job, from, to, e);
        job->arg = NULL;
        cli_progress_end(&bar);
        if (rc < 0)
            err_wrap(e, "%s", file);
        close(to);
    }
    if (rc < 0)
        unmake(dir, kept);
    close(from);
    return rc;
}

int cmd_import(struct cli *cli, int argc, char **argv)
{
    struct gguf_import job = {0};
    struct err e = {0};
    int64_t start = clock_mono_ns();
    char size[24], took[24];
    int rc = cli_options(cli, &argc, argv, NULL, 2, 2);

    if (rc >= 0)
        return rc;
    if (import(cli, argv[1], argv[2], &job, &e) < 0)
        return cli_fail(cli, &e);
    if (cli->json)
        return cli_print_json(cli,
                              json_pack("{s:s, s:s, s:i, s:I, s:s}", "directory", argv[2],
                                        "architecture", job.architecture, "tensors", job.n_tensors,
                                        "bytes", (json_int_t)job.file_bytes, "sha256", job.sha256));
    fprintf(cli->out, "%s: %s, %d tensors, %s of BF16 weights in %s\nsha256 %s\n", argv[2],
            job.architecture, job.n_tensors, cli_bytes(size, job.file_bytes),
            cli_duration(took, clock_ms_since(start) / 1e3), job.sha256);
    return EXIT_OK;
}
