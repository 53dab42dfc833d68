/* cli/cmd_attachment.c - what people need around an attached trainer: cairn attach-status, quiesce,
 * resume, detach.
 *
 * quiesce and resume act for the trainer whose id --attachment gives; detach --force is an
 * operator's way to clear an attachment whose process is gone. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"

/* ---- attach-status ---- */

static void print_hold(struct cli *cli, const json_t *data)
{
    const json_t *hold = json_object_get(data, "hold");
    const json_t *commit = json_object_get(data, "commit");

    fprintf(cli->out, "serving      %s, %lld held\n", json_text_or(data, "serving", "-"),
            (long long)json_integer_value(json_object_get(data, "requests_held")));
    if (json_is_object(hold))
        fprintf(cli->out, "hold         by %s since %s, ends by itself at %s\n",
                json_text_or(hold, "owner", "-"), json_text_or(hold, "since", "-"),
                json_text_or(hold, "expires_at", "-"));
    if (json_is_object(commit))
        fprintf(cli->out, "%-12s by %s since %s, torn at %s\n", json_text_or(commit, "kind", "-"),
                json_text_or(commit, "identity", "-"), json_text_or(commit, "started_at", "-"),
                json_text_or(commit, "watchdog_expires_at", "-"));
}

static int print_attachment(struct cli *cli, json_t *data)
{
    const json_t *a = json_object_get(data, "attachment");

    if (cli->json) {
        json_t *facts = json_pack(
            "{s:O, s:O?, s:O?, s:O?, s:O?, s:O?}", "attachment", (json_t *)a, "weights_state",
            json_object_get(data, "weights_state"), "serving", json_object_get(data, "serving"),
            "requests_held", json_object_get(data, "requests_held"), "hold",
            json_object_get(data, "hold"), "commit", json_object_get(data, "commit"));

        json_decref(data);
        return cli_print_json(cli, facts);
    }
    if (!json_is_object(a)) {
        fprintf(cli->out, "nothing is attached\n");
    } else {
        fprintf(cli->out, "attached     %s (%s, client \"%s\"), %s\n",
                json_text_or(a, "identity", "-"), json_text_or(a, "role", "-"),
                json_text_or(a, "client", "-"), json_text_or(a, "state", "-"));
        fprintf(cli->out, "since        %s, last seen %s\n", json_text_or(a, "attached_at", "-"),
                json_text_or(a, "last_seen_at", "-"));
    }
    fprintf(cli->out, "weights      %s\n", json_text_or(data, "weights_state", "-"));
    print_hold(cli, data);
    json_decref(data);
    return EXIT_OK;
}

int cmd_attach_status(struct cli *cli, int argc, char **argv)
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
    data = c ? client_data(c, "GET", "/api/weights/status", NULL, &e) : NULL;
    client_free(c);
    return data ? print_attachment(cli, data) : cli_fail(cli, &e);
}

/* ---- quiesce, resume, detach ---- */

/* POSTs `body` (consumed) and prints the answer, one "key value" a line. */
static int post(struct cli *cli, const struct client_args *args, const char *path, json_t *body)
{
    struct err e = {0};
    struct client *c = client_new(args, &e);
    json_t *data = c ? client_data(c, "POST", path, body, &e) : NULL, *v;
    const char *key;

    json_decref(body);
    client_free(c);
    if (!data)
        return cli_fail(cli, &e);
    if (cli->json)
        return cli_print_json(cli, data);
    json_object_foreach (data, key, v) {
        char *text =
            json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));

        fprintf(cli->out, "%-17s %s\n", key, text ? text : json_string_value(v));
        free(text);
    }
    json_decref(data);
    return EXIT_OK;
}

static int post_as_holder(struct cli *cli, int argc, char **argv, const char *path)
{
    struct client_args args = {0};
    const struct cli_opt opts[] = {CLIENT_OPTIONS(args), CLIENT_OPTION_ATTACHMENT(args), {0}};
    int rc = cli_options(cli, &argc, argv, opts, 0, 0);

    return rc >= 0 ? rc : post(cli, &args, path, json_object());
}

int cmd_quiesce(struct cli *cli, int argc, char **argv)
{
    return post_as_holder(cli, argc, argv, "/api/weights/quiesce");
}

int cmd_resume(struct cli *cli, int argc, char **argv)
{
    return post_as_holder(cli, argc, argv, "/api/weights/resume");
}

int cmd_detach(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    bool force = false;
    const struct cli_opt opts[] = {
        {.name = "force", .help = "clear a stale attachment (operators)", .flag = &force},
        CLIENT_OPTIONS(args),
        CLIENT_OPTION_ATTACHMENT(args),
        {0}};
    int rc = cli_options(cli, &argc, argv, opts, 0, 0);

    if (rc >= 0)
        return rc;
    return post(cli, &args, "/api/weights/detach",
                force ? json_pack("{s:b}", "force", 1) : json_object());
}
