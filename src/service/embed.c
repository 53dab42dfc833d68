#include "service/embed.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/image.h"
#include "engine/served.h"
#include "model/config.h"
#include "service/gen_refusal.h"
#include "service/identity.h"
#include "service/refusal.h"
#include "service/service.h"
#include "text/tokenizer.h"

enum {
    RESOLVE_TRIES = 8, /* loads that may come between resolving and admission */
    TOO_LONG_NAMED = 16,
    PATH_MAX_BYTES = 32,
};

/* One submission. The engine thread writes the vectors and what stands below the lock. */
struct run {
    const struct embed_job *job;
    struct identity_pin pin;
    struct token_list *inputs;
    float *vectors; /* [n_inputs, width] */
    int width;      /* of the model */

    pthread_mutex_t lock;
    pthread_cond_t ended;
    struct served *served; /* counted */
    bool over;
    enum gen_event_kind last;
};

static const char *input_path(const struct embed_job *job, int i, char path[PATH_MAX_BYTES])
{
    snprintf(path, PATH_MAX_BYTES, job->is_list ? "input[%d]" : "input", i);
    return path;
}

/* ---- inputs to ids ---- */

static int encode_text(const struct run *run, int i, struct refusal *r)
{
    const struct chat_prompt *p = &run->job->inputs[i];
    const struct tokenizer *t = run->pin.image->files->tokenizer;
    char path[PATH_MAX_BYTES];
    struct err e = {0};

    if (tokenizer_encode(t, p->text, p->len, TOK_ADD_SPECIAL, &run->inputs[i], &e) == 0)
        return 0;
    if (e.code == ERR_ARG)
        return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, input_path(run->job, i, path), "%s",
                            e.msg);
    return refuse_internal(r, &e);
}

static int copy_ids(const struct run *run, int i, struct refusal *r)
{
    const struct chat_prompt *p = &run->job->inputs[i];
    int vocab = run->pin.image->files->config->vocab;
    char path[PATH_MAX_BYTES];
    struct err e = {0};

    for (int k = 0; k < p->n_ids; k++)
        if (p->ids[k] >= vocab)
            return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, input_path(run->job, i, path),
                                "The input holds the token id %" PRId32
                                "; the model has the ids 0 to %d.",
                                p->ids[k], vocab - 1);
    if (token_list_append(&run->inputs[i], p->ids, (size_t)p->n_ids, &e) < 0)
        return refuse_internal(r, &e);
    return 0;
}

static int encode_one(const struct run *run, int i, struct refusal *r)
{
    char path[PATH_MAX_BYTES];
    int rc = run->job->inputs[i].text ? encode_text(run, i, r) : copy_ids(run, i, r);

    if (rc == 0 && run->inputs[i].n == 0)
        return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, input_path(run->job, i, path),
                            "The input has no tokens.");
    return rc;
}

/* Nothing is ever cut: inputs that are too long are refused together, the first by its path. */
static int check_lengths(const struct run *run, struct refusal *r)
{
    size_t context = (size_t)run->pin.image->files->config->max_positions;
    char path[PATH_MAX_BYTES], first[PATH_MAX_BYTES] = "";
    struct buf list = {0};
    int n = 0;

    for (int i = 0; i < run->job->n_inputs; i++) {
        if (run->inputs[i].n <= context)
            continue;
        if (n == 0)
            input_path(run->job, i, first);
        if (n++ < TOO_LONG_NAMED)
            buf_printf(&list, "%s%s has %zu", n > 1 ? ", " : "", input_path(run->job, i, path),
                       run->inputs[i].n);
    }
    if (n > 0)
        refuse_param(r, REFUSAL_V1_CONTEXT_LENGTH_EXCEEDED, first,
                     "The model's context holds %zu tokens; %s%s.", context, buf_str(&list),
                     n > TOO_LONG_NAMED ? ", and more" : "");
    buf_release(&list);
    return n > 0 ? -1 : 0;
}

static int encode_all(struct run *run, struct refusal *r)
{
    const struct image *im = run->pin.image;
    struct err e = {0};

    if (!im->files->tokenizer)
        return refuse_param(r, REFUSAL_V1_MODEL_NOT_GENERATIVE, "model",
                            "The model's directory holds no tokenizer.json.");
    run->inputs = calloc((size_t)run->job->n_inputs, sizeof *run->inputs);
    if (!run->inputs) {
        err_nomem(&e);
        return refuse_internal(r, &e);
    }
    for (int i = 0; i < run->job->n_inputs; i++)
        if (encode_one(run, i, r) < 0)
            return -1;
    return check_lengths(run, r);
}

/* ---- the engine ---- */

static void on_event(void *arg, const struct gen_event *ev)
{
    struct run *run = arg;

    if (ev->kind == GEN_VECTOR && ev->n_vector == run->width)
        memcpy(run->vectors + (size_t)ev->sequence * (size_t)run->width, ev->vector,
               (size_t)run->width * sizeof *run->vectors);
    pthread_mutex_lock(&run->lock);
    if (ev->kind == GEN_ADMITTED)
        run->served = served_ref(ev->served ? ev->served : run->pin.served);
    if (ev->kind >= GEN_DONE) {
        run->over = true;
        run->last = ev->kind;
        pthread_cond_signal(&run->ended);
    }
    pthread_mutex_unlock(&run->lock);
}

static void cancel(void *arg)
{
    gen_cancel(arg);
}

static struct gen *submit(struct service *s, struct run *run, struct err *e)
{
    int n = run->job->n_inputs;
    struct gen_prompt *prompts = calloc((size_t)n, sizeof *prompts);
    struct gen_spec spec = {.prompts = prompts,
                            .n_prompts = n,
                            .top_p = 1,
                            .repetition_penalty = 1,
                            .top_logprobs = -1,
                            .pooling = run->job->pooling,
                            .background = run->job->background,
                            .load_counter = run->pin.load_counter,
                            .image = run->pin.own_weights ? run->pin.image : NULL,
                            .adapter = run->pin.adapter,
                            .on_event = on_event,
                            .arg = run};
    struct gen *g;

    if (!prompts) {
        err_nomem(e);
        return NULL;
    }
    for (int i = 0; i < n; i++)
        prompts[i] = (struct gen_prompt){.tokens = run->inputs[i].ids, .n = (int)run->inputs[i].n};
    g = engine_submit(s->engine, &spec, e);
    free(prompts);
    return g;
}

static void wait_until_over(struct run *run, struct gen *g)
{
    const struct embed_job *job = run->job;

    if (job->watch)
        job->watch(job->watch_arg, cancel, g);
    pthread_mutex_lock(&run->lock);
    while (!run->over)
        pthread_cond_wait(&run->ended, &run->lock);
    pthread_mutex_unlock(&run->lock);
    if (job->watch)
        job->watch(job->watch_arg, NULL, NULL);
}

/* ---- what becomes of a vector ---- */

static int finish_one(const struct run *run, int i, int width, float *to, struct refusal *r)
{
    const float *from = run->vectors + (size_t)i * (size_t)run->width;
    char path[PATH_MAX_BYTES];
    double sum = 0, norm;

    for (int k = 0; k < width; k++)
        sum += (double)from[k] * (double)from[k];
    norm = sqrt(sum);
    if (!(norm > 0) || !isfinite(norm))
        return refuse_param(r, REFUSAL_V1_EMBEDDING_VECTOR_INVALID, input_path(run->job, i, path),
                            "The vector of this input is %s.",
                            isfinite(norm) ? "zero" : "not finite");
    for (int k = 0; k < width; k++)
        to[k] = run->job->normalize ? (float)((double)from[k] / norm) : from[k];
    return 0;
}

/* Cuts and scales in place: rows only move towards the front. */
static int finish_all(struct run *run, struct embedded *out, struct refusal *r)
{
    int width = run->job->dimensions ? run->job->dimensions : run->width;

    for (int i = 0; i < run->job->n_inputs; i++) {
        if (finish_one(run, i, width, run->vectors + (size_t)i * (size_t)width, r) < 0)
            return -1;
        out->prompt_tokens += (int)run->inputs[i].n;
    }
    *out = (struct embedded){.served = run->served,
                             .vectors = run->vectors,
                             .width = width,
                             .prompt_tokens = out->prompt_tokens};
    run->served = NULL;
    run->vectors = NULL;
    return 0;
}

/* ---- one try ---- */

static int check_dimensions(const struct run *run, struct refusal *r)
{
    if (run->job->dimensions <= run->width)
        return 0;
    return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "dimensions",
                        "dimensions must be at most %d, the length of this model's vectors.",
                        run->width);
}

static int prepare(struct run *run, struct refusal *r)
{
    struct err e = {0};

    run->width = run->pin.image->files->config->hidden;
    if (check_dimensions(run, r) < 0 || encode_all(run, r) < 0)
        return -1;
    run->vectors = calloc((size_t)run->job->n_inputs, (size_t)run->width * sizeof *run->vectors);
    if (run->vectors)
        return 0;
    err_nomem(&e);
    return refuse_internal(r, &e);
}

enum next { NEXT_DONE, NEXT_AGAIN, NEXT_REFUSED };

static enum next compute(struct service *s, struct run *run, struct embedded *out,
                         struct refusal *r)
{
    struct err e = {0};
    struct gen *g = submit(s, run, &e);

    if (!g) {
        gen_refuse_submit(s, &e, r);
        return NEXT_REFUSED;
    }
    wait_until_over(run, g);
    gen_free(g);
    if (run->last == GEN_RESOLVE_AGAIN)
        return NEXT_AGAIN;
    if (run->last != GEN_DONE) {
        gen_refuse_outcome(run->last, r);
        return NEXT_REFUSED;
    }
    return finish_all(run, out, r) < 0 ? NEXT_REFUSED : NEXT_DONE;
}

static void release(struct run *run)
{
    for (int i = 0; run->inputs && i < run->job->n_inputs; i++)
        token_list_release(&run->inputs[i]);
    free(run->inputs);
    free(run->vectors);
    served_unref(run->served);
    identity_release(&run->pin);
    pthread_cond_destroy(&run->ended);
    pthread_mutex_destroy(&run->lock);
}

/* Walks the whole decision order, from the name on. */
static enum next try_once(struct service *s, const struct embed_job *job, struct embedded *out,
                          struct refusal *r)
{
    struct run run = {.job = job};
    enum next next = NEXT_REFUSED;

    if (identity_resolve(s, &job->ask, &run.pin, r) < 0)
        return NEXT_REFUSED;
    pthread_mutex_init(&run.lock, NULL);
    pthread_cond_init(&run.ended, NULL);
    if (prepare(&run, r) == 0)
        next = compute(s, &run, out, r);
    release(&run);
    return next;
}

int embed_run(struct service *s, const struct embed_job *job, struct embedded *out,
              struct refusal *r)
{
    for (int i = 0; i < RESOLVE_TRIES; i++) {
        enum next next = try_once(s, job, out, r);

        if (next != NEXT_AGAIN)
            return next == NEXT_DONE ? 0 : -1;
    }
    return refuse(r, REFUSAL_V1_MODEL_BUSY, "The weights are being loaded again and again.");
}

void embed_release(struct embedded *out)
{
    served_unref(out->served);
    free(out->vectors);
    *out = (struct embedded){0};
}
