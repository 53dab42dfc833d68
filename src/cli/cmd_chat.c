/* cli/cmd_chat.c - cairn chat: a conversation with the resident model, streamed; one turn with
 * --message.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/ask.h"
#include "cli/client.h"
#include "cli/commands.h"

static json_t *message(const char *role, const char *text)
{
    return json_pack("{s:s, s:s}", "role", role, "content", text);
}

/* Sends the conversation so far and appends the answer to it. */
static int turn(struct cli *cli, struct client *c, const struct ask_args *args, json_t *messages,
                const char *text, struct err *e)
{
    json_t *asked = message("user", text), *body;
    struct buf answer = {0};
    int rc = -1;

    if (!asked)
        return err_set(e, ERR_ARG, "the text is not UTF-8");
    json_array_append_new(messages, asked);
    body = ask_body(c, args, e);
    if (body) {
        json_object_set(body, "messages", messages);
        json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
        rc = ask_stream(cli, c, "/v1/chat/completions", body, &answer, e);
    }
    if (rc == 0)
        json_array_append_new(messages, message("assistant", buf_str(&answer)));
    else /* a question without an answer is no part of the conversation */
        json_array_remove(messages, json_array_size(messages) - 1);
    buf_release(&answer);
    json_decref(body);
    return rc;
}

static int converse(struct cli *cli, struct client *c, const struct ask_args *args,
                    json_t *messages, struct err *e)
{
    bool asks = isatty(STDIN_FILENO);
    size_t cap = 0;
    char *line = NULL;
    ssize_t n;
    int rc = 0;

    if (asks)
        fprintf(cli->err, "An empty line or Ctrl-D ends the conversation.\n");
    for (;;) {
        if (asks)
            fprintf(cli->err, "> ");
        n = getline(&line, &cap, stdin);
        if (n > 0 && line[n - 1] == '\n')
            line[--n] = 0;
        if (n <= 0)
            break;
        rc = turn(cli, c, args, messages, line, e);
        if (rc < 0 && !asks)
            break;
        if (rc < 0) /* whoever sits there may ask again */
            cli_fail(cli, e);
        rc = 0;
    }
    free(line);
    return rc;
}

int cmd_chat(struct cli *cli, int argc, char **argv)
{
    struct client_args args = {0};
    struct ask_args ask = ASK_ARGS_INIT;
    const char *text = NULL, *system = NULL;
    const struct cli_opt opts[] = {
        {.name = "message", .arg = "TEXT", .help = "one turn, then end", .str = &text},
        {.name = "system", .arg = "TEXT", .help = "system message", .str = &system},
        ASK_OPTIONS(ask),
        CLIENT_OPTIONS(args),
        {0},
    };
    struct client *c;
    struct err e = {0};
    json_t *messages;
    int rc = cli_options(cli, &argc, argv, opts, 0, 0);

    if (rc >= 0)
        return rc;
    c = client_new(&args, &e);
    if (!c)
        return cli_fail(cli, &e);
    messages = json_array();
    if (system)
        json_array_append_new(messages, message("system", system));
    rc = text ? turn(cli, c, &ask, messages, text, &e) : converse(cli, c, &ask, messages, &e);
    json_decref(messages);
    client_free(c);
    return rc < 0 ? cli_fail(cli, &e) : EXIT_OK;
}
