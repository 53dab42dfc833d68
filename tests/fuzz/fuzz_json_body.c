/* Foreign bytes as the body of a request: JSON, then the fields of both /v1 routes.
 *
 * What must hold: no crash and no leak; what the strict reader accepts it writes back as text that
 * reads as an equal value; an accepted request has a job within its limits; a refused one has a
 * sentence. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/openai/ask.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "http/call.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(c)     \
    do {             \
        if (!(c))    \
            abort(); \
    } while (0)

static void check_round_trip(const json_t *v)
{
    struct buf text = {0};
    struct err e = {0};
    json_t *again;

    json_write(&text, v);
    again = json_parse(buf_str(&text), text.len, &e);
    CHECK(again && json_equal((json_t *)v, again));
    json_decref(again);
    buf_release(&text);
}

static void check_job(const struct ask *a)
{
    const struct chat_job *job = &a->job;

    CHECK(job->n >= 1 && job->best_of >= job->n && job->best_of <= CHAT_N_MAX);
    CHECK(job->n_conversations + job->n_prompts >= 1);
    CHECK(job->temperature >= 0 && job->temperature <= 2 && job->top_p >= 0 && job->top_p <= 1);
    CHECK(job->max_tokens >= -1 && job->n_stops <= STOP_STRINGS_MAX);
    CHECK(job->top_logprobs >= -1 && job->top_logprobs <= CHAT_TOP_MAX);
    for (int i = 0; i < job->n_stops; i++)
        CHECK(job->stops[i].len >= 1 && job->stops[i].len <= STOP_BYTES_MAX);
}

static void try_route(json_t *body, int (*parse)(struct ask *, struct refusal *))
{
    static struct http_call exchange; /* a request without headers */
    struct api_call call = {.req = &exchange.req};
    struct refusal r = {0};
    struct ask a;

    ask_init(&a, &call);
    a.body = json_incref(body);
    if (parse(&a, &r) == 0)
        check_job(&a);
    else
        CHECK(r.message[0] && refusal_status(r.code) == 400);
    ask_release(&a);
    refusal_clear(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    json_t *v = json_parse((const char *)data, size, &e);

    if (!v)
        return 0;
    check_round_trip(v);
    if (json_is_object(v)) {
        try_route(v, ask_parse_chat);
        try_route(v, ask_parse_completion);
    }
    json_decref(v);
    return 0;
}
