#include "service/chat.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/err.h"
#include "engine/image.h"
#include "engine/served.h"
#include "model/config.h"
#include "service/chat_choice.h"
#include "service/chat_language.h"
#include "service/chat_prompt.h"
#include "service/chat_queue.h"
#include "service/gen_refusal.h"
#include "service/refusal.h"
#include "service/service.h"

enum { RESOLVE_TRIES = 8 }; /* loads that may come between resolving and admission */

/* One submission of a job. */
struct run {
    struct service *s;
    const struct chat_job *job;
    const struct chat_sink *sink;
    struct identity_pin pin;
    struct chat_language language;
    struct prompt_tokens *prompts;
    int n_prompts, n_choices;
    struct choice *choices;
    int cached_tokens; /* of the prompts, each counted once */
    int *prompt_told;  /* echoed prompt tokens of each choice so far */
    struct chat_queue queue;
    struct gen *gen;
    struct served *served; /* counted, after admission */
    struct image *image;   /* counted, after admission */
    int64_t until_ns;      /* when its choices end, whatever they have; 0: never */
};

static int prompt_of(const struct run *run, int choice)
{
    return choice / run->job->best_of;
}

static bool echoes_scores(const struct chat_job *job)
{
    return job->echo && job->top_logprobs >= 0;
}

/* ---- submitting ---- */

static void on_event(void *arg, const struct gen_event *ev)
{
    chat_queue_put(arg, ev);
}

static void cancel(void *arg)
{
    gen_cancel(arg);
}

static uint64_t random_seed(void)
{
    uint64_t seed = 0;

    while (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        ;
    return seed >> 1;
}

/* With a seed, a prompt draws the same alone and among others; without one, all choices differ. */
static uint32_t sample_index(const struct chat_job *job, int choice)
{
    return (uint32_t)(job->has_seed ? choice % job->best_of : choice);
}

static void add_stop_ids(struct gen_spec *spec, const int32_t *ids, int n)
{
    for (int i = 0; i < n && spec->n_stop_ids < GEN_STOP_IDS_MAX; i++)
        spec->stop_ids[spec->n_stop_ids++] = ids[i];
}

static void fill_spec(const struct run *run, const struct gen_prompt *prompts,
                      struct gen_spec *spec)
{
    const struct chat_job *job = run->job;
    const struct model_config *config = run->pin.image->files->config;

    *spec = (struct gen_spec){
        .prompts = prompts,
        .n_prompts = run->n_choices,
        .max_tokens = job->max_tokens >= 0 ? job->max_tokens : CHAT_MAX_TOKENS_DEFAULT,
        .temperature = job->temperature,
        .top_p = job->top_p,
        .top_k = job->top_k,
        .min_p = job->min_p,
        .frequency_penalty = job->frequency_penalty,
        .presence_penalty = job->presence_penalty,
        .repetition_penalty = job->repetition_penalty,
        .seed = job->has_seed ? job->seed : random_seed(),
        .bias = job->bias,
        .n_bias = job->n_bias,
        .allowed = job->allowed,
        .n_allowed = job->n_allowed,
        .grammar = run->language.grammar,
        .top_logprobs = job->top_logprobs,
        .score_sampled = job->score,
        .prompt_logprobs = echoes_scores(job),
        .background = job->background,
        .load_counter = run->pin.load_counter,
        .image = run->pin.own_weights ? run->pin.image : NULL,
        .adapter = run->pin.adapter,
        .on_event = on_event,
        .arg = (void *)&run->queue,
    };
    add_stop_ids(spec, job->stop_ids, job->n_stop_ids);
    add_stop_ids(spec, config->eos, config->n_eos);
}

static int submit(struct run *run, struct refusal *r)
{
    struct gen_prompt *prompts = calloc((size_t)run->n_choices, sizeof *prompts);
    struct gen_spec spec;
    struct err e = {0};

    if (!prompts) {
        err_nomem(&e);
        return gen_refuse_submit(run->s, &e, r);
    }
    for (int i = 0; i < run->n_choices; i++) {
        const struct token_list *list = &run->prompts[prompt_of(run, i)].list;

        prompts[i] = (struct gen_prompt){
            .tokens = list->ids, .n = (int)list->n, .sample_index = sample_index(run->job, i)};
    }
    fill_spec(run, prompts, &spec);
    run->gen = engine_submit(run->s->engine, &spec, &e);
    free(prompts);
    return run->gen ? 0 : gen_refuse_submit(run->s, &e, r);
}

/* ---- events ---- */

static int prompt_tokens_total(const struct run *run)
{
    size_t n = 0;

    for (int i = 0; i < run->n_prompts; i++)
        n += run->prompts[i].list.n;
    return (int)n;
}

static void on_prompt_token(struct run *run, int choice, const struct gen_event *ev)
{
    const struct prompt_tokens *p = &run->prompts[prompt_of(run, choice)];
    int at = run->prompt_told[choice]++;

    choice_add_prompt(&run->choices[choice], ev, at < p->n_silent);
    if ((size_t)at + 1 == p->list.n)
        choice_prompt_done(&run->choices[choice]);
}

/* An echo without log-probabilities needs nothing of the engine. */
static void echo_prompts(struct run *run)
{
    for (int i = 0; i < run->n_choices; i++) {
        const struct token_list *list = &run->prompts[prompt_of(run, i)].list;

        for (size_t k = 0; k < list->n; k++) {
            struct gen_event ev = {.kind = GEN_PROMPT_TOKEN, .sequence = i, .token = list->ids[k]};
            on_prompt_token(run, i, &ev);
        }
    }
}

/* From the slot on. Rows of a batch give way to others and have the batch's window instead. */
static int64_t time_limit(const struct run *run)
{
    double seconds = run->s->settings->request_timeout_s;

    if (seconds <= 0 || run->job->background)
        return 0;
    return clock_mono_ns() + (int64_t)(seconds * 1e9);
}

static void on_admitted(struct run *run, const struct gen_event *ev)
{
    struct chat_start start;

    run->served = ev->served ? ev->served : served_ref(run->pin.served);
    run->image = ev->image;
    run->until_ns = time_limit(run);
    start = (struct chat_start){
        .served = run->served,
        .image = run->image,
        .tokenizer = run->image->files->tokenizer,
        .n_choices = run->n_choices,
        .prompt_tokens = prompt_tokens_total(run),
    };
    run->sink->started(run->sink->arg, &start);
    if (run->job->echo && !echoes_scores(run->job))
        echo_prompts(run);
}

static bool is_end_token(const struct run *run, int32_t token)
{
    const struct model_config *config = run->image->files->config;

    for (int i = 0; i < config->n_eos; i++)
        if (config->eos[i] == token)
            return true;
    for (int i = 0; i < run->job->n_stop_ids; i++)
        if (run->job->stop_ids[i] == token)
            return true;
    return false;
}

static void on_token(struct run *run, const struct gen_event *ev)
{
    struct choice *c = &run->choices[ev->sequence];
    bool is_end = is_end_token(run, ev->token), cut = choice_add(c, ev, is_end);

    if (!cut && !is_end && run->until_ns && clock_mono_ns() >= run->until_ns) {
        choice_finish(c, CHAT_TIMEOUT);
        cut = true;
    }
    if (cut)
        gen_cut_sequence(run->gen, ev->sequence);
}

enum next { NEXT_EVENT, NEXT_DONE, NEXT_AGAIN, NEXT_REFUSED };

static enum next handle(struct run *run, const struct gen_event *ev, struct refusal *r)
{
    switch (ev->kind) {
    case GEN_ADMITTED:
        on_admitted(run, ev);
        return NEXT_EVENT;
    case GEN_PROMPT_KNOWN:
        if (ev->sequence % run->job->best_of == 0)
            run->cached_tokens += ev->n_known;
        return NEXT_EVENT;
    case GEN_PROMPT_TOKEN:
        on_prompt_token(run, ev->sequence, ev);
        return NEXT_EVENT;
    case GEN_TOKEN:
        on_token(run, ev);
        return NEXT_EVENT;
    case GEN_SEQUENCE_DONE:
        choice_finish(&run->choices[ev->sequence],
                      ev->reason == GEN_LENGTH ? CHAT_LENGTH : CHAT_STOP);
        return NEXT_EVENT;
    case GEN_DONE:
        return NEXT_DONE;
    case GEN_RESOLVE_AGAIN:
        return NEXT_AGAIN;
    default:
        gen_refuse_outcome(ev->kind, r);
        return NEXT_REFUSED;
    }
}

static bool out_of_memory(const struct run *run)
{
    for (int i = 0; i < run->n_choices; i++)
        if (run->choices[i].failed)
            return true;
    return false;
}

static enum next follow(struct run *run, struct refusal *r)
{
    enum next next = NEXT_EVENT;
    struct chat_event got;

    while (next == NEXT_EVENT && chat_queue_take(&run->queue, &got))
        next = handle(run, &got.ev, r);
    if (next == NEXT_EVENT || out_of_memory(run)) {
        gen_cancel(run->gen);
        chat_queue_wait_over(&run->queue);
        gen_refuse_memory(r);
        next = NEXT_REFUSED;
    }
    return next;
}

/* ---- one try ---- */

/* Ids that the caller names must be tokens of the model. */
static int check_ids(const struct run *run, struct refusal *r)
{
    const struct chat_job *job = run->job;
    int vocab = run->pin.image->files->config->vocab;

    for (int i = 0; i < job->n_bias; i++)
        if (job->bias[i].token >= vocab)
            return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "logit_bias",
                                "logit_bias names the token %d; the model has the ids 0 to %d.",
                                (int)job->bias[i].token, vocab - 1);
    for (int i = 0; i < job->n_allowed; i++)
        if (job->allowed[i] >= vocab)
            return refuse(r, REFUSAL_V1_INVALID_SCORING_REQUEST,
                          "allowed_token_ids names the token %d; the model has the ids 0 to %d.",
                          (int)job->allowed[i], vocab - 1);
    return 0;
}

static int prepare(struct run *run, struct refusal *r)
{
    struct err e = {0};

    run->n_prompts = prompts_count(run->job);
    run->n_choices = run->n_prompts * run->job->best_of;
    if (check_ids(run, r) < 0 ||
        chat_language_prepare(run->s, run->job, run->pin.image, &run->language, r) < 0 ||
        prompts_build(run->s, run->job, run->pin.image, &run->prompts, r) < 0)
        return -1;
    run->choices = calloc((size_t)run->n_choices, sizeof *run->choices);
    run->prompt_told = calloc((size_t)run->n_choices, sizeof *run->prompt_told);
    if (!run->choices || !run->prompt_told) {
        free(run->choices);
        run->choices = NULL;
        err_nomem(&e);
        return gen_refuse_submit(run->s, &e, r);
    }
    for (int i = 0; i < run->n_choices; i++)
        choice_init(&run->choices[i], i, run->job, run->sink, run->pin.image->files->tokenizer,
                    run->language.form);
    return 0;
}

static void release(struct run *run)
{
    for (int i = 0; run->choices && i < run->n_choices; i++)
        choice_release(&run->choices[i]);
    free(run->choices);
    free(run->prompt_told);
    prompts_free(run->prompts, run->n_prompts);
    chat_language_release(&run->language);
    chat_queue_release(&run->queue);
    served_unref(run->served);
    image_unref(run->image);
    identity_release(&run->pin);
}

static enum next generate(struct run *run, struct chat_usage *usage, struct refusal *r)
{
    const struct chat_job *job = run->job;
    enum next next;

    if (prepare(run, r) < 0 || submit(run, r) < 0)
        return NEXT_REFUSED;
    if (job->watch)
        job->watch(job->watch_arg, cancel, run->gen);
    next = follow(run, r);
    if (job->watch)
        job->watch(job->watch_arg, NULL, NULL);
    gen_free(run->gen);
    usage->prompt_tokens = prompt_tokens_total(run);
    usage->cached_tokens = run->cached_tokens;
    for (int i = 0; i < run->n_choices; i++)
        usage->completion_tokens += run->choices[i].n_generated;
    return next;
}

/* Walks the whole decision order, from the name on. */
static enum next try_once(struct service *s, const struct chat_job *job,
                          const struct chat_sink *sink, struct chat_usage *usage, struct refusal *r)
{
    struct run run = {.s = s, .job = job, .sink = sink};
    enum next next = NEXT_REFUSED;

    *usage = (struct chat_usage){0};
    if (identity_resolve(s, &job->ask, &run.pin, r) < 0)
        return NEXT_REFUSED;
    chat_queue_init(&run.queue);
    next = generate(&run, usage, r);
    release(&run);
    return next;
}

int chat_run(struct service *s, const struct chat_job *job, const struct chat_sink *sink,
             struct chat_usage *usage, struct refusal *r)
{
    for (int i = 0; i < RESOLVE_TRIES; i++) {
        enum next next = try_once(s, job, sink, usage, r);

        if (next != NEXT_AGAIN)
            return next == NEXT_DONE ? 0 : -1;
    }
    return refuse(r, REFUSAL_V1_MODEL_BUSY, "The weights are being loaded again and again.");
}
