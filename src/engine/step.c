/* One step: plan rows, run the forward pass, pick tokens, tell who waits for them. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "engine/batch.h"
#include "engine/engine_impl.h"
#include "engine/gen.h"
#include "engine/image.h"
#include "engine/runner.h"
#include "engine/score.h"
#include "generate/sampler.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/logits.h"
#include "model/model.h"

/* One span's sequence and where its answers lie. */
struct part {
    struct sequence *sequence;
    int pos0;                   /* position of its first row */
    int first_select, n_select; /* its rows among the selected */
    int first_pick, n_picks;    /* its own token, then those of its followers */
};

struct pick {
    struct sequence *sequence;
    struct logits_row *row; /* may be shared by choices of one prompt */
    struct logits_row own;  /* what `row` points to when it is scored in a way of its own */
    float *full;            /* its own copy of the row's logits; NULL: the maximum is the token */
    int32_t token;          /* -1: none is possible */
    float logit;            /* of the token, before bias and penalties */
};

struct step {
    struct batch *batch;
    struct image *image;
    struct runner *runner;
    int n_parts, n_rows, n_select, n_picks, n_decode;
    struct part parts[ACTIVE_MAX];
    struct forward_span spans[ACTIVE_MAX];
    struct pick picks[ACTIVE_MAX];
    int select[FORWARD_ROWS_MAX];
    struct logits_row rows[FORWARD_ROWS_MAX];
};

struct step *step_new(struct err *e)
{
    struct step *st = calloc(1, sizeof *st);

    if (!st)
        err_nomem(e);
    return st;
}

void step_free(struct step *st)
{
    free(st);
}

/* ---- plan ---- */

/* The image whose turn it is: epochs in rising order, round and round. Epochs are never reused. */
static struct gen *next_image(struct batch *b)
{
    struct gen *after = NULL, *least = NULL;

    for (struct gen *g = b->running; g; g = g->next) {
        if (gen_active(g) == 0)
            continue; /* waits for KV memory */
        if (g->image->epoch > b->last_epoch && (!after || g->image->epoch < after->image->epoch))
            after = g;
        if (!least || g->image->epoch < least->image->epoch)
            least = g;
    }
    return after ? after : least;
}

static struct pick *add_pick(struct step *st, struct sequence *s, struct logits_row *row)
{
    struct pick *p = &st->picks[st->n_picks];

    *p = (struct pick){.sequence = s, .row = row};
    if (!sample_is_argmax(&s->params))
        p->full = runner_full_row(st->runner, st->n_picks);
    st->n_picks++;
    return p;
}

static struct logits_row *add_select(struct step *st, struct part *p, int row, int top_logprobs)
{
    struct logits_row *r = &st->rows[st->n_select];

    *r = (struct logits_row){.target = -1, .n_top = top_logprobs > 0 ? top_logprobs : 0};
    st->select[st->n_select++] = row;
    p->n_select++;
    return r;
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
 * rows of a prompt are looked at when it is scored. */
static void add_part(struct step *st, struct sequence *s, const int32_t *tokens, int n)
{
    struct part *p = &st->parts[st->n_parts];
    const struct gen_spec *spec = &s->gen->spec;
    bool scored = s->state == SEQ_PREFILL && spec->prompt_logprobs;

    *p = (struct part){.sequence = s,
                       .pos0 = kv_seq_length(s->kv),
                       .first_select = st->n_select,
                       .first_pick = st->n_picks};
    st->spans[st->n_parts++] = (struct forward_span){.seq = s->kv, .tokens = tokens, .n = n};
    for (int i = 0; i < n; i++) {
        bool last = s->state == SEQ_DECODE || p->pos0 + i + 1 == s->n_prompt;

        if (last && s->max_new > 0)
            add_picks(st, p, add_select(st, p, st->n_rows + i, spec->top_logprobs));
        else if (!last && scored)
            add_select(st, p, st->n_rows + i, spec->top_logprobs)->target = tokens[i + 1];
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

        memmove(&f->list[1], &f->list[0], (size_t)shortest * sizeof f->list[0]);
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
    int decoding = st->n_decode ? st->n_decode : anybody_decodes(st->batch);
    int room = step_clock_chunk(&st->runner->clock, decoding);

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

/* ---- run ---- */

/* Sampling changes a row, and it belongs to one choice only: the others copy it first. */
static void copy_rows(struct step *st)
{
    size_t bytes = (size_t)st->runner->config.vocab * sizeof(float);

    for (int i = 0; i < st->n_picks; i++) {
        struct pick *p = &st->picks[i];

        if (p->full && p->full != p->row->full)
            memcpy(p->full, p->row->full, bytes);
    }
}

static void pick_one(void *arg, int item, int worker)
{
    struct step *st = arg;
    struct pick *p = &st->picks[item];
    struct sequence *s = p->sequence;
    int vocab = st->runner->config.vocab;
    float *copy = runner_row_copy(st->runner, worker);

    p->token = p->row->argmax;
    p->logit = p->row->max;
    if (!p->row->finite || !p->full)
        return;
    bool told = s->gen->spec.top_logprobs >= 0; /* then the logit matters, before it is changed */

    if (told)
        memcpy(copy, p->full, (size_t)vocab * sizeof *copy);
    p->token = sample_pick(&s->params, p->full, vocab, &s->history, s->n_prompt + s->n_new,
                           runner_sample_scratch(st->runner, worker));
    if (told && p->token >= 0)
        p->logit = copy[p->token];
    if (told && s->gen->spec.score_sampled) {
        p->own = *p->row;
        p->row = &p->own;
        p->logit /= score_sampled(&p->own, copy, vocab, &s->params);
    }
}

static void pick_all(struct step *st)
{
    bool drawn = false;

    for (int i = 0; i < st->n_picks; i++)
        drawn = drawn || st->picks[i].full;
    if (drawn) {
        copy_rows(st);
        pool_run(st->batch->engine->pool, pick_one, st, st->n_picks);
    } else {
        for (int i = 0; i < st->n_picks; i++)
            pick_one(st, i, 0);
    }
}

static int run(struct step *st)
{
    struct runner *r = st->runner;
    struct forward_batch fb = {
        .spans = st->spans, .n_spans = st->n_parts, .select = st->select, .n_select = st->n_select};
    struct err e = {0};
    int64_t start = clock_mono_ns();

    if (forward_run(r->forward, st->image->model, &fb, r->hidden, &e) < 0)
        return -1;
    if (st->n_select > 0)
        logits_run(r->logits, st->image->model, r->hidden, st->n_select, st->rows);
    pick_all(st);
    if (st->n_rows > st->n_decode)
        step_clock_note(&r->clock, st->n_rows, clock_ms_since(start));
    return 0;
}

/* ---- answer ---- */

static void tell_token(struct sequence *s, enum gen_event_kind kind, int32_t token,
                       const struct logits_row *row, float logit)
{
    struct gen_top top[GEN_TOP_MAX];
    struct gen_event ev = {.kind = kind, .sequence = s->index, .token = token, .top = top};

    if (row && s->gen->spec.top_logprobs >= 0) {
        ev.has_logprob = true;
        ev.logprob = logits_logprob(row, logit);
        ev.n_top = row->n_top;
        for (int i = 0; i < row->n_top; i++)
            top[i] = (struct gen_top){row->top[i].token, logits_logprob(row, row->top[i].logit)};
    }
    gen_emit(s->gen, &ev);
}

static bool is_stop(const struct gen_spec *spec, int32_t token)
{
    for (int i = 0; i < spec->n_stop_ids; i++)
        if (spec->stop_ids[i] == token)
            return true;
    return false;
}

/* For the sequence that begins where this one ends (prefix.h). Without memory it goes on without.
 */
static void remember(struct sequence *s, int32_t token)
{
    if (s->n_new == s->made_size) {
        int size = s->made_size ? 2 * s->made_size : 64;
        int32_t *bigger =
            s->n_new == 0 || s->made ? realloc(s->made, (size_t)size * sizeof *bigger) : NULL;

        if (!bigger)
            free(s->made);
        s->made = bigger;
        s->made_size = size;
    }
    if (s->made)
        s->made[s->n_new] = token;
}

static void accept_token(struct batch *b, const struct pick *p)
{
    struct sequence *s = p->sequence;
    struct gen *g = s->gen;
    struct err e = {0};

    s->state = SEQ_DECODE;
    s->next = p->token;
    remember(s, p->token);
    s->n_new++;
    if (sample_needs_history(&s->params) &&
        sample_history_add(&s->history, p->token, true, &e) < 0) {
        g->outcome = GEN_NO_MEMORY;
        return;
    }
    tell_token(s, GEN_TOKEN, p->token, p->row, p->logit);
    if (is_stop(&g->spec, p->token))
        batch_end_sequence(b, s, GEN_STOP_ID);
    else if (atomic_load_explicit(&s->cut, memory_order_relaxed))
        batch_end_sequence(b, s, GEN_CUT);
    else if (s->n_new == s->max_new)
        batch_end_sequence(b, s, GEN_LENGTH);
}

/* One scored row tells the position behind it; the first position has nothing before it. */
static void tell_scores(struct step *st, const struct part *p, struct sequence *to)
{
    const struct sequence *s = p->sequence;

    if (p->pos0 == 0)
        tell_token(to, GEN_PROMPT_TOKEN, s->tokens[0], NULL, 0);
    for (int i = 0; i < p->n_select; i++) {
        const struct logits_row *row = &st->rows[p->first_select + i];

        if (row->target >= 0)
            tell_token(to, GEN_PROMPT_TOKEN, row->target, row, row->target_logit);
    }
}

static bool scores_finite(const struct step *st, const struct part *p)
{
    for (int i = 0; i < p->n_select; i++)
        if (!st->rows[p->first_select + i].finite)
            return false;
    return true;
}

static void tell_all_scores(struct step *st, const struct part *p)
{
    struct sequence *s = p->sequence;
    struct gen *g = s->gen;

    if (!g->spec.prompt_logprobs || s->state != SEQ_PREFILL)
        return;
    tell_scores(st, p, s);
    for (int i = s->index + 1; i < g->n_started; i++)
        if (g->sequences[i].state == SEQ_FOLLOWING && g->sequences[i].leader == s)
            tell_scores(st, p, &g->sequences[i]);
}

/* The prompt is all in and nothing is to be generated. */
static void end_scored(struct batch *b, struct sequence *s)
{
    struct gen *g = s->gen;

    for (int i = s->index + 1; i < g->n_started; i++)
        if (g->sequences[i].state == SEQ_FOLLOWING && g->sequences[i].leader == s)
            batch_end_sequence(b, &g->sequences[i], GEN_LENGTH);
    batch_end_sequence(b, s, GEN_LENGTH);
}

/* Forks come first: a leader may end with its first token. */
static void accept_picks(struct step *st, const struct part *p)
{
    struct gen *g = p->sequence->gen;
    const struct pick *picks = &st->picks[p->first_pick];

    for (int i = 1; i < p->n_picks; i++)
        if (batch_fork(st->batch, picks[i].sequence) < 0)
            g->outcome = GEN_NO_MEMORY;
    for (int i = 0; i < p->n_picks && g->outcome == GEN_DONE; i++) {
        if (picks[i].token < 0)
            g->outcome = GEN_NON_FINITE;
        else
            accept_token(st->batch, &picks[i]);
    }
}

static void answer(struct step *st, const struct part *p)
{
    struct sequence *s = p->sequence;
    struct gen *g = s->gen;

    if (g->outcome != GEN_DONE)
        return;
    if (!scores_finite(st, p)) {
        g->outcome = GEN_NON_FINITE;
        return;
    }
    tell_all_scores(st, p);
    if (p->n_picks > 0)
        accept_picks(st, p);
    else if (s->state == SEQ_PREFILL && prompt_left(s) == 0)
        end_scored(st->batch, s);
}

static void fail_all(struct step *st)
{
    for (int i = 0; i < st->n_parts; i++)
        st->parts[i].sequence->gen->outcome = GEN_NO_MEMORY;
}

bool batch_step(struct batch *b)
{
    struct step *st = b->step;
    struct gen *first = next_image(b);

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
    if (run(st) < 0)
        fail_all(st);
    else
        engine_note_step(b->engine, st->n_rows - st->n_decode, st->n_picks);
    for (int i = 0; i < st->n_parts; i++)
        answer(st, &st->parts[i]);
    batch_finish(b);
    return true;
}
