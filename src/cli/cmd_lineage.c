/* cli/cmd_lineage.c - cairn lineage: where the resident weights come from, as a tree from the base
 * model down to what is served now; a break of the chain is shown where it is. */
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

static void print_line(struct cli *cli, int depth, const char *text)
{
    for (int i = 1; i < depth; i++)
        fputs("   ", cli->out);
    fprintf(cli->out, "%s%s\n", depth ? "└─ " : "", text);
}

static int print_root(struct cli *cli, const json_t *data)
{
    const json_t *broken = json_object_get(data, "break");
    char line[2200];

    print_line(cli, 0, text_of(data, "base_model", "?"));
    if (!json_is_object(broken))
        return 1;
    snprintf(line, sizeof line, "... the chain breaks at %s: %s", text_of(broken, "at", "?"),
             text_of(broken, "reason", "?"));
    print_line(cli, 1, line);
    return 2;
}

static int print_tree(struct cli *cli, json_t *data)
{
    const json_t *chain = json_object_get(data, "chain");
    const json_t *resident = json_object_get(data, "resident");
    json_int_t commits = json_integer_value(json_object_get(resident, "commits_since_identity"));
    int depth = print_root(cli, data);
    char line[2200];

    for (size_t i = json_array_size(chain); i-- > 0; depth++) {
        const json_t *c = json_array_get(chain, i);

        snprintf(line, sizeof line, "%s  %.12s  %s/%s%s", text_of(c, "name", "?"),
                 text_of(c, "weights_sha256", "?"), text_of(c, "root", "?"),
                 text_of(c, "path", "?"), i == 0 && !commits ? "  <- resident" : "");
        print_line(cli, depth, line);
    }
    if (commits) {
        snprintf(line, sizeof line, "%lld unsaved commit%s  <- resident", (long long)commits,
                 commits == 1 ? "" : "s");
        print_line(cli, depth, line);
    }
    json_decref(data);
    return EXIT_OK;
}

int cmd_lineage(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    const struct cli_opt opts[] = {CLIENT_OPTIONS(args), {0}};
    struct client *c;
    struct err e = {0};
    json_t *data;
    int rc = cli_options(cli, &argc, argv, opts, 0, 0);

    if (rc >= 0)
        return rc;
    c = client_new(&args, &e);
    if (!c)
        return cli_fail(cli, &e);
    data = client_data(c, "GET", "/api/weights/lineage", NULL, &e);
    client_free(c);
    if (!data)
        return cli_fail(cli, &e);
    return cli->json ? cli_print_json(cli, data) : print_tree(cli, data);
}
