#include "cli/ask.h"

#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/client.h"

static int set_resident(struct client *c, json_t *body, struct err *e)
{
    json_t *status = client_data(c, "GET", "/api/weights/status", NULL, e);
    const json_t *model = json_object_get(status, "model");
    json_t *name = json_object_get(model, "name");
    int rc = -1;

    if (status && !name)
        err_set(e, ERR_NOT_FOUND, "no model is loaded; `cairn load MODEL` loads one");
    else if (status)
        rc = json_object_set(body, "model", name);
    json_decref(status);
    return rc;
}

json_t *ask_body(struct client *c, const struct ask_args *a, struct err *e)
{
    json_t *body = json_object();

    if (!a->model && set_resident(c, body, e) < 0) {
        json_decref(body);
        return NULL;
    }
    if (a->model)
        json_object_set_new(body, "model", json_string(a->model));
    if (!isnan(a->temperature))
        json_object_set_new(body, "temperature", json_real(a->temperature));
    if (!isnan(a->top_p))
        json_object_set_new(body, "top_p", json_real(a->top_p));
    if (a->max_tokens != CLI_UNSET)
        json_object_set_new(body, "max_tokens", json_integer(a->max_tokens));
    if (a->seed != CLI_UNSET)
        json_object_set_new(body, "seed", json_integer(a->seed));
    return body;
}

struct answer {
    struct cli *cli;
    struct buf *text;
    json_int_t prompt_tokens, tokens;
    char error[320];
};

static void note_usage(struct answer *a, const json_t *event)
{
    const json_t *usage = json_object_get(event, "usage");

    if (!json_is_object(usage))
        return;
    a->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
    a->tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
}

static bool on_event(void *arg, const json_t *event)
{
    struct answer *a = arg;
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *error = json_object_get(event, "error");
    const char *text = json_string_value(json_object_get(choice, "text"));

    if (json_is_object(error)) {
        const char *why = json_string_value(json_object_get(error, "message"));

        snprintf(a->error, sizeof a->error, "%s", why ? why : "the stream broke off");
        return true;
    }
    if (!text)
        text = json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
    if (text) {
        buf_add_str(a->text, text);
        if (!a->cli->json) {
            fputs(text, a->cli->out);
            fflush(a->cli->out);
        }
    }
    note_usage(a, event);
    return true;
}

static void report(const struct answer *a, const char *model, double ms)
{
    if (a->cli->terminal && !a->cli->json)
        fprintf(a->cli->err, "[%s; %lld + %lld tokens, %.2f s]\n", model,
                (long long)a->prompt_tokens, (long long)a->tokens, ms / 1000);
}

int ask_stream(struct cli *cli, struct client *c, const char *path, json_t *body,
               struct buf *answer, struct err *e)
{
    struct answer a = {.cli = cli, .text = answer};
    struct client_reply reply = {0};
    int64_t start = clock_mono_ns();
    int rc;

    json_object_set_new(body, "stream", json_true());
    rc = client_stream(c, path, body, on_event, &a, &reply, e);
    if (rc == 0)
        rc = client_expect(&reply, e);
    if (rc == 0 && a.error[0])
        rc = err_set(e, ERR_IO, "%s", a.error);
    if (rc == 0 && !cli->json)
        fputc('\n', cli->out);
    if (rc == 0)
        report(&a, reply.model, clock_ms_since(start));
    if (rc == 0 && cli->json)
        rc = cli_print_json(cli, json_pack("{s:s, s:s, s:I, s:I}", "text", buf_str(answer), "model",
                                           reply.model, "prompt_tokens", a.prompt_tokens,
                                           "completion_tokens", a.tokens)) == EXIT_OK
                 ? 0
                 : err_set(e, ERR_IO, "the output could not be written");
    client_reply_release(&reply);
    return rc;
}
