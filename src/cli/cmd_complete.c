/* cli/cmd_complete.c - cairn complete PROMPT: goes on with a text, streamed. */
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/ask.h"
#include "cli/client.h"
#include "cli/commands.h"

int cmd_complete(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    struct ask_args ask = ASK_ARGS_INIT;
    const struct cli_opt opts[] = {ASK_OPTIONS(ask), CLIENT_OPTIONS(args), {0}};
    struct buf answer = {0};
    struct client *c;
    struct err e = {0};
    json_t *body;
    int rc = cli_options(cli, &argc, argv, opts, 1, 1);

    if (rc >= 0)
        return rc;
    c = client_new(&args, &e);
    if (!c)
        return cli_fail(cli, &e);
    rc = -1;
    body = ask_body(c, &ask, &e);
    if (body) {
        json_object_set_new(body, "prompt", json_string(argv[1]));
        json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
        rc = ask_stream(cli, c, "/v1/completions", body, &answer, &e);
        json_decref(body);
    }
    buf_release(&answer);
    client_free(c);
    return rc < 0 ? cli_fail(cli, &e) : EXIT_OK;
}
