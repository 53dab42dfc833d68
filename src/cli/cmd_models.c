/* cli/cmd_models.c - cairn models [ls | add DIR | rm MODEL]: the catalogue of a server. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/find_row.h"

static int print_rows(struct cli *cli, json_t *rows)
{
    struct cli_table *t;
    json_t *row;
    size_t i;

    if (cli->json)
        return cli_print_json(cli, rows);
    t = cli_table_new(6, "rllllr");
    for (const char *const *h =
             (const char *const[]){"ID", "NAME", "STATUS", "SERVED AS", "DTYPE", "MB", NULL};
         *h; h++)
        cli_table_cell(t, "%s", *h);
    json_array_foreach (rows, i, row) {
        cli_table_cell(t, "%" JSON_INTEGER_FORMAT, json_integer_value(json_object_get(row, "id")));
        cli_table_cell(t, "%s", json_text_or(row, "name", "-"));
        cli_table_cell(t, "%s", json_text_or(row, "status", "-"));
        cli_table_cell(t, "%s", json_text_or(row, "served_name", "-"));
        cli_table_cell(t, "%s", json_text_or(row, "dtype", "-"));
        if (json_is_number(json_object_get(row, "disk_size_mb")))
            cli_table_cell(t, "%.0f", json_number_value(json_object_get(row, "disk_size_mb")));
        else /* a row that reindex made: nobody has looked into its directory */
            cli_table_cell(t, "-");
    }
    cli_table_print(t, cli->out);
    json_decref(rows);
    return EXIT_OK;
}

/* The directory's real path, for the server may stand elsewhere. */
static int find_directory(const char *dir, char real[PATH_MAX], struct err *e)
{
    struct stat st;

    if (!realpath(dir, real) || stat(real, &st) < 0)
        return err_io(e, "%s", dir);
    if (S_ISREG(st.st_mode))
        return err_set(e, ERR_ARG,
                       "%s is a file: say the model's directory, or make one of a GGUF file with "
                       "`cairn import FILE.gguf DIR`",
                       dir);
    return 0;
}

/* A row may be made before its files are there; who expects them should know. */
static void warn_if_unloadable(struct cli *cli, struct client *c, const json_t *body)
{
    struct err ignored = {0};
    json_t *found = client_data(c, "POST", "/api/models/preview", body, &ignored);
    const json_t *problem = json_object_get(found, "problem");

    if (json_is_object(problem))
        fprintf(cli->err, "cairn models: registered, but it cannot be loaded as it is: %s\n",
                json_text_or(problem, "message", "the server says no reason"));
    json_decref(found);
}

static int add(struct cli *cli, struct client *c, const char *dir, const char *name)
{
    char real[PATH_MAX];
    struct err e = {0};
    json_t *body, *row;

    if (find_directory(dir, real, &e) < 0)
        return cli_fail(cli, &e);
    body =
        json_pack("{s:s, s:s, s:s*}", "source", "local", "local_path", real, "custom_name", name);
    row = client_data(c, "POST", "/api/models", body, &e);
    if (row)
        warn_if_unloadable(cli, c, body);
    json_decref(body);
    if (!row)
        return cli_fail(cli, &e);
    if (cli->json)
        return cli_print_json(cli, row);
    fprintf(cli->out, "%" JSON_INTEGER_FORMAT "\t%s\n",
            json_integer_value(json_object_get(row, "id")), json_text_or(row, "name", "-"));
    json_decref(row);
    return EXIT_OK;
}

static int rm(struct cli *cli, struct client *c, const char *which)
{
    char path[64];
    struct err e = {0};
    json_t *data;
    int64_t id;

    if (find_row(c, which, &id, &e) < 0)
        return cli_fail(cli, &e);
    snprintf(path, sizeof path, "/api/models/%lld", (long long)id);
    data = client_data(c, "DELETE", path, NULL, &e);
    if (!data)
        return cli_fail(cli, &e);
    return cli->json ? cli_print_json(cli, data) : (json_decref(data), EXIT_OK);
}

int cmd_models(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    const char *name = NULL;
    const struct cli_opt opts[] = {
        {.name = "name", .arg = "NAME", .help = "with add: the row's name", .str = &name},
        CLIENT_OPTIONS(args),
        {0},
    };
    struct client *c;
    struct err e = {0};
    json_t *rows;
    int rc = cli_options(cli, &argc, argv, opts, 0, 2);

    if (rc >= 0)
        return rc;
    c = client_new(&args, &e);
    if (!c)
        return cli_fail(cli, &e);
    if (argc == 1 || (argc == 2 && !strcmp(argv[1], "ls"))) {
        rows = client_data(c, "GET", "/api/models", NULL, &e);
        rc = rows ? print_rows(cli, rows) : cli_fail(cli, &e);
    } else if (argc == 3 && !strcmp(argv[1], "add")) {
        rc = add(cli, c, argv[2], name);
    } else if (argc == 3 && !strcmp(argv[1], "rm")) {
        rc = rm(cli, c, argv[2]);
    } else {
        rc = cli_usage(cli, "say ls, add DIR or rm MODEL");
    }
    client_free(c);
    return rc;
}
