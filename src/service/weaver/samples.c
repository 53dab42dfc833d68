#include "service/weaver/samples.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "engine/image.h"
#include "model/adapter.h"
#include "service/gen_refusal.h"
#include "service/service.h"
#include "service/weaver/gap.h"
#include "service/weaver/impl.h"
#include "service/weaver/samplers.h"

/* A model whose generation is paused. */
struct w_pause {
    char model_id[UUID_TEXT];
    struct w_pause *next;
};

/* ---- life ---- */

static void destroy(struct w_op *op)
{
    struct sample_op *x = (struct sample_op *)op;

    sample_gather_end(x);
    arena_release(&x->arena);
    w_sampler_unref(x->sampler);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

static struct sample_op *new_op(struct weaver *w, struct weaver_call *c, const char *type,
                                struct refusal *r)
{
    struct w_sampler *s = w_sampler_take(w, c->key, r);
    struct sample_op *x = s ? calloc(1, sizeof *x) : NULL;

    if (!x) {
        if (s)
            w_refuse_memory(r);
        w_sampler_unref(s);
        return NULL;
    }
    w_op_init(&x->op, type, c->owner, destroy);
    pthread_mutex_init(&x->lock, NULL);
    x->w = w;
    x->sampler = s;
    str_copy(x->op.model_id, sizeof x->op.model_id, s->model_id);
    str_copy(x->op.target, sizeof x->op.target, s->id);
    return x;
}

/* ---- pauses ---- */

static struct w_pause **find_pause(struct weaver *w, const char *model_id)
{
    struct w_pause **at = &w->paused;

    while (*at && strcmp((*at)->model_id, model_id) != 0)
        at = &(*at)->next;
    return at;
}

static bool paused(struct weaver *w, const struct sample_op *x)
{
    return x->sampler->full && *find_pause(w, x->sampler->model_id) != NULL;
}

void w_pauses_free(struct weaver *w)
{
    while (w->paused) {
        struct w_pause *gone = w->paused;

        w->paused = gone->next;
        free(gone);
    }
}

/* ---- the queue ---- */

static void enqueue(struct weaver *w, struct sample_op *x, bool first)
{
    struct w_op **at = &w->sample_queue;

    while (*at && !first)
        at = &(*at)->next_ended;
    x->op.next_ended = *at;
    *at = &x->op;
}

static int slots(const struct weaver *w)
{
    return w->s->settings->max_concurrent + 2; /* the next ones wait inside the engine */
}

/* w->lock held. Of one owner, or NULL: of all. Paused ones left theirs. */
static int in_slots(const struct weaver *w, const char *owner)
{
    int n = 0;

    for (const struct sample_op *x = w->sampling; x; x = x->next_running)
        n += x->pause != PAUSE_IN_PLACE && (!owner || strcmp(x->op.owner, owner) == 0);
    return n;
}

/* w->lock held. The first one of the owner who has the fewest slots: who asks for thousands of
 * samples does not keep another one waiting. NULL: nothing may begin. */
static struct w_op **next_in_turn(struct weaver *w)
{
    struct w_op **best = NULL, **at = &w->sample_queue;
    const char *last = NULL;
    int least = slots(w);

    for (struct w_op *op = *at; op && least > 0; at = &op->next_ended, op = *at) {
        int n;

        if (paused(w, (struct sample_op *)op) || (last && strcmp(last, op->owner) == 0))
            continue;
        last = op->owner;
        n = in_slots(w, last);
        if (n < least) {
            best = at;
            least = n;
        }
    }
    return best;
}

/* Off the queue and among the running, or NULL. */
static struct sample_op *take_next(struct weaver *w)
{
    struct sample_op *x = NULL;
    struct w_op **at;

    pthread_mutex_lock(&w->lock);
    at = in_slots(w, NULL) >= slots(w) || w->stopping ? NULL : next_in_turn(w);
    if (at) {
        x = (struct sample_op *)*at;
        *at = x->op.next_ended;
        x->next_running = w->sampling;
        w->sampling = x;
        w->samplers_running++;
        x->pause = NOT_PAUSED;
        x->over = false;
        x->op.status = W_RUNNING;
    }
    pthread_mutex_unlock(&w->lock);
    return x;
}

static void leave_running(struct weaver *w, struct sample_op *x)
{
    struct sample_op **at;

    for (at = &w->sampling; *at != x; at = &(*at)->next_running)
        ;
    *at = x->next_running;
    w->samplers_running--;
}

static void ended(struct weaver *w, struct w_op *op);

static struct gen_spec spec_of(struct sample_op *x, const struct gen_prompt *prompts)
{
    struct gen_spec spec = {.prompts = prompts,
                            .n_prompts = x->p.copies,
                            .max_tokens = x->only_logprobs ? 0 : x->p.max_tokens,
                            .temperature = x->p.temperature,
                            .top_p = x->p.top_p,
                            .top_k = x->p.top_k,
                            .repetition_penalty = 1,
                            .seed = x->p.seed,
                            .n_stop_ids = x->p.n_stop_ids,
                            .top_logprobs =
                                x->p.head > x->p.prompt_top ? x->p.head : x->p.prompt_top,
                            .prompt_logprobs = x->p.prompt_logprobs || x->p.prompt_top > 0,
                            .prompt_temperature = x->p.prompt_temperature,
                            .tell_drawn = x->p.masks || x->p.old_logprobs,
                            .image = x->sampler->image,
                            .adapter = x->sampler->adapter,
                            .on_event = sample_on_event,
                            .arg = x};

    memcpy(spec.stop_ids, x->p.stop_ids, sizeof x->p.stop_ids);
    return spec;
}

/* w->lock held. What the engine is to do with it now. */
static void obey(struct sample_op *x)
{
    if (!x->submitted)
        return;
    gen_pause(x->submitted, x->pause == PAUSE_IN_PLACE);
    if (x->pause == PAUSE_ABORT || x->pause == PAUSE_RETRACT || x->w->stopping)
        gen_cancel(x->submitted);
}

/* A pause, or the end of the server, may have come while it was handed over. It may be over
 * already; then `ended` waits for the lock. */
static void note_submitted(struct sample_op *x, struct gen *gen)
{
    pthread_mutex_lock(&x->w->lock);
    if (!x->over) {
        x->submitted = gen;
        obey(x);
    }
    pthread_mutex_unlock(&x->w->lock);
}

/* 0, or -1 with *e: nothing runs then. The caller holds a reference. */
static int begin(struct sample_op *x, struct err *e)
{
    struct gen_prompt prompts[SAMPLE_COPIES_MAX];
    struct gen_spec spec;
    struct gen *gen;

    x->op.ended = ended;
    if (sample_gather_begin(x) < 0) {
        sample_gather_end(x);
        return err_nomem(e);
    }
    for (int i = 0; i < x->p.copies; i++)
        prompts[i] = (struct gen_prompt){x->prompt, x->n_prompt, (uint32_t)i};
    spec = spec_of(x, prompts);
    pthread_mutex_lock(&x->lock);
    x->gen = gen = engine_submit(x->w->s->engine, &spec, e);
    pthread_mutex_unlock(&x->lock);
    if (gen) {
        note_submitted(x, gen);
        return 0;
    }
    sample_gather_end(x);
    return -1;
}

/* The code of the face of /v1 in the words of this one. */
static void refuse_submit(const struct err *e, struct refusal *r)
{
    if (e->code == ERR_ARG)
        w_bad(r, "%s", e->msg);
    else
        w_refuse_err(r, e);
}

void w_samples_pump(struct weaver *w)
{
    struct sample_op *x;

    while ((x = take_next(w))) {
        struct refusal r = {0};
        struct err e = {0};
        int rc;

        w_op_ref(&x->op);
        rc = begin(x, &e);
        w_op_unref(&x->op);
        if (rc == 0)
            continue;
        pthread_mutex_lock(&w->lock);
        leave_running(w, x);
        if (e.code == ERR_SPACE) /* others fill the engine's queue: later */
            enqueue(w, x, true);
        pthread_mutex_unlock(&w->lock);
        if (e.code == ERR_SPACE)
            return;
        refuse_submit(&e, &r);
        w_op_fail(w, &x->op, &r);
        w_op_unref(&x->op);
    }
}

/* ---- the end ---- */

static void refuse_outcome(const struct sample_op *x, struct refusal *r)
{
    if (x->failed) {
        w_refuse_memory(r);
        return;
    }
    switch (x->outcome) {
    case GEN_NO_MEMORY:
        refuse(r, REFUSAL_W_OUT_OF_MEMORY, "There is not enough cache memory for this request.");
        break;
    case GEN_NON_FINITE:
        refuse(r, REFUSAL_W_TRAINING_FAILED,
               "The weights give logits that are not finite: nothing can be sampled from them.");
        break;
    case GEN_CANCELLED:
    case GEN_EVICTED:
    case GEN_STOPPED:
        refuse(r, REFUSAL_W_SERVER_RESTARTED, "The server is being stopped.");
        break;
    default:
        w_refuse_memory(r);
    }
}

static void remember(struct weaver *w, const struct sample_op *x)
{
    for (int i = 0; i < x->p.copies && *x->sampler->checkpoint_id; i++) {
        const struct sample_sequence *s = &x->sequences[i];

        gap_sampled(w->gap, x->sampler->checkpoint_id, x->prompt, x->n_prompt, s->tokens,
                    s->logprobs, s->n);
    }
}

static void finish(struct weaver *w, struct sample_op *x, enum sample_pause pause)
{
    struct refusal r = {0};
    struct buf b = {0};

    if (!x->failed && (x->outcome == GEN_DONE || pause == PAUSE_ABORT)) {
        sample_write(x, &b);
        w_op_done(w, &x->op, &b);
    } else {
        refuse_outcome(x, &r);
        w_op_fail(w, &x->op, &r);
    }
    w_op_unref(&x->op);
}

/* [finisher] */
static void ended(struct weaver *w, struct w_op *op)
{
    struct sample_op *x = (struct sample_op *)op;
    enum sample_pause pause;
    bool again;

    pthread_mutex_lock(&w->lock);
    leave_running(w, x);
    x->over = true;
    x->submitted = NULL;
    pause = x->pause;
    again = ((x->outcome == GEN_EVICTED && pause != PAUSE_ABORT) ||
             (x->outcome == GEN_CANCELLED && pause == PAUSE_RETRACT)) &&
            !w->stopping;
    pthread_mutex_unlock(&w->lock);
    gen_free(x->gen);
    x->gen = NULL;
    if (again) {
        sample_gather_end(x);
        pthread_mutex_lock(&w->lock);
        enqueue(w, x, true);
        pthread_mutex_unlock(&w->lock);
    } else {
        if (!x->failed && !x->only_logprobs)
            remember(w, x);
        finish(w, x, pause);
    }
    w_samples_pump(w);
}

/* Queued ones off the queue: samples of a model, or NULL: all. */
static struct w_op *take_queued(struct weaver *w, const char *model_id)
{
    struct w_op *all = NULL, **end = &all, **at = &w->sample_queue;

    while (*at) {
        struct sample_op *x = (struct sample_op *)*at;

        if (model_id && (x->only_logprobs || strcmp(x->sampler->model_id, model_id) != 0)) {
            at = &(*at)->next_ended;
            continue;
        }
        *at = x->op.next_ended;
        x->op.next_ended = NULL;
        *end = &x->op;
        end = &x->op.next_ended;
    }
    return all;
}

void w_samples_end(struct weaver *w)
{
    struct w_op *queued;

    pthread_mutex_lock(&w->lock);
    queued = take_queued(w, NULL);
    for (struct sample_op *x = w->sampling; x; x = x->next_running)
        if (x->submitted)
            gen_cancel(x->submitted);
    pthread_mutex_unlock(&w->lock);
    while (queued) {
        struct w_op *next = queued->next_ended;
        struct refusal r = {0};

        refuse(&r, REFUSAL_W_SERVER_RESTARTED, "The server is being stopped.");
        w_op_fail(w, queued, &r);
        w_op_unref(queued);
        queued = next;
    }
}

/* ---- routes ---- */

static int submit(struct weaver *w, struct sample_op *x, struct weaver_call *c, struct refusal *r)
{
    if (w_op_begin(w, &x->op, r) < 0) {
        w_op_unref(&x->op);
        return -1;
    }
    w_op_ref(&x->op);
    pthread_mutex_lock(&w->lock);
    enqueue(w, x, false);
    pthread_mutex_unlock(&w->lock);
    w_samples_pump(w);
    w_op_submitted(w, &x->op, c);
    return 0;
}

int weaver_sample(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct sample_op *x = new_op(w, c, "sample", r);

    if (!x)
        return -1;
    if (sample_read(x, c->body, r) == 0)
        return submit(w, x, c, r);
    w_op_unref(&x->op);
    return -1;
}

int weaver_logprobs(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct sample_op *x = new_op(w, c, "compute_logprobs", r);

    if (!x)
        return -1;
    if (sample_read_logprobs(x, c->body, r) == 0)
        return submit(w, x, c, r);
    w_op_unref(&x->op);
    return -1;
}

static struct w_sampler *take_pausable(struct weaver *w, const char *id, struct refusal *r)
{
    struct w_sampler *s = w_sampler_take(w, id, r);

    if (!s || s->full)
        return s;
    w_bad(r, "Generation can be paused for a model of training_mode full_ft only.");
    w_sampler_unref(s);
    return NULL;
}

static int pause_by_name(const char *name)
{
    static const char *const names[] = {"", "abort", "retract", "in_place"};

    for (int i = 1; i < 4; i++)
        if (name && strcmp(names[i], name) == 0)
            return i;
    return -1;
}

/* A request for log-probabilities has no part that could be given: it waits for the model instead.
 */
static enum sample_pause pause_of(const struct sample_op *x, enum sample_pause mode)
{
    return mode == PAUSE_ABORT && x->only_logprobs ? PAUSE_RETRACT : mode;
}

/* w->lock held. One that was cancelled stays so. */
static void pause_running(struct weaver *w, const char *model_id, enum sample_pause mode)
{
    for (struct sample_op *x = w->sampling; x; x = x->next_running)
        if (x->sampler->full && strcmp(x->sampler->model_id, model_id) == 0 &&
            x->pause != PAUSE_ABORT && (x->pause != PAUSE_RETRACT || mode == PAUSE_ABORT)) {
            x->pause = pause_of(x, mode);
            obey(x);
        }
}

/* Nothing was generated yet: empty sequences that say abort. */
static void abort_queued(struct weaver *w, struct w_op *queued)
{
    while (queued) {
        struct sample_op *x = (struct sample_op *)queued;

        queued = queued->next_ended;
        x->outcome = GEN_CANCELLED;
        x->failed = sample_gather_begin(x) < 0;
        finish(w, x, PAUSE_ABORT);
    }
}

int weaver_pause(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    const char *mode = NULL;
    struct w_pause *fresh, **at;
    struct w_op *queued = NULL;
    struct w_sampler *s;
    int how;

    if (w_str(c->body, "mode", &mode, r) < 0)
        return -1;
    how = pause_by_name(mode);
    if (how < 0)
        return w_bad(r, "mode must be abort, retract or in_place.");
    s = take_pausable(w, c->key, r);
    if (!s)
        return -1;
    fresh = calloc(1, sizeof *fresh);
    if (!fresh) {
        w_sampler_unref(s);
        return w_refuse_memory(r);
    }
    str_copy(fresh->model_id, sizeof fresh->model_id, s->model_id);
    pthread_mutex_lock(&w->lock);
    at = find_pause(w, s->model_id);
    if (!*at) {
        *at = fresh;
        fresh = NULL;
    }
    pause_running(w, s->model_id, (enum sample_pause)how);
    if (how == PAUSE_ABORT)
        queued = take_queued(w, s->model_id);
    pthread_mutex_unlock(&w->lock);
    free(fresh);
    abort_queued(w, queued);
    w_samples_pump(w); /* what was paused in place has left its slots */
    w_sampler_unref(s);
    c->data = json_pack("{s:b, s:s, s:s}", "ok", 1, "status", "paused", "mode", mode);
    return 0;
}

int weaver_continue(struct weaver *w, struct weaver_call *c, struct refusal *r)
{
    struct w_sampler *s = take_pausable(w, c->key, r);
    struct w_pause **at, *gone;

    if (!s)
        return -1;
    pthread_mutex_lock(&w->lock);
    at = find_pause(w, s->model_id);
    gone = *at;
    if (gone)
        *at = gone->next;
    pause_running(w, s->model_id, NOT_PAUSED);
    pthread_mutex_unlock(&w->lock);
    free(gone);
    w_sampler_unref(s);
    w_samples_pump(w);
    c->data = json_pack("{s:b, s:s}", "ok", 1, "status", "running");
    return 0;
}
