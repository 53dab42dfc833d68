/* api/openai/embeddings.c
 * POST /v1/embeddings  {"model", "input", "encoding_format"?, "pooling"?, "normalize"?,
 * "dimensions"?}
 * 200 list of embeddings; refusals: docs/api/errors.md. What a vector is: service/embed.h. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "api/envelope.h"
#include "api/openai/ask.h"
#include "api/openai/errors.h"
#include "api/openai/routes.h"
#include "base/buf.h"
#include "base/json.h"
#include "engine/served.h"
#include "http/response.h"
#include "service/service.h"

/* ---- the request ---- */

struct word {
    const char *text;
    int value;
};

/* The value of a word of the list (ended by NULL), or of the first one when the field is absent. */
static int parse_word(struct ask *a, const char *name, const struct word *words)
{
    const json_t *v = field(a, name);
    struct buf list = {0};

    if (!v)
        return words->value;
    for (const struct word *w = words; w->text; w++) {
        if (json_is_string(v) && strcmp(w->text, json_string_value(v)) == 0) {
            buf_release(&list);
            return w->value;
        }
        buf_printf(&list, "%s%s", w == words ? "" : ", ", w->text);
    }
    problem(a, REFUSAL_V1_INVALID_PARAMETER, name, "%s must be one of %s.", name, buf_str(&list));
    buf_release(&list);
    return words->value;
}

int ask_parse_embedding(struct ask *a, struct refusal *r)
{
    static const struct word poolings[] = {
        {"mean", GEN_POOL_MEAN}, {"last", GEN_POOL_LAST}, {"cls", GEN_POOL_FIRST}, {NULL, 0}};
    static const struct word formats[] = {{"float", false}, {"base64", true}, {NULL, 0}};
    struct prompt_field input = {.name = "input",
                                 .most = a->call->api->service->settings->embeddings_max_inputs,
                                 .needs_text = true};
    struct embed_job *job = &a->embed;

    fields_check(a, ON_EMBEDDINGS);
    parse_load_policy(a);
    job->ask = a->job.ask;
    job->watch = a->job.watch;
    job->watch_arg = a->job.watch_arg;
    job->background = a->job.background;
    job->pooling = (enum gen_pooling)parse_word(a, "pooling", poolings);
    a->base64 = parse_word(a, "encoding_format", formats);
    job->n_inputs = parse_prompts(a, &input, &job->inputs);
    job->is_list =
        json_is_array(field(a, "input")) && !json_is_integer(json_array_get(field(a, "input"), 0));
    return ask_verdict(a, r);
}

/* ---- the answer ---- */

/* Nine digits give the same float back. */
static void add_numbers(struct buf *b, const float *v, int n)
{
    char text[32];

    buf_add_char(b, '[');
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s%.9g", i ? "," : "", (double)v[i]);
        buf_add_str(b, text);
    }
    buf_add_char(b, ']');
}

/* Byte i of the vector as little-endian binary32. */
static unsigned byte_of(const float *v, size_t i)
{
    uint32_t bits;

    memcpy(&bits, &v[i / 4], sizeof bits);
    return bits >> 8 * (i % 4) & 0xff;
}

/* RFC 4648, section 4. */
static void add_base64(struct buf *b, const float *v, int n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t bytes = (size_t)n * 4;

    buf_add_char(b, '"');
    for (size_t i = 0; i < bytes; i += 3) {
        size_t have = bytes - i < 3 ? bytes - i : 3;
        unsigned group = byte_of(v, i) << 16;

        if (have > 1)
            group |= byte_of(v, i + 1) << 8;
        if (have > 2)
            group |= byte_of(v, i + 2);
        for (size_t k = 0; k < 4; k++)
            buf_add_char(b, k <= have ? digits[group >> (18 - 6 * k) & 63] : '=');
    }
    buf_add_char(b, '"');
}

/* Written as text at once: a value for each number would take many times the memory. */
static void write_body(const struct ask *a, const struct embedded *got, struct buf *b)
{
    buf_add_str(b, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < a->embed.n_inputs; i++) {
        const float *v = got->vectors + (size_t)i * (size_t)got->width;

        buf_printf(b, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        if (a->base64)
            add_base64(b, v, got->width);
        else
            add_numbers(b, v, got->width);
        buf_add_char(b, '}');
    }
    buf_add_str(b, "],\"model\":");
    json_write_str(b, got->served->name, strlen(got->served->name));
    buf_printf(b, ",\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":0,\"total_tokens\":%d}}",
               got->prompt_tokens, got->prompt_tokens);
}

static void answer(struct ask *a, const struct embedded *got)
{
    struct chat_start start = {.served = got->served};
    struct buf body = {0};

    ask_add_headers(a, &start);
    write_body(a, got, &body);
    api_text(a->call, 200, &body);
}

void openai_embeddings(struct api_call *call)
{
    struct embedded got = {0};
    struct refusal r = {0};
    struct ask a;
    bool ok = ask_read(&a, call, ask_parse_embedding, &r) == 0;
    bool only_checks = ok && ask_only_checks(&a);

    if (ok && !only_checks)
        ok = embed_run(call->api->service, &a.embed, &got, &r) == 0;
    if (!ok)
        openai_fail(call, &r);
    else if (only_checks)
        api_json(call, 200, json_object());
    else
        answer(&a, &got);
    embed_release(&got);
    ask_release(&a);
    refusal_clear(&r);
}
