#include "engine/run.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/meminfo.h"
#include "engine/engine_impl.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "engine/run_impl.h"
#include "model/adapter.h"
#include "model/model.h"
#include "tensor/weights.h"
#include "train/pass.h"

static const size_t activations_least = (size_t)256 << 20;
static const size_t activations_unmeasured = (size_t)1 << 30;

/* ---- the shared pass ---- */

static size_t activation_budget(const struct run_settings *s)
{
    size_t available;

    if (s->activation_bytes > 0)
        return s->activation_bytes;
    available = meminfo_available(&available) == 0 ? available / 3 : activations_unmeasured;
    return available > activations_least ? available : activations_least;
}

/* The lists of runs and passes change on the engine thread only. */
static struct shared_pass *pass_get(struct engine *en, const struct model_config *c,
                                    const struct run_settings *s, struct err *e)
{
    for (struct shared_pass *p = en->passes; p; p = p->next)
        if (pass_fits(p->pass, c)) {
            p->users++;
            return p;
        }
    struct shared_pass *p = calloc(1, sizeof *p);

    if (!p) {
        err_nomem(e);
        return NULL;
    }
    p->config = *c;
    p->users = 1;
    p->pass = pass_new(&p->config, en->config.kernels, en->pool, activation_budget(s), e);
    if (!p->pass) {
        free(p);
        return NULL;
    }
    p->next = en->passes;
    en->passes = p;
    return p;
}

/* The pass when nobody uses it any more: for pass_drop, on a thread that may take its time. */
static struct shared_pass *pass_put(struct engine *en, struct shared_pass *p)
{
    struct shared_pass **at = &en->passes;

    if (--p->users > 0)
        return NULL;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    return p;
}

static void pass_drop(struct shared_pass *p)
{
    if (!p)
        return;
    pass_free(p->pass);
    free(p);
}

/* ---- images ---- */

struct image *run_blank_image(const struct image *like, struct err *e)
{
    struct image_staging st;
    const char *reason = NULL;
    struct image *im = NULL;

    if (image_stage_empty(&st, like->bank, &like->weights->index, NULL, e) < 0)
        return NULL;
    im = image_adopt(&st, like->files, &reason, e);
    image_staging_release(&st);
    return im;
}

void run_view_release(struct run_view *v)
{
    image_unref(v->image);
    adapter_unref(v->adapter);
    trainer_thaw(v->optimizer);
    *v = (struct run_view){0};
}

void run_op_release(struct run_op *op)
{
    run_view_release(&op->view);
    image_unref(op->image);
    adapter_unref(op->adapter);
    trainer_state_free(op->state);
    op->image = NULL;
    op->adapter = NULL;
    op->state = NULL;
}

/* ---- making and closing ---- */

struct making {
    struct run *run;
    struct err *e;
    bool ok;
};

/* On the caller's thread: the memory of a run takes seconds to touch. */
static int make_trainer(struct run *r, struct err *e)
{
    struct trainer_config c = {
        .mode = r->settings.mode,
        .lora = r->settings.lora,
        .master_forward = r->settings.master_forward,
        .pool = r->engine->pool,
    };

    r->trainer = trainer_new(&c, r->image->weights, r->image->model, e);
    return r->trainer ? 0 : -1;
}

/* Engine thread: passes and runs are its own. */
static void join_here(struct engine *en, void *arg)
{
    struct making *m = arg;
    struct run *r = m->run;

    r->shared = pass_get(en, &r->image->model->config, &r->settings, m->e);
    if (!r->shared)
        return;
    trainer_set_pass(r->trainer, r->shared->pass);
    r->next = en->runs;
    en->runs = r;
    m->ok = true;
}

struct run *run_new(struct engine *en, struct image *base, const struct run_settings *s,
                    struct err *e)
{
    struct run *r = calloc(1, sizeof *r);

    if (!r) {
        err_nomem(e);
        return NULL;
    }
    struct making m = {.run = r, .e = e};

    r->engine = en;
    r->settings = *s;
    r->image = image_ref(base);
    if (s->mode == TRAIN_FULL) {
        image_bank_keep_spare(en->bank); /* no step waits for fresh pages */
        r->other = run_blank_image(base, e);
        if (!r->other)
            goto fail;
    }
    if (make_trainer(r, e) < 0)
        goto fail;
    engine_call(en, join_here, &m);
    if (m.ok)
        return r;

fail:
    trainer_free(r->trainer);
    image_unref(r->other);
    image_unref(r->image);
    free(r);
    return NULL;
}

static void close_here(struct engine *en, void *arg)
{
    struct run *r = arg;
    struct run **at = &en->runs;

    run_cancel_all(r);
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
    if (en->train_last == r)
        en->train_last = NULL;
    r->shared = pass_put(en, r->shared);
}

void run_close(struct run *r)
{
    if (!r)
        return;
    engine_call(r->engine, close_here, r);
    trainer_free(r->trainer); /* here: giving gigabytes back would hold requests up */
    pass_drop(r->shared);
    image_unref(r->other);
    image_unref(r->image);
    free(r);
}

/* ---- asking ---- */

void run_submit(struct run *r, struct run_op *op)
{
    struct engine *en = r->engine;
    struct run_op **at = &r->queue;

    pthread_mutex_lock(&en->lock);
    while (*at)
        at = &(*at)->next;
    op->next = NULL;
    *at = op;
    en->poked = true;
    pthread_cond_signal(&en->wake);
    pthread_mutex_unlock(&en->lock);
}

struct peek {
    struct run *run;
    struct run_view *out;
};

static void peek_here(struct engine *en, void *arg)
{
    const struct peek *p = arg;
    struct run *r = p->run;

    (void)en;
    *p->out = (struct run_view){
        .image = image_ref(r->image),
        .adapter = trainer_adapter(r->trainer),
        .step = trainer_step(r->trainer),
        .has_gradients = trainer_has_gradients(r->trainer),
    };
}

void run_peek(struct run *r, struct run_view *out)
{
    struct peek p = {.run = r, .out = out};

    engine_call(r->engine, peek_here, &p);
}

const struct trainer *run_trainer(const struct run *r)
{
    return r->trainer;
}

size_t run_bytes(const struct run_settings *s, const struct image *base)
{
    struct trainer_config c = {
        .mode = s->mode, .lora = s->lora, .master_forward = s->master_forward};
    size_t other = s->mode == TRAIN_FULL ? base->weights->bytes : 0;

    return other + trainer_bytes(&c, base->model);
}
