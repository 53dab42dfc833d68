#include "service/weaver/runs.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/faults.h"
#include "base/log.h"
#include "base/str.h"
#include "db/db.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "model/config.h"
#include "service/service.h"
#include "service/weaver/bases.h"
#include "service/weaver/images.h"
#include "service/weaver/impl.h"
#include "service/weaver/models.h"
#include "service/weaver/steps.h"

enum { PREDECESSOR_MS = 2000 };

/* ---- operations ---- */

static void destroy(struct w_op *op)
{
    struct train_op *t = (struct train_op *)op;

    w_batch_release(&t->batch);
    free(t->logprobs);
    free(t->elementwise);
    free(t->export);
    run_op_release(&t->engine);
    w_run_unref(t->run);
    free(t);
}

struct train_op *train_op_new(struct weaver *w, struct w_run *run, const char *type,
                              const char *owner, struct refusal *r)
{
    struct train_op *t = calloc(1, sizeof *t);

    if (!t) {
        w_refuse_memory(r);
        return NULL;
    }
    w_op_init(&t->op, type, owner, destroy);
    str_copy(t->op.model_id, sizeof t->op.model_id, run->id);
    str_copy(t->op.target, sizeof t->op.target, run->id);
    t->w = w;
    t->run = run;
    atomic_fetch_add(&run->refs, 1);
    return t;
}

/* ---- the engine's word ---- */

static void copy_pass(struct train_op *t, const struct trainer *trainer)
{
    size_t bytes = (size_t)t->batch.rows * sizeof(float);

    memcpy(t->logprobs, trainer_logprobs(trainer), bytes);
    memcpy(t->elementwise, trainer_elementwise(trainer), bytes);
    t->loss = *trainer_loss(trainer);
    memcpy(t->same_as, t->run->same_as, sizeof t->same_as);
}

/* Which checkpoint the run's weights are now. */
static void note_weights(struct train_op *t)
{
    if (t->engine.kind == RUN_VIEW || t->engine.kind == RUN_LOAD)
        memcpy(t->run->same_as, t->ckpt.id, sizeof t->run->same_as);
    else if (t->engine.kind == RUN_STEP && !t->step.skipped)
        t->run->same_as[0] = '\0';
}

/* [engine thread] */
static void on_done(struct run_op *op, enum run_outcome outcome, const struct trainer *trainer,
                    const struct err *e)
{
    struct train_op *t = op->arg;

    t->outcome = outcome;
    if (outcome == RUN_FAILED && e)
        t->err = *e;
    if (outcome == RUN_OK && t->logprobs)
        copy_pass(t, trainer);
    if (outcome == RUN_OK && op->kind == RUN_STEP)
        t->step = *trainer_step_result(trainer);
    if (outcome == RUN_OK)
        note_weights(t);
    t->step_now = trainer_step(trainer);
    w_op_engine_done(t->w, &t->op);
}

/* ---- the queue ---- */

/* w->lock held. What the engine may get now, taken off the queue; NULL: nothing. */
static struct train_op *next_to_give(struct w_run *run)
{
    struct train_op *t = run->queue;

    if (!t || run->loading || run->closing || (t->begin && run->inflight > 0))
        return NULL;
    run->queue = t->next;
    run->loading = t->begin != NULL;
    run->inflight++;
    t->op.status = W_RUNNING;
    return t;
}

/* Under the lock, so that the order of the queue is the order in the engine. run_submit only takes
 * the engine's own lock, and nobody holds that one while he asks for ours. */
static void pump(struct w_run *run)
{
    struct train_op *t;

    while ((t = next_to_give(run))) {
        t->engine.done = on_done;
        t->engine.arg = t;
        if (t->begin)
            t->begin(t);
        else
            run_submit(run->run, &t->engine);
    }
}

static void append(struct train_op **list, struct train_op *t)
{
    while (*list)
        list = &(*list)->next;
    t->next = NULL;
    *list = t;
}

/* w->lock held. The first of those that wait which may go in: its number fits, its time is over, or
 * it has no number and nobody is before it. */
static struct train_op **admissible(struct w_run *run, int64_t now_ns)
{
    for (struct train_op **at = &run->waiting; *at; at = &(*at)->next) {
        struct train_op *t = *at;

        if (t->seq_id ? sequence_fits(&run->gate, t->seq_id) || now_ns >= t->due_ns
                      : at == &run->waiting)
            return at;
    }
    return NULL;
}

static void admit(struct w_run *run, int64_t now_ns)
{
    struct train_op **at;

    while ((at = admissible(run, now_ns))) {
        struct train_op *t = *at;

        *at = t->next;
        if (t->seq_id)
            sequence_admit(&run->gate, t->seq_id);
        if (t->seq_id > run->last_seq)
            run->last_seq = t->seq_id;
        append(&run->queue, t);
    }
    pump(run);
}

/* False: the run is being closed, and takes no more. */
static bool enter(struct weaver *w, struct train_op *t)
{
    int64_t now = clock_mono_ns();
    bool closing;

    pthread_mutex_lock(&w->lock);
    closing = t->run->closing;
    t->run->request_ms = t->op.created_ms;
    if (!closing) {
        t->due_ns = now + faults_predecessor_ms(w->s->faults, PREDECESSOR_MS) * 1000000;
        append(&t->run->waiting, t);
        admit(t->run, now);
    }
    pthread_mutex_unlock(&w->lock);
    return !closing;
}

static void skip(struct weaver *w, struct w_run *run, int64_t number)
{
    pthread_mutex_lock(&w->lock);
    if (sequence_fits(&run->gate, number)) {
        sequence_admit(&run->gate, number);
        admit(run, clock_mono_ns());
    }
    pthread_mutex_unlock(&w->lock);
}

void w_run_drop(struct weaver *w, struct train_op *t)
{
    if (t && t->seq_id)
        skip(w, t->run, t->seq_id);
    train_op_unref(t);
}

void w_runs_tick(struct weaver *w)
{
    int64_t now = clock_mono_ns();

    pthread_mutex_lock(&w->lock);
    for (struct w_run *run = w->runs; run; run = run->next)
        if (run->waiting)
            admit(run, now);
    pthread_mutex_unlock(&w->lock);
}

/* The engine part of t is over, one way or the other. */
static void engine_part_over(struct train_op *t)
{
    pthread_mutex_lock(&t->w->lock);
    t->run->inflight--;
    if (t->begin)
        t->run->loading = false;
    pump(t->run);
    pthread_mutex_unlock(&t->w->lock);
}

/* [finisher] Before its own end, so that the next one is under way. */
static void ended(struct weaver *w, struct w_op *op)
{
    struct train_op *t = (struct train_op *)op;

    engine_part_over(t);
    w_train_ended(w, t);
}

void w_run_load_over(struct train_op *t)
{
    engine_part_over(t);
}

void w_run_give_load(struct train_op *t)
{
    run_submit(t->run->run, &t->engine);
}

int w_run_refuse_ended(struct weaver *w, const struct w_run *run, struct refusal *r)
{
    bool stopping;

    pthread_mutex_lock(&w->lock);
    stopping = w->stopping;
    pthread_mutex_unlock(&w->lock);
    if (stopping)
        return refuse(r, REFUSAL_W_SERVER_RESTARTED,
                      "The server was stopped before this operation ended.");
    return refuse(r, REFUSAL_W_MODEL_TERMINATED,
                  "The model %s was terminated; its checkpoints are still there.", run->id);
}

int w_run_submit(struct weaver *w, struct train_op *t, struct weaver_call *c, struct refusal *r)
{
    t->op.ended = ended;
    if (w_op_begin(w, &t->op, r) < 0) {
        w_run_drop(w, t);
        return -1;
    }
    w_op_ref(&t->op); /* the queue's, given back by the end of the operation */
    if (!enter(w, t)) {
        w_run_refuse_ended(w, t->run, r);
        w_train_refused(w, t, r);
    }
    w_op_submitted(w, &t->op, c);
    return 0;
}

/* One whose row is behind, counted, with what its row gets. */
static struct w_run *take_unnoted(struct weaver *w, int64_t *request_ms, int64_t *last_seq)
{
    struct w_run *run;

    pthread_mutex_lock(&w->lock);
    for (run = w->runs; run && run->noted_ms == run->request_ms; run = run->next)
        ;
    if (run) {
        atomic_fetch_add(&run->refs, 1);
        *request_ms = run->noted_ms = run->request_ms;
        *last_seq = run->last_seq;
    }
    pthread_mutex_unlock(&w->lock);
    return run;
}

void w_runs_note(struct weaver *w)
{
    int64_t request_ms, last_seq;
    struct w_run *run;
    struct err e = {0};

    while ((run = take_unnoted(w, &request_ms, &last_seq))) {
        if (db_run(w->ops, &e,
                   "UPDATE weaver_models SET request_ms = max(coalesce(request_ms, 0), ?),"
                   " last_seq_id = max(last_seq_id, ?) WHERE id = ?",
                   "iit", request_ms, last_seq, run->id) < 0)
            log_ev(LOG_WARNING, "weaver_model", "id=%s cause=\"%s\"", run->id, e.msg);
        w_run_unref(run);
    }
}

/* ---- runs ---- */

static struct w_run *find(struct weaver *w, const char *id)
{
    struct w_run *run = w->runs;

    while (run && strcmp(run->id, id) != 0)
        run = run->next;
    return run;
}

struct w_run *w_run_peek(struct weaver *w, const char *id)
{
    struct w_run *run;

    pthread_mutex_lock(&w->lock);
    run = find(w, id);
    if (run)
        atomic_fetch_add(&run->refs, 1);
    pthread_mutex_unlock(&w->lock);
    return run;
}

bool w_run_seen(struct weaver *w, const char *id, int64_t *last_seq, int64_t *request_ms)
{
    const struct w_run *run;

    pthread_mutex_lock(&w->lock);
    run = find(w, id);
    if (run) {
        *last_seq = run->last_seq;
        *request_ms = run->request_ms;
    }
    pthread_mutex_unlock(&w->lock);
    return run != NULL;
}

struct w_run *w_run_take(struct weaver *w, const char *id, struct refusal *r)
{
    struct w_run *run = w_run_peek(w, id);

    if (!run)
        w_model_refuse_absent(w, id, r);
    return run;
}

void w_run_unref(struct w_run *run)
{
    if (!run || atomic_fetch_sub(&run->refs, 1) != 1)
        return;
    step_log_close(run->log);
    image_unref(run->base);
    free(run);
}

/* Before memory is taken: the kernel would end the server instead of refusing. */
static int refuse_room(size_t bytes, struct refusal *r)
{
    refusal_clear(r);
    return refuse(r, REFUSAL_W_OUT_OF_MEMORY,
                  "Training this model takes %zu MB of memory, and there is not so much: terminate "
                  "models that are done.",
                  bytes >> 20);
}

static void insert(struct weaver *w, struct w_run *run)
{
    pthread_mutex_lock(&w->lock);
    run->next = w->runs;
    w->runs = run;
    atomic_fetch_add(&run->refs, 1);
    pthread_mutex_unlock(&w->lock);
}

int w_run_start(struct weaver *w, struct w_run *run, struct image *base, struct refusal *r)
{
    struct run_settings s = {.mode = run->shape.full ? TRAIN_FULL : TRAIN_LORA,
                             .lora = {.rank = run->shape.rank,
                                      .alpha = LORA_ALPHA,
                                      .attn = run->shape.attn,
                                      .mlp = run->shape.mlp,
                                      .unembed = run->shape.unembed,
                                      .seed = run->seed},
                             .master_forward = w->s->settings->master_forward,
                             .activation_bytes = (size_t)w->s->settings->train_mb << 20};
    const struct model_config *config = base->files->config;
    struct err e = {0};
    size_t bytes;

    run->base = image_ref(base);
    run->limits.vocab = config->vocab;
    if (run->limits.max_tokens <= 0 || run->limits.max_tokens > config->max_positions)
        run->limits.max_tokens = config->max_positions;
    bytes = run_bytes(&s, base);
    if (images_make_way(w->images, bytes, r) < 0)
        return refuse_room(bytes, r);
    if (!(run->log = step_log_open(w, run, &e)) ||
        !(run->run = run_new(w->s->engine, base, &s, &e)))
        return w_refuse_err(r, &e);
    insert(w, run);
    return 0;
}

/* Everything that has not reached the engine, off the lists. */
static struct train_op *take_unbegun(struct w_run *run)
{
    struct train_op *all = run->queue, **end = &all;

    while (*end)
        end = &(*end)->next;
    *end = run->waiting;
    run->queue = run->waiting = NULL;
    return all;
}

static void refuse_all(struct weaver *w, struct w_run *run, struct train_op *all)
{
    while (all) {
        struct train_op *t = all;
        struct refusal r = {0};

        all = t->next;
        w_run_refuse_ended(w, run, &r);
        w_train_refused(w, t, &r);
    }
}

void w_run_end(struct weaver *w, struct w_run *run)
{
    struct train_op *unbegun;
    struct w_run **at;

    pthread_mutex_lock(&w->lock);
    for (at = &w->runs; *at && *at != run; at = &(*at)->next)
        ;
    if (!*at) { /* somebody else is ending it */
        pthread_mutex_unlock(&w->lock);
        return;
    }
    *at = run->next;
    run->closing = true;
    unbegun = take_unbegun(run);
    while (run->readers > 0)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    refuse_all(w, run, unbegun);
    run_close(run->run);
    run->run = NULL;
    w_run_unref(run); /* the registry's */
}

void w_runs_end_all(struct weaver *w)
{
    struct w_run *run;

    for (;;) {
        pthread_mutex_lock(&w->lock);
        run = w->runs;
        if (run)
            atomic_fetch_add(&run->refs, 1);
        pthread_mutex_unlock(&w->lock);
        if (!run)
            return;
        w_run_end(w, run);
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a reference was taken above */
        w_run_unref(run);
    }
}

/* ---- facts for checkpoint.json ---- */

const char *w_numerics(const struct weaver *w)
{
    return w->s->settings->fast_numerics ? "bf16-1" : "exact-1";
}
