/* cli/cmd_lease.c - cairn lease MODEL [show | take | renew | end]: keeps the resident model where
 * it is. `take` prints the id, which the others and `cairn load` take as --lease or CAIRN_LEASE. */
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/find_row.h"

struct lease_args {
    const char *holder, *reason;
    int64_t ttl_s; /* CLI_UNSET: not given */
};

static void print_lease(struct cli *cli, const json_t *lease)
{
    if (json_object_get(lease, "lease_id"))
        fprintf(cli->out, "%s\n", json_text_or(lease, "lease_id", "-"));
    fprintf(cli->out, "  model    %s\n  holder   %s\n  reason   %s\n",
            json_text_or(lease, "model_name", "-"), json_text_or(lease, "holder", "-"),
            json_text_or(lease, "reason", "-"));
    if (json_object_get(lease, "end_reason"))
        fprintf(cli->out, "  ended    %s, %s\n", json_text_or(lease, "ended_at", "-"),
                json_text_or(lease, "end_reason", "-"));
    else
        fprintf(cli->out, "  expires  %s\n", json_text_or(lease, "expires_at", "-"));
}

static int print_data(struct cli *cli, json_t *data)
{
    const json_t *live = json_object_get(data, "lease");

    if (cli->json)
        return cli_print_json(cli, data);
    if (!live)
        print_lease(cli, data);
    else if (json_is_object(live))
        print_lease(cli, live);
    else
        fprintf(cli->out, "no lease\n");
    json_decref(data);
    return EXIT_OK;
}

static json_t *terms(const struct lease_args *a, bool take)
{
    json_t *body =
        take ? json_pack("{s:s, s:s}", "holder", a->holder, "reason", a->reason) : json_object();

    if (body && a->ttl_s != CLI_UNSET)
        json_object_set_new(body, "ttl_seconds", json_integer(a->ttl_s));
    return body;
}

static const struct verb {
    const char *name, *method, *tail;
    bool has_body;
} verbs[] = {
    {"show", "GET", "", false},
    {"take", "POST", "", true},
    {"renew", "POST", "/renew", true},
    {"end", "DELETE", "", false},
};

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    return NULL;
}

static int run(struct cli *cli, struct client *c, const char *model, const struct verb *v,
               const struct lease_args *a)
{
    json_t *body = NULL, *data;
    struct err e = {0};
    char path[80];
    int64_t id;

    if (find_row(c, model, &id, &e) < 0)
        return cli_fail(cli, &e);
    snprintf(path, sizeof path, "/api/models/%lld/lease%s", (long long)id, v->tail);
    if (v->has_body)
        body = terms(a, strcmp(v->name, "take") == 0);
    data = client_data(c, v->method, path, body, &e);
    json_decref(body);
    return data ? print_data(cli, data) : cli_fail(cli, &e);
}

int cmd_lease(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    struct lease_args a = {.holder = "cairn", .reason = "command line", .ttl_s = CLI_UNSET};
    const struct cli_opt opts[] = {
        {.name = "holder", .arg = "TEXT", .help = "with take: who holds it", .str = &a.holder},
        {.name = "reason", .arg = "TEXT", .help = "with take: what for", .str = &a.reason},
        {.name = "ttl", .arg = "SECONDS", .help = "with take and renew: how long", .num = &a.ttl_s},
        CLIENT_OPTIONS(args),
        CLIENT_OPTION_LEASE(args),
        {0},
    };
    const struct verb *v;
    struct client *c;
    struct err e = {0};
    int rc = cli_options(cli, &argc, argv, opts, 1, 2);

    if (rc >= 0)
        return rc;
    v = find_verb(argc == 3 ? argv[2] : "show");
    if (!v)
        return cli_usage(cli, "say show, take, renew or end");
    c = client_new(&args, &e);
    if (!c)
        return cli_fail(cli, &e);
    rc = run(cli, c, argv[1], v, &a);
    client_free(c);
    return rc;
}
