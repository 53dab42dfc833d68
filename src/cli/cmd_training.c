/* cli/cmd_training.c - cairn runs, checkpoints, ops: what the training API knows. A checkpoint is
 * named by its id or its weaver:// path. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/find_checkpoint.h"
#include "cli/redo.h"

enum { PAGE = 100, CURVE_WIDTH = 60 };

/* A list with one row an item: NAME of the column and key of the item, in turns. */
static int print_items(struct cli *cli, json_t *page, const char *const *columns, int n)
{
    struct cli_table *t;
    const json_t *o;
    size_t i;

    if (cli->json)
        return cli_print_json(cli, page);
    t = cli_table_new(n, "llllll");
    for (int k = 0; k < n; k++)
        cli_table_cell(t, "%s", columns[2 * (size_t)k]);
    json_array_foreach (json_object_get(page, "items"), i, o)
        for (int k = 0; k < n; k++) {
            const json_t *v = json_object_get(o, columns[2 * (size_t)k + 1]);

            if (json_is_integer(v))
                cli_table_cell(t, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
            else
                cli_table_cell(t, "%s", json_text_or(o, columns[2 * (size_t)k + 1], "-"));
        }
    cli_table_print(t, cli->out);
    json_decref(page);
    return EXIT_OK;
}

static int print_object(struct cli *cli, json_t *o)
{
    const char *key;
    json_t *v;

    if (cli->json)
        return cli_print_json(cli, o);
    json_object_foreach (o, key, v) {
        if (json_is_string(v))
            fprintf(cli->out, "  %-16s %s\n", key, json_string_value(v));
        else if (json_is_integer(v))
            fprintf(cli->out, "  %-16s %" JSON_INTEGER_FORMAT "\n", key, json_integer_value(v));
        else if (json_is_boolean(v))
            fprintf(cli->out, "  %-16s %s\n", key, json_is_true(v) ? "yes" : "no");
    }
    json_decref(o);
    return EXIT_OK;
}

/* Every page of a list as one answer. */
static json_t *all_pages(struct client *c, const char *path, struct err *e)
{
    json_t *all = NULL, *page;
    char address[128];
    size_t have = 0, came;

    do {
        snprintf(address, sizeof address, "%s?limit=%d&offset=%zu", path, PAGE, have);
        page = client_weaver(c, "GET", address, NULL, e);
        if (!page) {
            json_decref(all);
            return NULL;
        }
        came = json_array_size(json_object_get(page, "items"));
        if (all)
            json_array_extend(json_object_get(all, "items"), json_object_get(page, "items"));
        else
            all = json_incref(page);
        have += came;
        json_decref(page);
    } while (came == PAGE);
    return all;
}

static int get_and_print(struct cli *cli, struct client *c, const char *path,
                         const char *const *columns, int n)
{
    struct err e = {0};
    json_t *list = all_pages(c, path, &e);

    return list ? print_items(cli, list, columns, n) : cli_fail(cli, &e);
}

/* ---- runs ---- */

/* One line of blocks, lowest to highest loss, the mean of neighbours where there are more losses
 * than columns. */
static void print_curve(struct cli *cli, const json_t *losses)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    size_t n = json_array_size(losses), columns = n < CURVE_WIDTH ? n : CURVE_WIDTH;
    double mean[CURVE_WIDTH], low = INFINITY, high = -INFINITY;

    if (n == 0)
        return;
    for (size_t k = 0; k < columns; k++) {
        size_t from = k * n / columns, to = (k + 1) * n / columns;

        mean[k] = 0;
        for (size_t i = from; i < to; i++)
            mean[k] += json_number_value(json_array_get(losses, i)) / (double)(to - from);
        low = fmin(low, mean[k]);
        high = fmax(high, mean[k]);
    }
    fprintf(cli->out, "  loss             ");
    for (size_t k = 0; k < columns; k++)
        fputs(blocks[high > low ? (int)lround(7 * (mean[k] - low) / (high - low)) : 0], cli->out);
    fprintf(cli->out, "\n                   %.4f first, %.4f last, %zu passes\n",
            json_number_value(json_array_get(losses, 0)),
            json_number_value(json_array_get(losses, n - 1)), n);
}

static int show_run(struct cli *cli, struct client *c, const char *id)
{
    char *segment = client_escape(c, id), path[512];
    json_t *run, *losses = NULL;
    struct err e = {0};

    snprintf(path, sizeof path, "/api/v1/training-runs/%s", segment ? segment : "");
    run = client_weaver(c, "GET", path, NULL, &e);
    if (run) {
        snprintf(path, sizeof path, "/api/v1/training-runs/%s/losses", segment);
        losses = client_weaver(c, "GET", path, NULL, &e);
    }
    free(segment);
    if (!losses) {
        json_decref(run);
        return cli_fail(cli, &e);
    }
    json_object_set(run, "losses", json_object_get(losses, "losses"));
    json_decref(losses);
    if (cli->json)
        return cli_print_json(cli, run);
    print_object(cli, json_incref(run));
    print_curve(cli, json_object_get(run, "losses"));
    fprintf(cli->out, "  checkpoints      %zu\n",
            json_array_size(json_object_get(run, "checkpoints")));
    json_decref(run);
    return EXIT_OK;
}

static int open_with(struct cli *cli, int *argc, char **argv, const struct cli_opt *opts, int most,
                     const struct client_args *args, struct client **c)
{
    struct err e = {0};
    int rc = cli_options(cli, argc, argv, opts, 0, most);

    if (rc >= 0)
        return rc;
    *c = client_new(args, &e);
    return *c ? -1 : cli_fail(cli, &e);
}

/* The options that these commands share. */
static int open_client(struct cli *cli, int *argc, char **argv, int most, struct client **c)
{
    struct client_args args = {0};
    const struct cli_opt opts[] = {CLIENT_OPTION_KEY(args), CLIENT_OPTIONS(args), {0}};

    return open_with(cli, argc, argv, opts, most, &args, c);
}

static bool says(int argc, char **argv, const char *verb, int operands)
{
    return argc == 2 + operands && strcmp(argv[1], verb) == 0;
}

int cmd_runs(struct cli *cli, int argc, char **argv)
{
    static const char *const columns[] = {"RUN",   "id",         "MODE",    "training_mode",
                                          "BASE",  "base_model", "STATUS",  "status",
                                          "OWNER", "owner",      "CREATED", "created_at"};
    struct client_args args = {0};
    bool keep = false;
    const struct cli_opt opts[] = {
        CLIENT_OPTION_KEY(args),
        CLIENT_OPTIONS(args),
        {.name = "keep", .help = "redo: the new run stays", .flag = &keep},
        {0}};
    struct client *c = NULL;
    int rc = open_with(cli, &argc, argv, opts, 2, &args, &c);

    if (rc >= 0)
        return rc;
    if (argc == 1 || says(argc, argv, "ls", 0))
        rc = get_and_print(cli, c, "/api/v1/training-runs", columns, 6);
    else if (says(argc, argv, "show", 1))
        rc = show_run(cli, c, argv[2]);
    else if (says(argc, argv, "redo", 1))
        rc = redo_run(cli, c, argv[2], keep);
    else
        rc = cli_usage(cli, "say ls, show RUN, or redo FILE");
    client_free(c);
    return rc;
}

/* ---- checkpoints ---- */

static int set_ttl(struct cli *cli, struct client *c, const json_t *checkpoint, const char *text)
{
    char path[128], *end;
    long long seconds = strtoll(text, &end, 10);
    bool forever = strcmp(text, "none") == 0;
    json_t *body, *o;
    struct err e = {0};

    if (!forever && (end == text || *end))
        return cli_usage(cli, "a lifetime is a number of seconds, or none");
    snprintf(path, sizeof path, "/api/v1/models/%.40s/checkpoints/ttl",
             json_text_or(checkpoint, "model_id", "-"));
    body = json_pack("{s:s, s:o}", "path", json_text_or(checkpoint, "path", "-"), "ttl_seconds",
                     forever ? json_null() : json_integer(seconds));
    o = client_weaver(c, "PATCH", path, body, &e);
    json_decref(body);
    return o ? print_object(cli, o) : cli_fail(cli, &e);
}

static int remove_one(struct cli *cli, struct client *c, const json_t *checkpoint)
{
    char path[128];
    struct err e = {0};
    json_t *gone;

    snprintf(path, sizeof path, "/api/v1/checkpoints/%.40s", json_text_or(checkpoint, "id", "-"));
    gone = client_weaver(c, "DELETE", path, NULL, &e);
    json_decref(gone);
    if (!gone)
        return cli_fail(cli, &e);
    if (cli->json)
        return cli_print_json(cli,
                              json_pack("{s:s}", "removed", json_text_or(checkpoint, "path", "-")));
    fprintf(cli->out, "removed\t%s\n", json_text_or(checkpoint, "path", "-"));
    return EXIT_OK;
}

static int with_checkpoint(struct cli *cli, struct client *c, int argc, char **argv)
{
    struct err e = {0};
    json_t *checkpoint = find_checkpoint(c, argv[2], &e);
    int rc;

    if (!checkpoint)
        return cli_fail(cli, &e);
    if (says(argc, argv, "show", 1))
        rc = print_object(cli, json_incref(checkpoint));
    else if (says(argc, argv, "ttl", 2))
        rc = set_ttl(cli, c, checkpoint, argv[3]);
    else
        rc = remove_one(cli, c, checkpoint);
    json_decref(checkpoint);
    return rc;
}

int cmd_checkpoints(struct cli *cli, int argc, char **argv)
{
    static const char *const columns[] = {"PATH",    "path",       "TYPE",  "type",  "STEP", "step",
                                          "EXPIRES", "expires_at", "OWNER", "owner", "ID",   "id"};
    struct client *c = NULL;
    int rc = open_client(cli, &argc, argv, 3, &c);

    if (rc >= 0)
        return rc;
    if (argc == 1 || says(argc, argv, "ls", 0))
        rc = get_and_print(cli, c, "/api/v1/checkpoints", columns, 6);
    else if (says(argc, argv, "show", 1) || says(argc, argv, "rm", 1) || says(argc, argv, "ttl", 2))
        rc = with_checkpoint(cli, c, argc, argv);
    else
        rc = cli_usage(cli, "say ls, show C, ttl C SECONDS, or rm C");
    client_free(c);
    return rc;
}

/* ---- operations ---- */

/* A week of them is too much to read. */
static int newest_operations(struct cli *cli, struct client *c, const char *const *columns, int n)
{
    struct err e = {0};
    json_t *page = client_weaver(c, "GET", "/api/v1/operations?limit=100", NULL, &e);
    json_int_t total =
        json_integer_value(json_object_get(json_object_get(page, "pagination"), "total_count"));
    size_t shown = json_array_size(json_object_get(page, "items"));

    if (!page)
        return cli_fail(cli, &e);
    if (!cli->json && total > (json_int_t)shown)
        fprintf(cli->out, "the newest %zu of %" JSON_INTEGER_FORMAT "\n", shown, total);
    return print_items(cli, page, columns, n);
}

int cmd_ops(struct cli *cli, int argc, char **argv)
{
    static const char *const columns[] = {"OPERATION", "id",     "TYPE",    "type",
                                          "STATUS",    "status", "MODEL",   "model_id",
                                          "ERROR",     "error",  "CREATED", "created_at"};
    struct client *c = NULL;
    char path[512], *segment;
    struct err e = {0};
    json_t *o;
    int rc = open_client(cli, &argc, argv, 2, &c);

    if (rc >= 0)
        return rc;
    if (argc == 1 || says(argc, argv, "ls", 0)) {
        rc = newest_operations(cli, c, columns, 6);
    } else if (says(argc, argv, "show", 1)) {
        segment = client_escape(c, argv[2]);
        snprintf(path, sizeof path, "/api/v1/operations/%s", segment ? segment : "");
        free(segment);
        o = client_weaver(c, "GET", path, NULL, &e);
        rc = o ? print_object(cli, o) : cli_fail(cli, &e);
    } else {
        rc = cli_usage(cli, "say ls, or show ID");
    }
    client_free(c);
    return rc;
}
