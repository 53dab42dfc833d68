/* cli/cmd_status.c - cairn status: which weights answer, in which state, and who is attached. */
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"

static json_int_t int_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static void print_attachment(struct cli *cli, const json_t *data)
{
    const json_t *a = json_object_get(data, "attachment");

    if (!json_is_object(a)) {
        fprintf(cli->out, "attachment  none\n");
        return;
    }
    fprintf(cli->out, "attachment  %s, %s (%s), since %s\n", json_text_or(a, "state", "-"),
            json_text_or(a, "identity", "-"), json_text_or(a, "role", "-"),
            json_text_or(a, "attached_at", "-"));
}

static int print_status(struct cli *cli, json_t *data)
{
    const json_t *model = json_object_get(data, "model");
    const json_t *save = json_object_get(data, "last_save");
    const json_t *running = json_object_get(data, "save_in_progress");

    if (cli->json)
        return cli_print_json(cli, data);
    if (json_is_object(model))
        fprintf(cli->out, "model       %s (%s), commits %lld\n", json_text_or(model, "name", "-"),
                json_text_or(model, "origin", "-"), (long long)int_of(data, "commits"));
    else
        fprintf(cli->out, "model       none; `cairn load MODEL` loads one\n");
    fprintf(cli->out, "weights     %s, %lld step%s since load\n",
            json_text_or(data, "weights_state", "-"), (long long)int_of(data, "steps_since_load"),
            int_of(data, "steps_since_load") == 1 ? "" : "s");
    fprintf(cli->out, "serving     %s, %lld held\n", json_text_or(data, "serving", "-"),
            (long long)int_of(data, "requests_held"));
    print_attachment(cli, data);
    if (json_is_object(running))
        fprintf(cli->out, "saving      %s, stage %s\n", json_text_or(running, "name", "-"),
                json_text_or(running, "stage", "-"));
    if (json_is_object(save))
        fprintf(cli->out, "last save   %s at %s\n", json_text_or(save, "name", "-"),
                json_text_or(save, "saved_at", "-"));
    json_decref(data);
    return EXIT_OK;
}

int cmd_status(struct cli *cli, int argc, char **argv)
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
    data = client_data(c, "GET", "/api/weights/status", NULL, &e);
    client_free(c);
    return data ? print_status(cli, data) : cli_fail(cli, &e);
}
