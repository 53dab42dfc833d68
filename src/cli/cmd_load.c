/* cli/cmd_load.c - cairn load WHAT and cairn unload MODEL.
 * WHAT is a checkpoint name (BASE:RUN:step-N), a checkpoint path under a root (--path), or a
 * catalogue model (id or row name). A checkpoint goes through POST /api/weights/load, where its
 * hash is verified. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/find_row.h"

static bool is_checkpoint_name(const char *what)
{
    const char *last = strrchr(what, ':');

    return last && !strncmp(last + 1, "step-", 5);
}

static const char *sentence_of(const char *way)
{
    static const struct {
        const char *way, *sentence;
    } ways[] = {
        {"swap", "exchanged between two steps; nobody waits"},
        {"copy", "into the resident's memory, after running requests have ended"},
        {"reload", "the old weights are let go before the new ones are read"},
    };

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!strcmp(ways[i].way, way))
            return ways[i].sentence;
    return way;
}

static int print_plan(struct cli *cli, json_t *data)
{
    const char *way = json_string_value(json_object_get(data, "way"));
    const char *sha = json_string_value(json_object_get(data, "weights_sha256"));
    json_int_t lost = json_integer_value(json_object_get(data, "discards_commits"));
    char size[24];

    if (cli->json)
        return cli_print_json(cli, data);
    fprintf(cli->out, "would load %s\n", json_string_value(json_object_get(data, "name")));
    fprintf(cli->out, "  way             %s, %s\n",
            json_string_value(json_object_get(data, "mode")), sentence_of(way ? way : "?"));
    fprintf(cli->out, "  weights_sha256  %s\n", sha ? sha : "not checked: the row's own files");
    fprintf(cli->out, "  size            %s\n",
            cli_bytes(size, (uint64_t)json_integer_value(json_object_get(data, "bytes"))));
    fprintf(cli->out, "  would be lost   %lld unsaved commit%s\n", (long long)lost,
            lost == 1 ? "" : "s");
    json_decref(data);
    return EXIT_OK;
}

static int print_loaded(struct cli *cli, json_t *data)
{
    const char *sha = json_string_value(json_object_get(data, "weights_sha256"));

    if (cli->json)
        return cli_print_json(cli, data);
    fprintf(cli->out, "%s\t%s\t%s\tverified in %.1f ms, placed in %.1f ms\n",
            json_string_value(json_object_get(data, "name")),
            json_string_value(json_object_get(data, "mode")), sha ? sha : "-",
            json_number_value(json_object_get(data, "verify_ms")),
            json_number_value(json_object_get(data, "write_ms")));
    json_decref(data);
    return EXIT_OK;
}

static int load_weights(struct cli *cli, struct client *c, json_t *body, bool plan)
{
    struct err e = {0};
    json_t *data =
        client_data(c, "POST", plan ? "/api/weights/plan/load" : "/api/weights/load", body, &e);

    json_decref(body);
    if (!data)
        return cli_fail(cli, &e);
    return plan ? print_plan(cli, data) : print_loaded(cli, data);
}

/* A management load answers at once; the row tells when it is done. */
static int wait_loaded(struct cli *cli, struct client *c, const char *path)
{
    struct cli_progress bar = {.cli = cli, .label = "loading"};
    const struct timespec pause = {.tv_nsec = 20000000};
    struct err e = {0};
    int64_t start = clock_mono_ns();

    for (;;) {
        json_t *row = client_data(c, "GET", path, NULL, &e);
        const char *status = json_string_value(json_object_get(row, "status"));

        if (row && status && !strcmp(status, "loading")) {
            cli_progress_update(&bar, 0, 0);
            json_decref(row);
            nanosleep(&pause, NULL);
            continue;
        }
        cli_progress_end(&bar);
        if (row && status && !strcmp(status, "loaded")) {
            if (cli->json)
                return cli_print_json(cli, row);
            fprintf(cli->out, "%s\tloaded in %.0f ms\n",
                    json_string_value(json_object_get(row, "name")), clock_ms_since(start));
            json_decref(row);
            return EXIT_OK;
        }
        if (row) {
            const char *why = json_string_value(json_object_get(row, "error_message"));

            err_set(&e, ERR_FORMAT, "the load failed: %s", why ? why : "the row says no reason");
        }
        json_decref(row);
        return cli_fail(cli, &e);
    }
}

static int load_row(struct cli *cli, struct client *c, const char *which, bool plan)
{
    char path[64];
    struct client_reply reply = {0};
    struct err e = {0};
    int64_t id;
    int rc;

    if (find_row(c, which, &id, &e) < 0)
        return cli_fail(cli, &e);
    if (plan)
        return load_weights(cli, c, json_pack("{s:I}", "model_id", (json_int_t)id), true);
    snprintf(path, sizeof path, "/api/models/%lld/load", (long long)id);
    rc = client_call(c, "POST", path, NULL, &reply, &e);
    if (rc == 0)
        rc = client_expect(&reply, &e);
    client_reply_release(&reply);
    if (rc < 0)
        return cli_fail(cli, &e);
    snprintf(path, sizeof path, "/api/models/%lld", (long long)id);
    return wait_loaded(cli, c, path);
}

int cmd_load(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    const char *path = NULL;
    int64_t model_id = CLI_UNSET;
    bool plan = false;
    const struct cli_opt opts[] = {
        {.name = "path",
         .arg = "RUN/STEP",
         .help = "a checkpoint below a checkpoint root",
         .str = &path},
        {.name = "model-id",
         .arg = "N",
         .help = "reload catalogue model N: the way back from torn",
         .num = &model_id},
        {.name = "plan",
         .help = "check everything, change nothing, say what would happen",
         .flag = &plan},
        CLIENT_OPTIONS(args),
        CLIENT_OPTION_ATTACHMENT(args),
        CLIENT_OPTION_LEASE(args),
        {0},
    };
    struct client *c;
    struct err e = {0};
    int rc = cli_options(cli, &argc, argv, opts, 0, 1);

    if (rc >= 0)
        return rc;
    if ((argc == 2) + (path != NULL) + (model_id != CLI_UNSET) != 1)
        return cli_usage(cli, "say what to load in one way: WHAT, --path or --model-id");
    c = client_new(&args, &e);
    if (!c)
        return cli_fail(cli, &e);
    if (path)
        rc = load_weights(cli, c, json_pack("{s:s}", "path", path), plan);
    else if (model_id != CLI_UNSET)
        rc = load_weights(cli, c, json_pack("{s:I}", "model_id", (json_int_t)model_id), plan);
    else if (is_checkpoint_name(argv[1]))
        rc = load_weights(cli, c, json_pack("{s:s}", "name", argv[1]), plan);
    else
        rc = load_row(cli, c, argv[1], plan);
    client_free(c);
    return rc;
}

int cmd_unload(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    const struct cli_opt opts[] = {CLIENT_OPTIONS(args), CLIENT_OPTION_LEASE(args), {0}};
    char path[64];
    struct client *c;
    struct err e = {0};
    json_t *row = NULL;
    int64_t id;
    int rc = cli_options(cli, &argc, argv, opts, 1, 1);

    if (rc >= 0)
        return rc;
    c = client_new(&args, &e);
    if (c && find_row(c, argv[1], &id, &e) == 0) {
        snprintf(path, sizeof path, "/api/models/%lld/unload", (long long)id);
        row = client_data(c, "POST", path, NULL, &e);
    }
    client_free(c);
    if (!row)
        return cli_fail(cli, &e);
    return cli->json ? cli_print_json(cli, row) : (json_decref(row), EXIT_OK);
}
