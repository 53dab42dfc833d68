/* cli/cmd_adapters.c - cairn adapters [ls | apply NAME | rm]: LoRA adapters beside the resident. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"

static const char *text_of(const json_t *o, const char *key, const char *otherwise)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : otherwise;
}

static int print_list(struct cli *cli, json_t *data)
{
    const char *applied = text_of(json_object_get(data, "applied"), "name", "");
    struct cli_table *t;
    json_t *a;
    size_t i;

    if (cli->json)
        return cli_print_json(cli, data);
    t = cli_table_new(5, "lrrll");
    for (const char *const *h =
             (const char *const[]){"NAME", "RANK", "ALPHA", "APPLIED", "PROBLEM", NULL};
         *h; h++)
        cli_table_cell(t, "%s", *h);
    json_array_foreach (json_object_get(data, "adapters"), i, a) {
        const char *name = text_of(a, "name", "-");

        cli_table_cell(t, "%s", name);
        cli_table_cell(t, "%" JSON_INTEGER_FORMAT, json_integer_value(json_object_get(a, "r")));
        cli_table_cell(t, "%g", json_number_value(json_object_get(a, "lora_alpha")));
        cli_table_cell(t, "%s", strcmp(name, applied) == 0 ? "yes" : "");
        cli_table_cell(t, "%s", text_of(a, "problem", ""));
    }
    cli_table_print(t, cli->out);
    json_decref(data);
    return EXIT_OK;
}

static int print_applied(struct cli *cli, json_t *data)
{
    if (cli->json)
        return cli_print_json(cli, data);
    fprintf(cli->out, "%s\tscale %g\t%" JSON_INTEGER_FORMAT " modules\n",
            text_of(data, "name", "-"), json_number_value(json_object_get(data, "scale")),
            json_integer_value(json_object_get(data, "modules")));
    json_decref(data);
    return EXIT_OK;
}

static int print_removed(struct cli *cli, json_t *data)
{
    if (cli->json)
        return cli_print_json(cli, data);
    fprintf(cli->out, "removed\t%s\n", text_of(data, "removed", "-"));
    json_decref(data);
    return EXIT_OK;
}

static json_t *apply(struct client *c, const char *name, double scale, struct err *e)
{
    json_t *body = json_pack("{s:s, s:f}", "name", name, "scale", scale);
    json_t *data = client_data(c, "POST", "/api/adapters/apply", body, e);

    json_decref(body);
    return data;
}

static int run(struct cli *cli, struct client *c, int argc, char **argv, double scale)
{
    const char *what = argc > 1 ? argv[1] : "ls";
    struct err e = {0};
    json_t *data, *none;

    if (strcmp(what, "ls") == 0 && argc <= 2) {
        data = client_data(c, "GET", "/api/adapters", NULL, &e);
        return data ? print_list(cli, data) : cli_fail(cli, &e);
    }
    if (strcmp(what, "apply") == 0 && argc == 3) {
        data = apply(c, argv[2], scale, &e);
        return data ? print_applied(cli, data) : cli_fail(cli, &e);
    }
    if (strcmp(what, "rm") != 0 || argc != 2)
        return cli_usage(cli, "say ls, apply NAME or rm");
    none = json_object();
    data = client_data(c, "POST", "/api/adapters/remove", none, &e);
    json_decref(none);
    return data ? print_removed(cli, data) : cli_fail(cli, &e);
}

int cmd_adapters(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    double scale = 1;
    const struct cli_opt opts[] = {
        {.name = "scale", .arg = "X", .help = "with apply: times the update (1)", .real = &scale},
        CLIENT_OPTIONS(args),
        CLIENT_OPTION_ATTACHMENT(args),
        CLIENT_OPTION_LEASE(args),
        {0},
    };
    struct client *c;
    struct err e = {0};
    int rc = cli_options(cli, &argc, argv, opts, 0, 2);

    if (rc >= 0)
        return rc;
    c = client_new(&args, &e);
    if (!c)
        return cli_fail(cli, &e);
    rc = run(cli, c, argc, argv, scale);
    client_free(c);
    return rc;
}
