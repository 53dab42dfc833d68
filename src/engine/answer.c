/* What a step has found is told to those who asked. */
#include <stdlib.h>

#include "base/err.h"
#include "engine/batch.h"
#include "engine/engine_impl.h"
#include "engine/gen.h"
#include "engine/meter.h"
#include "engine/pooling.h"
#include "engine/step.h"
#include "generate/grammar.h"
#include "model/kv_cache.h"

static void tell_token(struct sequence *s, enum gen_event_kind kind, int32_t token,
                       const struct logits_row *row, float logit, const struct sample_drawn *drawn)
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
    if (drawn) {
        ev.drawn_logprob = drawn->logprob;
        ev.drawn = drawn->allowed;
        ev.n_drawn = drawn->n_allowed;
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

/* The end of the answer has been told or must come now: a stop id, or a text that nothing can
 * follow. */
static bool is_over(struct sequence *s, int32_t token)
{
    struct gen *g = s->gen;
    struct err e = {0};

    if (is_stop(&g->spec, token))
        return true;
    if (!s->grammar)
        return false;
    if (grammar_run_accept(s->grammar, token, &e) < 0)
        g->outcome = GEN_NO_MEMORY;
    return grammar_run_is_over(s->grammar);
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
    meter_token(b->engine->meter, s);
    if (sample_needs_history(&s->params) &&
        sample_history_add(&s->history, p->token, true, &e) < 0) {
        g->outcome = GEN_NO_MEMORY;
        return;
    }
    tell_token(s, GEN_TOKEN, p->token, p->row, p->logit, g->spec.tell_drawn ? &p->drawn : NULL);
    if (is_over(s, p->token))
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
        tell_token(to, GEN_PROMPT_TOKEN, s->tokens[0], NULL, 0, NULL);
    for (int i = 0; i < p->n_select; i++) {
        const struct logits_row *row = &st->rows[p->first_select + i];

        if (row->target >= 0)
            tell_token(to, GEN_PROMPT_TOKEN, row->target, row, row->target_logit, NULL);
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

static int add_vector_rows(struct step *st, const struct part *p)
{
    int width = st->runner->config.hidden;
    struct err e = {0};

    return pooling_add(p->sequence, st->runner->hidden + (size_t)p->first_select * (size_t)width,
                       p->n_select, width, &e);
}

/* `to` is s, or follows it. */
static void end_one_prompt(struct step *st, const struct sequence *s, struct sequence *to)
{
    struct err e = {0};

    if (pooling_wanted(&s->gen->spec) && pooling_tell(s, to, st->runner->config.hidden, &e) < 0)
        s->gen->outcome = GEN_NO_MEMORY;
    else
        batch_end_sequence(st->batch, to, GEN_LENGTH);
}

/* The prompt is all in and nothing is to be generated. */
static void end_prompt(struct step *st, struct sequence *s)
{
    struct gen *g = s->gen;

    for (int i = s->index + 1; i < g->n_started; i++)
        if (g->sequences[i].state == SEQ_FOLLOWING && g->sequences[i].leader == s)
            end_one_prompt(st, s, &g->sequences[i]);
    end_one_prompt(st, s, s);
}

/* Forks come first: a leader may end with its first token. */
static void accept_picks(struct step *st, const struct part *p)
{
    struct gen *g = p->sequence->gen;
    const struct pick *picks = &st->picks[p->first_pick];

    for (int i = 1; i < p->n_picks; i++)
        if (batch_fork(picks[i].sequence) < 0)
            g->outcome = GEN_NO_MEMORY;
    for (int i = 0; i < p->n_picks && g->outcome == GEN_DONE; i++) {
        bool untold = picks[i].token >= 0 && picks[i].drawn.n_allowed < 0;

        if (picks[i].no_memory || untold)
            g->outcome = GEN_NO_MEMORY;
        else if (picks[i].token < 0)
            g->outcome = GEN_NON_FINITE;
        else
            accept_token(st->batch, &picks[i]);
    }
}

/* GEN_DONE, or how the request fails. */
static enum gen_event_kind take_rows(struct step *st, const struct part *p)
{
    if (pooling_wanted(&p->sequence->gen->spec))
        return add_vector_rows(st, p) < 0 ? GEN_NO_MEMORY : GEN_DONE;
    return scores_finite(st, p) ? GEN_DONE : GEN_NON_FINITE;
}

static void answer_part(struct step *st, const struct part *p)
{
    struct sequence *s = p->sequence;
    struct gen *g = s->gen;

    if (g->outcome != GEN_DONE)
        return;
    g->outcome = take_rows(st, p);
    if (g->outcome != GEN_DONE)
        return;
    tell_all_scores(st, p);
    if (p->n_picks > 0)
        accept_picks(st, p);
    else if (s->state == SEQ_PREFILL && kv_seq_length(s->kv) == s->n_prompt)
        end_prompt(st, s);
}

void step_answer(struct step *st)
{
    for (int i = 0; i < st->n_parts; i++)
        answer_part(st, &st->parts[i]);
    for (int i = 0; i < st->n_picks; i++)
        free(st->picks[i].drawn.allowed);
}

void step_fail(struct step *st)
{
    for (int i = 0; i < st->n_parts; i++)
        st->parts[i].sequence->gen->outcome = GEN_NO_MEMORY;
}
