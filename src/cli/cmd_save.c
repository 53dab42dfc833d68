/* cli/cmd_save.c - cairn save RUN_ID STEP: writes the resident weights as a checkpoint.
 * cairn promote CHECKPOINT RUN_ID STEP: makes one of a checkpoint of the training API.
 * The caller's side of the manifest comes from options, or whole from --manifest FILE. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"

enum { MANIFEST_MAX = 1 << 20 };

struct save_args {
    const char *file, *domain, *signal_source, *parent, *optimizer, *optimizer_state;
    bool same_parent; /* parent: the checkpoint the resident is named after */
    bool plan;
    const char *run_id; /* where no file says it */
    int64_t step;
};

/* The resident's checkpoint name, or JSON null for a catalogue model. Owned; NULL with *e. */
static json_t *resident_name(struct client *c, struct err *e)
{
    json_t *status = client_data(c, "GET", "/api/weights/status", NULL, e);
    const json_t *model = json_object_get(status, "model");
    const char *origin = json_string_value(json_object_get(model, "origin"));
    json_t *name = NULL;

    if (status && !origin)
        err_set(e, ERR_NOT_FOUND, "no model is loaded; `cairn load MODEL` loads one");
    else if (status)
        name = strcmp(origin, "checkpoint") ? json_null()
                                            : json_incref(json_object_get(model, "name"));
    json_decref(status);
    return name;
}

static json_t *build_manifest(struct client *c, const struct save_args *a, const char *run_id,
                              int64_t step, struct err *e)
{
    json_t *parent = a->same_parent ? resident_name(c, e)
                     : a->parent    ? json_string(a->parent)
                                    : json_null();

    if (!parent)
        return NULL;
    return json_pack("{s:s, s:I, s:s, s:s, s:o, s:{s:s, s:s}}", "run_id", run_id, "step",
                     (json_int_t)step, "domain", a->domain ? a->domain : "unspecified",
                     "signal_source", a->signal_source ? a->signal_source : "corpus", "parent",
                     parent, "optimizer", "name", a->optimizer ? a->optimizer : "unspecified",
                     "state", a->optimizer_state ? a->optimizer_state : "fresh");
}

static uint64_t bytes_of(const json_t *data, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(data, key));
}

static int print_plan(struct cli *cli, json_t *data)
{
    char size[24], available[24];

    if (cli->json)
        return cli_print_json(cli, data);
    fprintf(cli->out, "would save %s\n", json_string_value(json_object_get(data, "name")));
    fprintf(cli->out, "  path            %s/%s\n", json_string_value(json_object_get(data, "root")),
            json_string_value(json_object_get(data, "path")));
    fprintf(cli->out, "  size            %s; %s are free\n",
            cli_bytes(size, bytes_of(data, "bytes")),
            cli_bytes(available, bytes_of(data, "free_bytes")));
    fprintf(cli->out, "  parent          %s\n",
            json_string_value(json_object_get(data, "parent_check")));
    json_decref(data);
    return EXIT_OK;
}

static int print_saved(struct cli *cli, json_t *data)
{
    char size[24];

    if (cli->json)
        return cli_print_json(cli, data);
    fprintf(cli->out, "%s\n", json_string_value(json_object_get(data, "name")));
    fprintf(cli->out, "  path            %s\n", json_string_value(json_object_get(data, "path")));
    fprintf(cli->out, "  weights_sha256  %s\n",
            json_string_value(json_object_get(data, "weights_sha256")));
    fprintf(cli->out, "  size            %s\n", cli_bytes(size, bytes_of(data, "bytes")));
    if (!json_object_get(data, "checkpoint")) /* a promotion has no pause */
        fprintf(cli->out, "  pause           %.1f ms\n",
                json_number_value(json_object_get(data, "snapshot_ms")));
    fprintf(cli->out, "  written in      %.1f ms\n",
            json_number_value(json_object_get(data, "write_ms")));
    fprintf(cli->out, "  parent          %s\n",
            json_string_value(json_object_get(data, "parent_check")));
    json_decref(data);
    return EXIT_OK;
}

/* The n words RUN_ID STEP, or none where a file says all. -1: go on, else EXIT_USAGE. */
static int take_place(struct cli *cli, struct save_args *a, int n, char **words, const char *forms)
{
    char *end;

    if (n != (a->file ? 0 : 2))
        return cli_usage(cli, forms);
    if (a->parent && a->same_parent)
        return cli_usage(cli, "say the parent in one way: --parent or --continue");
    if (a->file && (a->domain || a->signal_source || a->parent || a->same_parent || a->optimizer ||
                    a->optimizer_state))
        return cli_usage(cli, "--manifest gives all fields: no other option may give one");
    if (a->file)
        return -1;
    errno = 0;
    a->run_id = words[0];
    a->step = strtoll(words[1], &end, 10);
    if (errno || *end || end == words[1] || a->step < 0)
        return cli_usage(cli, "STEP must be a whole number, at least 0");
    return -1;
}

static json_t *manifest_of(struct client *c, const struct save_args *a, struct err *e)
{
    return a->file ? json_parse_file(AT_FDCWD, a->file, MANIFEST_MAX, e)
                   : build_manifest(c, a, a->run_id, a->step, e);
}

/* What save and promote say about the manifest. */
/* clang-format off */
#define MANIFEST_OPTIONS(a)                                                                        \
    {.name = "manifest", .arg = "FILE", .help = "JSON with all of the caller's fields",            \
     .str = &(a).file},                                                                            \
    {.name = "domain", .arg = "TEXT", .help = "what the run trains towards", .str = &(a).domain},  \
    {.name = "signal-source", .arg = "KIND",                                                       \
     .help = "corpus, self-generation, preference-pairs, reward", .str = &(a).signal_source},      \
    {.name = "parent", .arg = "NAME", .help = "the checkpoint this one continues",                 \
     .str = &(a).parent}
/* clang-format on */

int cmd_save(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    struct save_args a = {0};
    const struct cli_opt opts[] = {
        MANIFEST_OPTIONS(a),
        {.name = "continue",
         .help = "parent: the checkpoint that is resident",
         .flag = &a.same_parent},
        {.name = "optimizer", .arg = "NAME", .help = "optimizer label", .str = &a.optimizer},
        {.name = "optimizer-state",
         .arg = "STATE",
         .help = "fresh or restored",
         .str = &a.optimizer_state},
        {.name = "plan",
         .help = "check everything, write nothing, say what would happen",
         .flag = &a.plan},
        CLIENT_OPTIONS(args),
        CLIENT_OPTION_ATTACHMENT(args),
        {0},
    };
    struct client *c;
    struct err e = {0};
    json_t *body = NULL, *data = NULL, *manifest;
    int rc = cli_options(cli, &argc, argv, opts, 0, 2);

    if (rc >= 0)
        return rc;
    rc = take_place(cli, &a, argc - 1, argv + 1, "say RUN_ID STEP, or --manifest FILE");
    if (rc >= 0)
        return rc;
    c = client_new(&args, &e);
    if (!c)
        return cli_fail(cli, &e);
    manifest = manifest_of(c, &a, &e);
    if (manifest) {
        body = json_pack("{s:o}", "manifest", manifest);
        data = client_data(c, "POST", a.plan ? "/api/weights/plan/save" : "/api/weights/save", body,
                           &e);
        json_decref(body);
    }
    client_free(c);
    if (!data)
        return cli_fail(cli, &e);
    return a.plan ? print_plan(cli, data) : print_saved(cli, data);
}

int cmd_promote(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    struct save_args a = {0};
    const struct cli_opt opts[] = {
        MANIFEST_OPTIONS(a),
        CLIENT_OPTIONS(args),
        {0},
    };
    struct client *c;
    struct err e = {0};
    json_t *body, *data = NULL, *manifest;
    int rc = cli_options(cli, &argc, argv, opts, 1, 3);

    if (rc >= 0)
        return rc;
    rc = take_place(cli, &a, argc - 2, argv + 2,
                    "say CHECKPOINT RUN_ID STEP, or CHECKPOINT --manifest FILE");
    if (rc >= 0)
        return rc;
    a.optimizer = "adamw"; /* of the training API */
    c = client_new(&args, &e);
    if (!c)
        return cli_fail(cli, &e);
    manifest = manifest_of(c, &a, &e);
    if (manifest) {
        body = json_pack("{s:s, s:o}", "checkpoint", argv[1], "manifest", manifest);
        data = client_data(c, "POST", "/api/weights/promote", body, &e);
        json_decref(body);
    }
    client_free(c);
    return data ? print_saved(cli, data) : cli_fail(cli, &e);
}
