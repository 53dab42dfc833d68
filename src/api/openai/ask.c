#include "api/openai/ask.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "api/body.h"
#include "base/buf.h"
#include "base/err.h"
#include "engine/served.h"
#include "generate/grammar.h"
#include "http/request.h"
#include "http/response.h"
#include "service/batches.h"
#include "service/gen_refusal.h"
#include "service/identity.h"
#include "service/service.h"
#include "service/weaver/names.h"

void problem(struct ask *a, enum refusal_code code, const char *param, const char *fmt, ...)
{
    char message[REFUSAL_MESSAGE_MAX / 2];
    va_list args;

    if (a->problems.n++ > 0)
        return;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    refuse_param(&a->problems.first, code, param, "%s", message);
}

void ask_ignore(struct ask *a, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    json_array_append_new(a->ignored, json_vsprintf(fmt, args));
    va_end(args);
}

static bool is_word_of(const char *words, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == len && memcmp(at, word, len) == 0)
            return true;
    return false;
}

void ask_ignore_others(struct ask *a, const char *path, const json_t *o, const char *known)
{
    const char *key;
    json_t *v;

    json_object_foreach ((json_t *)(uintptr_t)o, key, v)
        if (!json_is_null(v) && !is_word_of(known, key))
            ask_ignore(a, "%s.%s", path, key);
}

bool ask_is_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

    return name && *name && strlen(name) <= ASK_NAME_MAX && !name[strspn(name, allowed)];
}

const char *ask_path(struct ask *a, const char *fmt, ...)
{
    struct buf text = {0};
    char *path = NULL;
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n > 0 && buf_reserve(&text, (size_t)n)) {
        va_start(args, fmt);
        vsnprintf(text.data, (size_t)n + 1, fmt, args);
        va_end(args);
        path = arena_strdup(&a->arena, text.data, (size_t)n);
    }
    buf_release(&text);
    return path ? path : "";
}

static void watch_request(void *req, void (*fn)(void *), void *arg)
{
    http_req_on_gone(req, fn, arg);
}

void ask_init(struct ask *a, struct api_call *call)
{
    *a = (struct ask){.call = call, .owned = json_array(), .ignored = json_array()};
    a->job = (struct chat_job){
        .ask.gone = http_req_gone(a->call->req),
        .watch = watch_request,
        .watch_arg = a->call->req,
        .ask.lease = http_req_header(a->call->req, "X-miLLM-Lease"),
        .ask.authorization = http_req_header(a->call->req, "Authorization"),
        .ask.load_counter = call->row ? call->row->load_counter : 0,
        .background = call->row != NULL,
        .add_special = true,
        .n = 1,
        .max_tokens = -1,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .top_logprobs = -1,
    };
}

static int read_model(struct ask *a, struct refusal *r)
{
    const json_t *model = json_object_get(a->body, "model");
    struct identity_match ignored;

    if (a->job.ask.load_counter) /* a row of a batch: its weights are known */
        return 0;
    if (!json_is_string(model) || json_string_length(model) == 0)
        return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "model",
                            "model must be the name of a model; GET /v1/models lists them.");
    a->job.ask.model = json_string_value(model);
    if (weaver_names(a->job.ask.model))
        return weaver_permit(a->call->api->service, a->job.ask.authorization, r);
    return identity_find(a->call->api->service, a->job.ask.model, &ignored, r);
}

int ask_begin(struct ask *a, struct api_call *call, struct refusal *r)
{
    struct err e = {0};

    ask_init(a, call);
    a->body = api_body_read(call->req, &e);
    if (!a->body)
        return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "", "%s", e.msg);
    if (identity_refuse_torn(call->api->service, r) < 0)
        return -1;
    return read_model(a, r);
}

bool ask_only_checks(const struct ask *a)
{
    return a->call->row && a->call->row->check_only;
}

int ask_read(struct ask *a, struct api_call *call, ask_parse_fn *parse, struct refusal *r)
{
    struct refusal form = {0};
    int rc = ask_begin(a, call, r);

    if (rc == 0) {
        rc = parse(a, r);
        if (a->no_memory ||
            a->arena.failed) /* what is missing then is not what the request lacks */
            rc = gen_refuse_memory(r);
        return rc;
    }
    if (a->body && ask_only_checks(a) && parse(a, &form) < 0 &&
        form.code == REFUSAL_V1_INVALID_PARAMETER)
        refuse_param(r, form.code, form.param, "%s", form.message);
    refusal_clear(&form);
    return -1;
}

void ask_release(struct ask *a)
{
    refusal_clear(&a->problems.first);
    json_decref(a->body);
    json_decref(a->owned);
    grammar_unref(a->grammar);
    json_decref(a->ignored);
    arena_release(&a->arena);
}

/* ---- what goes back in headers ---- */

/* A string of RFC 8941: printable ASCII; what is not, and what would end it, as %XX. */
static void add_location(struct buf *b, const char *s)
{
    buf_add_char(b, '"');
    for (; *s; s++)
        if (*s < 0x20 || *s > 0x7e || strchr("%\"\\", *s))
            buf_printf(b, "%%%02X", (unsigned char)*s);
        else
            buf_add_char(b, *s);
    buf_add_char(b, '"');
}

/* As many locations as fit, then how many more there are. */
void ask_add_ignored(struct ask *a)
{
    enum { MORE_BYTES = 24 };
    size_t most = (size_t)a->call->api->service->settings->ignored_fields_max_bytes;
    size_t n = json_array_size(a->ignored), i;
    struct buf all = {0}, one = {0};

    for (i = 0; i < n; i++) {
        buf_reset(&one);
        add_location(&one, json_string_value(json_array_get(a->ignored, i)));
        if (all.len + one.len + 2 + (i + 1 < n ? MORE_BYTES : 0) > most)
            break;
        buf_printf(&all, "%s%s", i ? ", " : "", buf_str(&one));
    }
    if (i < n)
        buf_printf(&all, "%s\"+%zu more\"", i ? ", " : "", n - i);
    if (n)
        http_resp_header(a->call->resp, "X-miLLM-Ignored-Fields", buf_str(&all));
    buf_release(&all);
    buf_release(&one);
}

void ask_add_headers(struct ask *a, const struct chat_start *start)
{
    struct http_resp *resp = a->call->resp;
    struct buf model = {0};

    identity_header(start->served, &model);
    http_resp_header(resp, "X-miLLM-Model", buf_str(&model));
    http_resp_header(resp, "X-miLLM-Backend",
                     a->call->api->service->settings->continuous_batching ? "cbm" : "serial");
    if (start->served->adapter[0])
        http_resp_headerf(resp, "X-miLLM-Adapter", "\"%s\"", start->served->adapter);
    if (a->job.has_seed)
        http_resp_headerf(resp, "X-miLLM-Seed", "%llu;scope=\"request\"",
                          (unsigned long long)a->job.seed);
    if (a->job.n_conversations && !a->stream)
        http_resp_headerf(resp, "X-miLLM-Batch", "%d", a->job.n_conversations);
    ask_add_ignored(a);
    buf_release(&model);
}
