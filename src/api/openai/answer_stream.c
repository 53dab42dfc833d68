/* api/openai/answer_stream.c - an answer as server-sent events (section 7.4).
 *
 * Frames: an opening for each choice, deltas, a last delta with the reason for each choice, a chunk
 * without choices that carries millm_model (and the usage, where it was asked for), [DONE]. Without
 * include_usage, the usage stands beside the last reason; so one reason is always held back until
 * the next one, or the end, comes. */
#include <string.h>
#include <time.h>

#include "api/api.h"
#include "api/openai/answer.h"
#include "api/openai/ask.h"
#include "api/openai/errors.h"
#include "api/openai/render.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/nomem.h"
#include "engine/served.h"
#include "http/sse.h"
#include "service/gen_refusal.h"

struct streaming {
    struct ask *ask;
    const struct answer_form *form;
    struct http_stream *out; /* NULL until the request has its slot */
    const struct tokenizer *tokenizer;
    char id[COMPLETION_ID_MAX];
    json_int_t created;
    json_t *model;           /* owned string */
    struct buf millm_model;  /* as in the header */
    int n_calls[CHAT_N_MAX]; /* of each choice so far; streams with tools have one conversation */
    int held_choice;         /* whose reason is held back; -1: none */
    enum chat_finish held_reason;
    bool failed; /* a chunk is missing: nothing more is sent but the error */
};

static void send_json(struct streaming *s, json_t *v)
{
    struct buf text = {0};

    if (v)
        json_write(&text, v);
    s->failed |= !v || text.failed || nomem_noted();
    if (!s->failed && sse_send(s->out, text.data, text.len) < 0)
        s->failed = true; /* or the client has left: it gets nothing any more */
    buf_release(&text);
    json_decref(v);
}

/* A chunk around an entry of choices, which is consumed; NULL: no choices. */
static json_t *chunk(const struct streaming *s, json_t *choice)
{
    json_t *choices = json_array();

    if (choice)
        json_array_append_new(choices, choice);
    return json_pack("{s:s, s:s, s:I, s:O, s:o}", "id", s->id, "object", s->form->chunk_object,
                     "created", s->created, "model", s->model, "choices", choices);
}

static void on_started(void *arg, const struct chat_start *start)
{
    struct streaming *s = arg;

    s->tokenizer = start->tokenizer;
    s->model = json_string(start->served->name);
    identity_header(start->served, &s->millm_model);
    ask_add_headers(s->ask, start);
    s->out = sse_begin(s->ask->call->resp);
    for (int i = 0; i < start->n_choices; i++) {
        json_t *opening = s->form->opening(i);

        if (opening)
            send_json(s, chunk(s, opening));
    }
}

static void on_piece(void *arg, int choice, const char *text, size_t len,
                     const struct chat_token *tokens, int n_tokens)
{
    struct streaming *s = arg;

    send_json(s,
              chunk(s, s->form->delta(s->ask, s->tokenizer, choice, text, len, tokens, n_tokens)));
}

static void on_call(void *arg, int choice, const char *name, const char *arguments)
{
    struct streaming *s = arg;

    send_json(s, chunk(s, s->form->call_delta(choice, s->n_calls[choice]++, name, arguments)));
}

static void send_held(struct streaming *s, const struct chat_usage *usage)
{
    json_t *entry, *whole;

    if (s->held_choice < 0)
        return;
    entry = s->form->delta(s->ask, s->tokenizer, s->held_choice, NULL, 0, NULL, 0);
    json_object_set_new(entry, "finish_reason", json_string(finish_word(s->held_reason)));
    whole = chunk(s, entry);
    if (usage)
        json_object_set_new(whole, "usage", usage_object(usage));
    send_json(s, whole);
    s->held_choice = -1;
}

static void on_finished(void *arg, int choice, enum chat_finish why)
{
    struct streaming *s = arg;

    send_held(s, NULL);
    s->held_choice = choice;
    s->held_reason = why;
}

static void send_terminal(struct streaming *s, const struct chat_usage *usage)
{
    json_t *last;

    send_held(s, s->ask->include_usage ? NULL : usage);
    last = chunk(s, NULL);
    json_object_set_new(last, "millm_model", json_string(buf_str(&s->millm_model)));
    if (s->ask->include_usage)
        json_object_set_new(last, "usage", usage_object(usage));
    send_json(s, last);
}

static void end_stream(struct streaming *s, int rc, const struct chat_usage *usage,
                       const struct refusal *r)
{
    struct refusal lost = {0};

    if (rc == 0)
        send_terminal(s, usage);
    if (rc == 0 && s->failed)
        rc = gen_refuse_memory(&lost);
    if (rc < 0) {
        s->failed = false;
        nomem_forget();
        send_json(s, openai_error(s->ask->call->api->service, lost.code ? &lost : r, 1));
    }
    refusal_clear(&lost);
    sse_send(s->out, "[DONE]", strlen("[DONE]"));
    sse_end(s->out);
}

void answer_stream(struct ask *a, const struct answer_form *form)
{
    struct streaming s = {
        .ask = a, .form = form, .created = (json_int_t)time(NULL), .held_choice = -1};
    struct chat_sink sink = {.arg = &s,
                             .started = on_started,
                             .piece = on_piece,
                             .call = on_call,
                             .finished = on_finished};
    struct chat_usage usage;
    struct refusal r = {0};
    int rc;

    make_completion_id(form->id_prefix, s.id);
    rc = chat_run(a->call->api->service, &a->job, &sink, &usage, &r);
    if (s.out)
        end_stream(&s, rc, &usage, &r);
    else
        openai_fail(a->call, &r);
    json_decref(s.model);
    buf_release(&s.millm_model);
    refusal_clear(&r);
}
