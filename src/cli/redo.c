#include "cli/redo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/json.h"
#include "base/sha256.h"
#include "cli/cli.h"
#include "cli/client.h"

enum { FORMAT_VERSION = 1, PATH_ROOM = 256 };

struct redo {
    struct client *client;
    FILE *file;
    long line;
    json_t *begun; /* id of an operation -> its first line */
    char model[64];
    int64_t seq; /* of the operations that were sent */
    int done;
};

/* ---- the file ---- */

/* The next line: 1, 0 at the end, -1 with *e. */
static int next_line(struct redo *x, json_t **out, struct err *e)
{
    char *text = NULL;
    size_t cap = 0;
    ssize_t n = getline(&text, &cap, x->file);
    struct err why = {0};
    int rc = n < 0 ? 0 : 1;

    x->line++;
    if (n < 0 && ferror(x->file))
        rc = err_io(e, "read the step log");
    if (n > 0 && !(*out = json_parse(text, (size_t)n - (text[n - 1] == '\n'), &why)))
        rc = err_set(e, ERR_FORMAT, "line %ld is damaged: %s", x->line, why.msg);
    free(text);
    return rc;
}

static int read_header(struct redo *x, json_t **out, struct err *e)
{
    int rc = next_line(x, out, e);

    if (rc < 0)
        return -1;
    if (rc > 0 && json_integer_value(json_object_get(*out, "step_log")) == FORMAT_VERSION)
        return 0;
    return err_set(e, ERR_FORMAT, "this is no step log of version %d", FORMAT_VERSION);
}

/* ---- the server ---- */

static json_t *post(struct redo *x, const char *path, json_t *body, struct err *e)
{
    json_t *answer;

    if (!body) {
        err_nomem(e);
        return NULL;
    }
    answer = client_weaver(x->client, "POST", path, body, e);
    json_decref(body);
    return answer;
}

/* A run like the one of the log, as it was made: the seed gives the same adapter. */
static int make_run(struct redo *x, const json_t *header, struct err *e)
{
    json_t *session = post(x, "/api/v1/sessions", json_pack("{s:[s]}", "tags", "redo"), e);
    json_t *body, *model, *lora = json_object_get(header, "lora_config");
    char path[PATH_ROOM];

    if (!session)
        return -1;
    snprintf(path, sizeof path, "/api/v1/sessions/%.40s/models", json_text_or(session, "id", ""));
    json_decref(session);
    body = json_pack("{s:i, s:s, s:s, s:O}", "model_seq_id", 1, "base_model",
                     json_text_or(header, "base_model", ""), "training_mode",
                     json_text_or(header, "training_mode", ""), "training_max_sequence_length",
                     json_object_get(header, "training_max_sequence_length"));
    if (body && json_is_object(lora))
        json_object_set(body, "lora_config", lora);
    model = post(x, path, body, e);
    if (!model)
        return -1;
    snprintf(x->model, sizeof x->model, "%.40s", json_text_or(model, "id", ""));
    json_decref(model);
    return 0;
}

static void end_run(struct redo *x)
{
    char path[PATH_ROOM];
    struct err ignored = {0};

    snprintf(path, sizeof path, "/api/v1/models/%s/terminate", x->model);
    json_decref(client_weaver(x->client, "POST", path, NULL, &ignored));
}

/* ---- one operation ---- */

static json_t *payload(struct redo *x, const char *key, json_t *value)
{
    return json_pack("{s:{s:s, s:I, s:o}}", "payload", "model_id", x->model, "seq_id",
                     (json_int_t)++x->seq, key, value);
}

static json_t *pass_body(struct redo *x, const json_t *begun, struct err *e)
{
    json_t *input, *config = json_object_get(begun, "loss_fn_config");

    if (!json_object_get(begun, "data")) {
        err_set(e, ERR_NOT_FOUND,
                "the log has digests only: a server started with CAIRN_STEP_LOG=1 keeps the data");
        return NULL;
    }
    input = json_pack("{s:O, s:O}", "loss_fn", json_object_get(begun, "loss_fn"), "data",
                      json_object_get(begun, "data"));
    if (input && config)
        json_object_set(input, "loss_fn_config", config);
    return payload(x, "forward_backward_input", input);
}

/* The same request again; its operation when it has ended. */
static json_t *send(struct redo *x, const json_t *begun, struct err *e)
{
    const char *type = json_text_or(begun, "type", ""), *route;
    char path[PATH_ROOM];
    json_t *body;

    if (strcmp(type, "forward_backward") == 0) {
        route = "forward-backward-passes";
        body = pass_body(x, begun, e);
    } else if (strcmp(type, "optim_step") == 0) {
        route = "optimizer-steps";
        body = payload(x, "adam_params", json_incref(json_object_get(begun, "adam_params")));
    } else {
        route = "load";
        body = json_pack("{s:s, s:O}", "path", json_text_or(begun, "checkpoint_id", ""),
                         "include_optimizer", json_object_get(begun, "include_optimizer"));
    }
    if (!body && e->code)
        return NULL;
    snprintf(path, sizeof path, "/api/v1/models/%s/%s", x->model, route);
    return client_wait(x->client, post(x, path, body, e), e);
}

/* ---- comparing ---- */

static void digest_vectors(struct sha256 *h, const json_t *outputs, const char *key)
{
    const json_t *o, *v;
    size_t i, k;

    json_array_foreach ((json_t *)outputs, i, o)
        json_array_foreach (json_object_get(json_object_get(o, key), "data"), k, v) {
            float f = (float)json_number_value(v) + 0.0f;

            sha256_update(h, &f, sizeof f);
        }
}

static int compare_pass(const json_t *ended, const json_t *response, struct err *e)
{
    const json_t *outputs = json_object_get(json_object_get(response, "result"), "loss_fn_outputs");
    struct sha256 *h = sha256_new();
    char sha[SHA256_HEX];

    if (!h)
        return err_nomem(e);
    digest_vectors(h, outputs, "logprobs");
    digest_vectors(h, outputs, "elementwise_loss");
    sha256_hex(h, sha);
    sha256_free(h);
    if (strcmp(sha, json_text_or(ended, "result_sha256", "")) == 0)
        return 0;
    return err_set(
        e, ERR_FORMAT,
        "log-probabilities differ: sha256 %.12s... with loss %.9g, recorded are %.12s... "
        "and %.9g",
        sha, json_number_value(json_object_get(json_object_get(response, "metrics"), "loss")),
        json_text_or(ended, "result_sha256", ""),
        json_number_value(json_object_get(ended, "loss")));
}

static int compare_number(const json_t *ended, const json_t *got, const char *key, struct err *e)
{
    double was = json_number_value(json_object_get(ended, key));
    double is = json_number_value(json_object_get(got, key));

    if (was == is)
        return 0;
    return err_set(e, ERR_FORMAT, "%s is %.17g, recorded is %.17g", key, is, was);
}

static int compare(const json_t *begun, const json_t *ended, const json_t *op, struct err *e)
{
    const json_t *response = json_object_get(op, "response");

    if (strcmp(json_text_or(op, "status", ""), json_text_or(ended, "status", "")) != 0)
        return err_set(e, ERR_FORMAT, "it ended as %s (%s), recorded is %s",
                       json_text_or(op, "status", ""), json_text_or(op, "error_message", ""),
                       json_text_or(ended, "status", ""));
    if (strcmp(json_text_or(ended, "status", ""), "done") != 0)
        return 0;
    if (strcmp(json_text_or(begun, "type", ""), "forward_backward") == 0)
        return compare_pass(ended, response, e);
    if (strcmp(json_text_or(begun, "type", ""), "optim_step") == 0 &&
        compare_number(ended, json_object_get(response, "metrics"), "grad_norm", e) < 0)
        return -1;
    return compare_number(ended, response, "step", e);
}

/* Failures of the machine and the end of a run changed nothing; those of the numbers did. */
static bool is_repeatable(const json_t *ended)
{
    return strcmp(json_text_or(ended, "status", ""), "done") == 0 ||
           strcmp(json_text_or(ended, "error", ""), "training_failed") == 0;
}

static int redo_one(struct redo *x, const json_t *ended, struct err *e)
{
    json_t *begun = json_incref(json_object_get(x->begun, json_text_or(ended, "op", ""))), *op;
    int rc = -1;

    if (!begun)
        return err_set(e, ERR_FORMAT, "line %ld ends an operation that no line began", x->line);
    json_object_del(x->begun, json_text_or(ended, "op", ""));
    if (!is_repeatable(ended)) {
        json_decref(begun);
        return 0;
    }
    op = send(x, begun, e);
    if (op)
        rc = compare(begun, ended, op, e);
    if (rc == 0)
        x->done++;
    else
        err_wrap(e, "operation %s (line %ld, %s)", json_text_or(ended, "op", ""), x->line,
                 json_text_or(begun, "type", ""));
    json_decref(op);
    json_decref(begun);
    return rc;
}

static int redo_lines(struct redo *x, struct err *e)
{
    json_t *line = NULL;
    int rc;

    while ((rc = next_line(x, &line, e)) > 0) {
        if (json_object_get(line, "status"))
            rc = redo_one(x, line, e);
        else
            rc = json_object_set(x->begun, json_text_or(line, "op", ""), line) < 0 ? err_nomem(e)
                                                                                   : 0;
        json_decref(line);
        line = NULL;
        if (rc < 0)
            break;
    }
    return rc;
}

static int report(struct cli *cli, const struct redo *x, bool keep)
{
    if (cli->json)
        return cli_print_json(cli, json_pack("{s:i, s:b, s:o}", "operations", x->done, "same_bits",
                                             1, "run", keep ? json_string(x->model) : json_null()));
    fprintf(cli->out, "%d operations done again, every number has the same bits\n", x->done);
    if (keep)
        fprintf(cli->out, "run\t%s\n", x->model);
    return EXIT_OK;
}

int redo_run(struct cli *cli, struct client *c, const char *file, bool keep)
{
    struct redo x = {.client = c, .begun = json_object()};
    json_t *header = NULL;
    struct err e = {0};
    int rc = -1;

    x.file = fopen(file, "re");
    if (!x.file)
        err_io(&e, "%s", file);
    else if (read_header(&x, &header, &e) == 0 && make_run(&x, header, &e) == 0)
        rc = redo_lines(&x, &e);
    if (*x.model && !(rc == 0 && keep))
        end_run(&x);
    if (x.file)
        fclose(x.file);
    json_decref(header);
    json_decref(x.begun);
    return rc == 0 ? report(cli, &x, keep) : cli_fail(cli, &e);
}
