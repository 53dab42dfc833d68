/* Which rows the next step computes. */
#include "engine/batch.h"
#include "engine/gen.h"
#include "engine/image.h"
#include "engine/pooling.h"
#include "engine/step.h"
#include "model/kv_cache.h"

static struct pick *add_pick(struct step *st, struct sequence *s, struct logits_row *row)
{
    struct pick *p = &st->picks[st->n_picks];

    *p = (struct pick){.sequence = s, .row = row};
    if (!sample_is_argmax(&s->params) || s->gen->grammar)
        p->full = runner_full_row(st->runner, st->n_picks);
    st->n_picks++;
    return p;
}

static struct logits_row *add_select(struct step *st, struct part *p, int row, int top_logprobs)
{
    struct logits_row *r = &st->rows[st->n_select];

    *r = (struct logits_row){.target = -1,
                             .n_top = top_logprobs > 0 ? top_logprobs : 0,
                             .adapter = p->sequence->gen->adapter};
    st->select[st->n_select++] = row;
    p->n_select++;
    return r;
}

static void score(struct logits_row *row, const struct gen_spec *spec, int32_t target)
{
    row->target = target;
    row->temperature = spec->prompt_temperature;
}

/* Picks for the sequence and everyone who follows it: all from the same row. */
static void add_picks(struct step *st, struct part *p, struct logits_row *row)
{
    struct sequence *s = p->sequence;
    struct gen *g = s->gen;

    row->full = add_pick(st, s, row)->full;
    for (int i = s->index + 1; s->state == SEQ_PREFILL && i < g->n_started; i++)
        if (g->sequences[i].state == SEQ_FOLLOWING && g->sequences[i].leader == s)
            add_pick(st, &g->sequences[i], row);
    p->n_picks = st->n_picks - p->first_pick;
}

/* n rows of the sequence; the last row of a prompt and every row of decode is sampled, the other
 * rows of a prompt are looked at when it is scored; a vector takes the rows that it is made of. */
static void add_part(struct step *st, struct sequence *s, const int32_t *tokens, int n)
{
    struct part *p = &st->parts[st->n_parts];
    const struct gen_spec *spec = &s->gen->spec;
    bool scored = s->state == SEQ_PREFILL && spec->prompt_logprobs;

    *p = (struct part){.sequence = s,
                       .pos0 = kv_seq_length(s->kv),
                       .first_select = st->n_select,
                       .first_pick = st->n_picks};
    st->spans[st->n_parts++] =
        (struct forward_span){.seq = s->kv, .tokens = tokens, .n = n, .adapter = s->gen->adapter};
    for (int i = 0; i < n; i++) {
        bool last = s->state == SEQ_DECODE || p->pos0 + i + 1 == s->n_prompt;

        if (last && s->max_new > 0)
            add_picks(st, p, add_select(st, p, st->n_rows + i, spec->top_logprobs));
        else if (!last && scored)
            score(add_select(st, p, st->n_rows + i, spec->top_logprobs), spec, tokens[i + 1]);
        else if (pooling_takes(s, p->pos0 + i))
            add_select(st, p, st->n_rows + i, -1);
    }
    st->n_rows += n;
}

struct found {
    struct sequence *list[ACTIVE_MAX];
    int n;
};

/* Sequences of the step's image in one state, in order of arrival. */
static void find_sequences(struct step *st, enum sequence_state state, struct found *f)
{
    f->n = 0;
    for (struct gen *g = st->batch->running; g; g = g->next)
        for (int i = 0; g->image == st->image && i < g->n_started; i++)
            if (g->sequences[i].state == state)
                f->list[f->n++] = &g->sequences[i];
}

/* When there are more than one step takes, the window moves on each turn. */
static void plan_decode(struct step *st)
{
    struct found f;
    int n, start;

    find_sequences(st, SEQ_DECODE, &f);
    n = f.n < DECODE_MAX ? f.n : DECODE_MAX;
    start = f.n > DECODE_MAX ? (int)(st->batch->turn * DECODE_MAX % (uint64_t)f.n) : 0;
    for (int i = 0; i < n; i++) {
        struct sequence *s = f.list[(start + i) % f.n];

        add_part(st, s, &s->next, 1);
    }
    st->n_decode = n;
}

static int prompt_left(const struct sequence *s)
{
    return s->n_prompt - kv_seq_length(s->kv);
}

/* Every second chunk begins with the shortest rest, so that a long prompt does not hold up short
 * ones; the others with the oldest, so that short ones do not hold up a long one for ever. */
static void order_prompts(struct found *f, uint64_t turn)
{
    int shortest = 0;

    for (int i = 1; i < f->n; i++)
        if (prompt_left(f->list[i]) < prompt_left(f->list[shortest]))
            shortest = i;
    if (turn % 2 == 1 && f->n > 0) {
        struct sequence *s = f->list[shortest];

        for (int i = shortest; i > 0; i--)
            f->list[i] = f->list[i - 1];
        f->list[0] = s;
    }
}

static bool anybody_decodes(const struct batch *b)
{
    for (const struct gen *g = b->running; g; g = g->next)
        for (int i = 0; i < g->n_started; i++)
            if (g->sequences[i].state == SEQ_DECODE)
                return true;
    return false;
}

static void plan_prefill(struct step *st)
{
    struct found f;
    int room = step_clock_chunk(&st->runner->clock, anybody_decodes(st->batch));

    if (room > FORWARD_ROWS_MAX - st->n_rows)
        room = FORWARD_ROWS_MAX - st->n_rows;
    find_sequences(st, SEQ_PREFILL, &f);
    order_prompts(&f, st->batch->turn);
    for (int i = 0; i < f.n && room > 0; i++) {
        struct sequence *s = f.list[i];
        int n = prompt_left(s) < room ? prompt_left(s) : room;

        add_part(st, s, s->tokens + kv_seq_length(s->kv), n);
        room -= n;
    }
}

bool step_plan(struct step *st, struct batch *b)
{
    struct gen *first = turn_next(b);

    if (!first)
        return false;
    st->batch = b;
    st->image = first->image;
    st->runner = first->runner;
    st->n_parts = st->n_rows = st->n_select = st->n_picks = st->n_decode = 0;
    b->last_epoch = first->image->epoch;
    b->turn++;
    plan_decode(st);
    plan_prefill(st);
    return true;
}
