#include "engine/step.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "engine/batch.h"
#include "engine/engine_impl.h"
#include "engine/gen.h"
#include "engine/image.h"
#include "engine/pooling.h"
#include "engine/score.h"
#include "generate/grammar.h"
#include "generate/sampler.h"
#include "model/forward.h"

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

/* The maximum was drawn, and nothing else could be. */
static void tell_argmax(struct pick *p)
{
    struct sample_drawn *d = &p->drawn;

    if (!p->sequence->gen->spec.tell_drawn)
        return;
    d->allowed = malloc(sizeof *d->allowed);
    d->n_allowed = d->allowed ? 1 : -1;
    if (d->allowed)
        d->allowed[0] = p->token;
}

/* The token, of those that the sequence's language allows. */
static void sample(struct step *st, struct pick *p, int worker)
{
    struct runner *r = st->runner;
    struct sequence *s = p->sequence;
    const struct gen_spec *spec = &s->gen->spec;
    struct sample_params params = s->params;
    struct err e = {0};

    if (s->grammar) {
        uint64_t *mask = runner_mask(r, worker);

        p->no_memory = grammar_run_mask(s->grammar, spec->stop_ids, spec->n_stop_ids, mask, &e) < 0;
        params.mask = mask;
    }
    p->token = sample_pick(forward_kernels(r->forward), &params, p->full, r->config.vocab,
                           &s->history, s->n_prompt + s->n_new, spec->tell_drawn ? &p->drawn : NULL,
                           runner_sample_scratch(r, worker));
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
    if (!p->row->finite)
        return;
    if (!p->full) {
        tell_argmax(p);
        return;
    }
    bool told = s->gen->spec.top_logprobs >= 0; /* then the logit matters, before it is changed */

    if (told)
        memcpy(copy, p->full, (size_t)vocab * sizeof *copy);
    sample(st, p, worker);
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

/* The logits of selected rows [from, to). */
static void look_at(struct step *st, int from, int to)
{
    struct runner *r = st->runner;

    if (to > from)
        logits_run(r->logits, st->image->model, r->hidden + (size_t)from * (size_t)r->config.hidden,
                   to - from, st->rows + from);
}

/* Nobody asks for the logits of rows that a vector is made of. */
static void look_at_rows(struct step *st)
{
    int from = 0;

    for (int i = 0; i < st->n_parts; i++) {
        const struct part *p = &st->parts[i];

        if (p->n_select == 0 || !pooling_wanted(&p->sequence->gen->spec))
            continue;
        look_at(st, from, p->first_select);
        from = p->first_select + p->n_select;
    }
    look_at(st, from, st->n_select);
}

/* Prompts and trainings beside make steps longer, but not this much. */
enum { SLOW_MS = 100, SLOW_TIMES = 4 };

/* Up to so many rows a step is bound by reading weights: one core less costs little. */
enum { READING_ROWS = 2 };

/* A core lent to a background job comes back for the rest of each step that computes much: the job
 * has its share of the step, and the step is that much longer at most. */
static void share_core(const struct step *st, int64_t start)
{
    struct engine *en = st->batch->engine;
    int prefill = st->n_rows - st->n_decode, share = en->config.background_share;
    double away_ms = step_clock_expect(&st->runner->clock, prefill) * share / 100;

    if (st->n_rows > READING_ROWS && share < 100)
        pool_recall_at(en->pool, start + (int64_t)(away_ms * 1e6));
}

/* A client sees it as a pause: whoever runs the server may want to know what it was. */
static void tell_if_slow(const struct step *st, double ms, const struct rusage *before)
{
    const struct engine_config *c = &st->batch->engine->config;
    struct engine_slow_step s = {
        .decode_rows = st->n_decode, .prefill_rows = st->n_rows - st->n_decode, .ms = ms};
    struct rusage now;

    s.expected_ms = step_clock_expect(&st->runner->clock, s.prefill_rows);
    if (!c->on_slow_step || s.expected_ms <= 0 || ms < SLOW_MS || ms < SLOW_TIMES * s.expected_ms)
        return;
    getrusage(RUSAGE_SELF, &now);
    s.page_faults = now.ru_minflt + now.ru_majflt - before->ru_minflt - before->ru_majflt;
    s.switches = now.ru_nivcsw - before->ru_nivcsw;
    c->on_slow_step(c->slow_step_arg, &s);
}

static int run(struct step *st)
{
    struct runner *r = st->runner;
    struct forward_batch fb = {
        .spans = st->spans, .n_spans = st->n_parts, .select = st->select, .n_select = st->n_select};
    struct err e = {0};
    struct rusage before;
    int64_t start = clock_mono_ns();
    int rc;

    getrusage(RUSAGE_SELF, &before);
    share_core(st, start);
    rc = forward_run(r->forward, st->image->model, &fb, r->hidden, &e);
    if (rc == 0) {
        look_at_rows(st);
        pick_all(st);
    }
    pool_recall_at(st->batch->engine->pool, 0); /* what follows is for one core */
    if (rc < 0)
        return -1;
    double ms = clock_ms_since(start);

    tell_if_slow(st, ms, &before);
    step_clock_note(&r->clock, st->n_decode, st->n_rows - st->n_decode, ms);
    return 0;
}

bool batch_step(struct batch *b)
{
    struct step *st = b->step;

    if (!step_plan(st, b))
        return false;
    if (run(st) == 0) {
        engine_note_step(b->engine, st->n_rows - st->n_decode, st->n_picks);
        step_answer(st);
    } else {
        step_fail(st);
    }
    batch_finish(b);
    return true;
}
