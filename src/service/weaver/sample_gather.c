/* service/weaver/sample_gather.c - events become sequences. On the engine thread: memory and a few
 * bytes of text a token, nothing that waits. */
#include <stdlib.h>
#include <string.h>

#include "engine/image.h"
#include "service/weaver/samplers.h"
#include "service/weaver/samples.h"
#include "text/tokenizer.h"

int sample_gather_begin(struct sample_op *x)
{
    size_t n = (size_t)x->n_prompt, top = (size_t)x->p.prompt_top;

    x->sequences = calloc((size_t)x->p.copies, sizeof *x->sequences);
    x->prompt_logprobs = calloc(n, sizeof *x->prompt_logprobs);
    x->prompt_tops = calloc(n * top + 1, sizeof *x->prompt_tops);
    x->n_prompt_tops = calloc(n, sizeof *x->n_prompt_tops);
    x->failed = false;
    x->prompt_seen = 0;
    if (!x->sequences || !x->prompt_logprobs || !x->prompt_tops || !x->n_prompt_tops)
        return -1;
    for (int i = 0; i < x->p.copies; i++) {
        if (x->sampler->image->files->tokenizer)
            decode_stream_init(&x->sequences[i].decode, x->sampler->image->files->tokenizer,
                               TOK_SKIP_SPECIAL);
        stop_init(&x->sequences[i].stop, x->p.stops, x->p.n_stops);
    }
    return 0;
}

static void release(struct sample_sequence *s)
{
    free(s->tokens);
    free(s->logprobs);
    free(s->old);
    free(s->head);
    buf_release(&s->masks);
    buf_release(&s->decoded);
    buf_release(&s->text);
    stop_release(&s->stop);
}

void sample_gather_end(struct sample_op *x)
{
    for (int i = 0; x->sequences && i < x->p.copies; i++)
        release(&x->sequences[i]);
    free(x->sequences);
    free(x->prompt_logprobs);
    free(x->prompt_tops);
    free(x->n_prompt_tops);
    x->sequences = NULL;
    x->prompt_logprobs = NULL;
    x->prompt_tops = NULL;
    x->n_prompt_tops = NULL;
}

/* ---- one token ---- */

static bool make_room(struct sample_op *x, struct sample_sequence *s)
{
    size_t cap = s->cap ? 2 * (size_t)s->cap : 32, head = (size_t)x->p.head;
    void *grown;

    if (s->n < s->cap)
        return true;
    if (!(grown = realloc(s->tokens, cap * sizeof *s->tokens)))
        return false;
    s->tokens = grown;
    if (!(grown = realloc(s->logprobs, cap * sizeof *s->logprobs)))
        return false;
    s->logprobs = grown;
    if (!(grown = realloc(s->old, cap * sizeof *s->old)))
        return false;
    s->old = grown;
    if (head && !(grown = realloc(s->head, cap * head * sizeof *s->head)))
        return false;
    if (head)
        s->head = grown;
    s->cap = (int)cap;
    return true;
}

static void add_mask(struct sample_sequence *s, const struct gen_event *ev)
{
    buf_add_str(&s->masks, s->n ? ",[" : "[");
    for (int i = 0; i < ev->n_drawn; i++)
        buf_printf(&s->masks, i ? ",%d" : "%d", (int)ev->drawn[i]);
    buf_add_char(&s->masks, ']');
}

static bool is_own_end(const struct sample_op *x, int32_t token)
{
    for (int i = 0; i < x->p.n_own_stop_ids; i++)
        if (x->p.stop_ids[i] == token)
            return true;
    return false;
}

/* True: a stop string is complete. */
static bool add_text(struct sample_op *x, struct sample_sequence *s, int32_t token)
{
    if (!s->decode.tokenizer || is_own_end(x, token))
        return false;
    decode_stream_push(&s->decode, token, &s->decoded);
    s->cut = stop_push(&s->stop, buf_str(&s->decoded), s->decoded.len, &s->text);
    buf_reset(&s->decoded);
    return s->cut;
}

static void add_token(struct sample_op *x, const struct gen_event *ev)
{
    struct sample_sequence *s = &x->sequences[ev->sequence];
    int head = x->p.head;

    if (s->cut || x->failed)
        return;
    if (!make_room(x, s)) {
        x->failed = true;
        return;
    }
    s->tokens[s->n] = ev->token;
    s->logprobs[s->n] = ev->logprob;
    s->old[s->n] = ev->drawn_logprob;
    for (int i = 0; i < head && i < ev->n_top; i++)
        s->head[s->n * head + i] = ev->top[i];
    if (x->p.masks)
        add_mask(s, ev);
    s->n++;
    if (add_text(x, s, ev->token))
        gen_cut_sequence(x->gen, ev->sequence);
}

static void end_sequence(struct sample_op *x, const struct gen_event *ev)
{
    struct sample_sequence *s = &x->sequences[ev->sequence];

    s->ended = true;
    s->reason = ev->reason;
}

/* ---- the prompt, which all sequences share ---- */

static void add_prompt_token(struct sample_op *x, const struct gen_event *ev, int at)
{
    int n = ev->n_top < x->p.prompt_top ? ev->n_top : x->p.prompt_top;

    x->prompt_logprobs[at] = ev->logprob;
    x->n_prompt_tops[at] = n;
    if (n > 0)
        memcpy(x->prompt_tops + (ptrdiff_t)at * x->p.prompt_top, ev->top,
               (size_t)n * sizeof *ev->top);
}

void sample_on_event(void *op, const struct gen_event *ev)
{
    struct sample_op *x = op;

    pthread_mutex_lock(&x->lock); /* engine_submit has returned: x->gen is set */
    pthread_mutex_unlock(&x->lock);
    switch (ev->kind) {
    case GEN_PROMPT_TOKEN:
        if (ev->sequence == 0 && x->prompt_seen < x->n_prompt)
            add_prompt_token(x, ev, x->prompt_seen++);
        break;
    case GEN_TOKEN:
        add_token(x, ev);
        break;
    case GEN_SEQUENCE_DONE:
        end_sequence(x, ev);
        break;
    default:
        if (ev->kind >= GEN_DONE) {
            x->outcome = ev->kind;
            w_op_engine_done(x->w, &x->op);
        }
    }
}
