#include "service/chat_choice.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

/* ---- text and calls of an answer with tools ---- */

static void on_text(void *arg, const char *text, size_t len)
{
    struct choice *c = arg;

    c->sink->piece(c->sink->arg, c->index, text, len, c->tokens, c->n_tokens);
    c->n_tokens = 0;
}

static void on_call(void *arg, const char *name, const char *arguments)
{
    struct choice *c = arg;

    if (c->n_calls > 0 && c->job->tools.one_call)
        return;
    c->n_calls++;
    c->sink->call(c->sink->arg, c->index, name, arguments);
}

/* The marks around calls may be special tokens; here they are text all the same. */
static bool is_mark(const struct choice *c, int32_t token)
{
    const char *marks[] = {tool_form_open(c->tools.form), tool_form_close(c->tools.form)};
    const char *bytes;
    size_t len;

    if (!marks[0] || !tokenizer_is_special(c->decode.tokenizer, token) ||
        !tokenizer_token_bytes(c->decode.tokenizer, token, &bytes, &len))
        return false;
    for (int i = 0; i < 2; i++)
        if (strlen(marks[i]) == len && memcmp(marks[i], bytes, len) == 0)
            return true;
    return false;
}

void choice_init(struct choice *c, int index, const struct chat_job *job,
                 const struct chat_sink *sink, const struct tokenizer *t, enum tool_form form)
{
    const struct tool_sink tools = {.arg = c, .text = on_text, .call = on_call};

    *c = (struct choice){.index = index, .sink = sink, .job = job};
    tool_reader_init(&c->tools, form, job->tools.list, &tools);
    decode_stream_init(&c->decode, t, 0);
    stop_init(&c->stop, job->stops, job->n_stops);
}

static int64_t count_characters(const struct buf *b)
{
    int64_t n = 0;

    for (size_t i = 0; i < b->len; i++)
        n += ((unsigned char)b->data[i] & 0xc0) != 0x80;
    return n;
}

/* Decodes one token into *out and returns how many characters stand between the text so far and the
 * token's own text: 1 where bytes that were held turn out to be no character, else 0. */
static int decode(struct choice *c, int32_t token, struct buf *out)
{
    size_t before = out->len;
    bool held = c->decode.n_held > 0;
    const char *bytes;
    size_t n;

    decode_stream_push(&c->decode, token, out);
    return held && out->len - before >= 3 && memcmp(out->data + before, "\xEF\xBF\xBD", 3) == 0 &&
           tokenizer_token_bytes(c->decode.tokenizer, token, &bytes, &n) && n > 0 &&
           ((unsigned char)bytes[0] & 0xc0) != 0x80;
}

/* Only answers with log-probabilities need the tokens. */
static void keep_token(struct choice *c, const struct gen_event *ev, int skipped)
{
    struct chat_token *t;

    if (c->job->top_logprobs < 0)
        return;
    if (c->n_tokens == c->cap_tokens) {
        int cap = c->cap_tokens ? 2 * c->cap_tokens : 8;
        struct chat_token *grown = realloc(c->tokens, (size_t)cap * sizeof *grown);

        if (!grown) {
            c->failed = true;
            return;
        }
        c->tokens = grown;
        c->cap_tokens = cap;
    }
    t = &c->tokens[c->n_tokens++];
    t->id = ev->token;
    t->of_prompt = ev->kind == GEN_PROMPT_TOKEN;
    t->has_logprob = ev->has_logprob;
    t->logprob = ev->logprob;
    t->n_top = ev->n_top;
    t->text_offset = c->characters + skipped;
    if (ev->n_top > 0)
        memcpy(t->top, ev->top, (size_t)ev->n_top * sizeof *t->top);
}

static void tell(struct choice *c)
{
    c->failed = c->failed || c->ready.failed || c->decoded.failed;
    if (c->failed || (c->ready.len == 0 && c->n_tokens == 0))
        return;
    if (c->tools.form != TOOLS_NONE)
        tool_reader_push(&c->tools, buf_str(&c->ready), c->ready.len);
    else
        on_text(c, buf_str(&c->ready), c->ready.len);
    if (c->n_tokens > 0)
        on_text(c, "", 0);
    buf_reset(&c->ready);
}

void choice_add_prompt(struct choice *c, const struct gen_event *ev, bool silent)
{
    size_t before = c->ready.len;
    struct buf added;

    if (silent) {
        keep_token(c, ev, 0);
        return;
    }
    c->decode.flags = 0;
    keep_token(c, ev, decode(c, ev->token, &c->ready));
    added = (struct buf){.data = c->ready.data ? c->ready.data + before : NULL,
                         .len = c->ready.len - before};
    c->characters += count_characters(&added);
}

void choice_prompt_done(struct choice *c)
{
    size_t before = c->ready.len;

    decode_stream_flush(&c->decode, &c->ready);
    c->characters += c->ready.len > before;
    tell(c);
}

/* The decoded text goes through the search for stop strings. */
static bool pass_on(struct choice *c)
{
    bool found = stop_push(&c->stop, buf_str(&c->decoded), c->decoded.len, &c->ready);

    c->failed |= c->decoded.failed || c->ready.failed; /* a part of the text is missing */
    c->characters += count_characters(&c->decoded);
    buf_reset(&c->decoded);
    return found;
}

bool choice_add(struct choice *c, const struct gen_event *ev, bool is_end)
{
    if (c->ended)
        return false;
    c->n_generated++;
    c->decode.flags = is_mark(c, ev->token) ? 0 : TOK_SKIP_SPECIAL;
    keep_token(c, ev, is_end ? 0 : decode(c, ev->token, &c->decoded));
    if (pass_on(c)) {
        choice_finish(c, CHAT_STOP);
        return true;
    }
    if (c->ready.len)
        tell(c);
    if (c->n_calls > 0 && c->job->tools.one_call) {
        choice_finish(c, CHAT_STOP);
        return true;
    }
    return false;
}

void choice_finish(struct choice *c, enum chat_finish why)
{
    if (c->ended)
        return;
    c->ended = true;
    if (!c->stop.found) {
        decode_stream_flush(&c->decode, &c->decoded);
        if (pass_on(c))
            why = CHAT_STOP;
        stop_flush(&c->stop, &c->ready);
        c->failed |= c->ready.failed;
    }
    tell(c);
    tool_reader_finish(&c->tools);
    c->failed = c->failed || c->tools.failed;
    if (why == CHAT_STOP && c->n_calls > 0)
        why = CHAT_TOOL_CALLS;
    if (!c->failed)
        c->sink->finished(c->sink->arg, c->index, why);
}

void choice_release(struct choice *c)
{
    stop_release(&c->stop);
    buf_release(&c->decoded);
    buf_release(&c->ready);
    tool_reader_release(&c->tools);
    free(c->tokens);
}
