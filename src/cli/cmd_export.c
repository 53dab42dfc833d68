/* cli/cmd_export.c - cairn export CHECKPOINT DIR: the checkpoint in the form of Hugging Face tools,
 * every file checked against the sha256 that the server tells. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/sha256.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/find_checkpoint.h"

enum { BLOCK = 1 << 20 };

struct export_args {
    struct client_args client;
    bool merge;
};

/* The artifact of an operation (consumed), once it is done. */
static json_t *wait_for(struct client *c, json_t *envelope, struct err *e)
{
    json_t *artifact = NULL;

    envelope = client_wait(c, envelope, e);
    if (envelope && strcmp(json_text_or(envelope, "status", ""), "error") == 0)
        err_set(e, ERR_CONFLICT, "%s: %s", json_text_or(envelope, "error", ""),
                json_text_or(envelope, "error_message", ""));
    else if (envelope)
        artifact = json_incref(json_object_get(envelope, "response"));
    json_decref(envelope);
    return artifact;
}

static json_t *make_artifact(struct client *c, const char *id, bool merge, struct err *e)
{
    json_t *body = json_pack("{s:s, s:b}", "format", "huggingface", "merge_adapter", merge);
    char path[128];
    json_t *o;

    snprintf(path, sizeof path, "/api/v1/checkpoints/%.40s/export", id);
    o = client_weaver(c, "POST", path, body, e);
    json_decref(body);
    if (o && *json_text_or(o, "kind", ""))
        return o;
    return wait_for(c, o, e);
}

static int check_file(int fd, const char *name, const char *want, struct err *e)
{
    struct sha256 *h = sha256_new();
    char *block = malloc(BLOCK), sha[SHA256_HEX];
    off_t at = 0;
    ssize_t n = 0;
    int rc = h && block ? 0 : err_nomem(e);

    while (rc == 0 && (n = pread(fd, block, BLOCK, at)) > 0) {
        sha256_update(h, block, (size_t)n);
        at += n;
    }
    if (rc == 0 && n < 0)
        rc = err_io(e, "read %s", name);
    if (rc == 0) {
        sha256_hex(h, sha);
        if (strcmp(sha, want) != 0)
            rc = err_set(e, ERR_FORMAT, "%s came damaged: its sha256 is not the one announced",
                         name);
    }
    sha256_free(h);
    free(block);
    return rc;
}

/* A name from a server is a claim: one plain segment, opened beneath the directory. */
static int fetch(struct client *c, int dir, const json_t *f, struct err *e)
{
    const char *name = json_text_or(f, "name", "");
    int fd, rc;

    if (!*name || strchr(name, '/') || *name == '.')
        return err_set(e, ERR_FORMAT, "the server names a file '%.100s'", name);
    fd = fs_open_beneath(dir, name, O_RDWR | O_CREAT | O_EXCL, 0644, FS_LINKS_NONE, e);
    if (fd < 0 && e->sys == EEXIST)
        return err_set(e, ERR_CONFLICT, "%.100s is already there: say another DIR", name);
    if (fd < 0)
        return -1;
    rc = client_download(c, json_text_or(f, "url", ""), fd, e);
    if (rc == 0)
        rc = check_file(fd, name, json_text_or(f, "sha256", ""), e);
    fs_close(fd);
    if (rc < 0)
        unlinkat(dir, name, 0);
    return rc;
}

static int fetch_all(struct cli *cli, struct client *c, const json_t *artifact, const char *to,
                     struct err *e)
{
    char path[128];
    json_t *list, *f;
    size_t i;
    int dir = -1, rc = -1;

    snprintf(path, sizeof path, "/api/v1/artifacts/%.40s/download",
             json_text_or(artifact, "id", ""));
    list = client_weaver(c, "GET", path, NULL, e);
    if (list && fs_make_dirs(to, 0755, e) == 0 && (dir = fs_open_dir(to, e)) >= 0)
        rc = 0;
    json_array_foreach (json_object_get(list, "files"), i, f) {
        if (rc == 0)
            rc = fetch(c, dir, f, e);
        if (rc == 0 && !cli->json)
            fprintf(cli->out, "%s\t%" JSON_INTEGER_FORMAT "\n", json_text_or(f, "name", ""),
                    json_integer_value(json_object_get(f, "size")));
    }
    json_decref(list);
    fs_close(dir);
    return rc;
}

static int run(struct cli *cli, struct client *c, const struct export_args *a, char **argv)
{
    struct err e = {0};
    json_t *checkpoint = find_checkpoint(c, argv[1], &e), *artifact = NULL;
    int rc = -1;

    if (checkpoint)
        artifact = make_artifact(c, json_text_or(checkpoint, "id", ""), a->merge, &e);
    if (artifact)
        rc = fetch_all(cli, c, artifact, argv[2], &e);
    json_decref(checkpoint);
    if (rc < 0) {
        json_decref(artifact);
        return cli_fail(cli, &e);
    }
    if (cli->json)
        return cli_print_json(cli, artifact);
    json_decref(artifact);
    return EXIT_OK;
}

int cmd_export(struct cli *cli, int argc, char **argv)
{
    struct export_args a = {0};
    const struct cli_opt opts[] = {
        {.name = "merge", .help = "one whole model instead of an adapter", .flag = &a.merge},
        CLIENT_OPTION_KEY(a.client),
        CLIENT_OPTIONS(a.client),
        {0},
    };
    struct err e = {0};
    struct client *c;
    int rc = cli_options(cli, &argc, argv, opts, 2, 2);

    if (rc >= 0)
        return rc;
    c = client_new(&a.client, &e);
    if (!c)
        return cli_fail(cli, &e);
    rc = run(cli, c, &a, argv);
    client_free(c);
    return rc;
}
