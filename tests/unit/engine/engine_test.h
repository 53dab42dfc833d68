/* What the tests of the engine share: a running engine with a tiny model, and a listener that
 * gathers events. */
#ifndef ENGINE_TEST_H
#define ENGINE_TEST_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "engine/served.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "tensor/weights.h"

#define MODELS "tests/vectors/models/"
#define GOLDEN "tests/vectors/golden/"

enum { HEARD_SEQUENCES = 24, HEARD_TOKENS = 512, PATIENCE_S = 120 };

struct heard_sequence {
    int32_t ids[HEARD_TOKENS];
    float logprobs[HEARD_TOKENS];
    struct gen_top top[HEARD_TOKENS]; /* the best of each */
    int n;
    int32_t prompt_ids[HEARD_TOKENS];
    float prompt_logprobs[HEARD_TOKENS];
    bool prompt_has[HEARD_TOKENS];
    int n_prompt;
    bool done;
    enum gen_reason reason;
};

/* Gathers the events of one request. `on_token` (or NULL) runs on the engine thread. */
struct heard {
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool admitted, over;
    enum gen_event_kind last;
    char name[SERVED_NAME_MAX];
    uint64_t epoch;
    int n_tokens; /* of all sequences */
    struct heard_sequence seq[HEARD_SEQUENCES];
    void (*on_token)(void *arg, struct heard *h);
    void *arg;
    struct gen *gen;
};

static inline struct heard *heard_new(void)
{
    struct heard *h = calloc(1, sizeof *h);

    assert_non_null(h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->news, NULL);
    return h;
}

static inline void heard_free(struct heard *h)
{
    gen_free(h->gen);
    pthread_cond_destroy(&h->news);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static inline void hear_token(struct heard *h, const struct gen_event *ev)
{
    struct heard_sequence *s = &h->seq[ev->sequence];

    if (s->n < HEARD_TOKENS) {
        s->ids[s->n] = ev->token;
        s->logprobs[s->n] = ev->has_logprob ? ev->logprob : 1;
        if (ev->n_top > 0)
            s->top[s->n] = ev->top[0];
        s->n++;
    }
    h->n_tokens++;
}

static inline void hear_prompt(struct heard *h, const struct gen_event *ev)
{
    struct heard_sequence *s = &h->seq[ev->sequence];

    if (s->n_prompt == HEARD_TOKENS)
        return;
    s->prompt_ids[s->n_prompt] = ev->token;
    s->prompt_has[s->n_prompt] = ev->has_logprob;
    s->prompt_logprobs[s->n_prompt++] = ev->logprob;
}

static inline void hear(void *arg, const struct gen_event *ev)
{
    struct heard *h = arg;
    bool last = false;

    pthread_mutex_lock(&h->lock);
    switch (ev->kind) {
    case GEN_ADMITTED:
        h->admitted = true;
        snprintf(h->name, sizeof h->name, "%s", ev->served ? ev->served->name : "");
        h->epoch = ev->image->epoch;
        break;
    case GEN_PROMPT_KNOWN:
    case GEN_VECTOR: /* test_pooling.c keeps them itself */
        break;
    case GEN_TOKEN:
        hear_token(h, ev);
        break;
    case GEN_PROMPT_TOKEN:
        hear_prompt(h, ev);
        break;
    case GEN_SEQUENCE_DONE:
        h->seq[ev->sequence].done = true;
        h->seq[ev->sequence].reason = ev->reason;
        break;
    default:
        last = true;
    }
    pthread_mutex_unlock(&h->lock);
    if (ev->kind == GEN_TOKEN && h->on_token)
        h->on_token(h->arg, h);
    pthread_mutex_lock(&h->lock);
    h->over = h->over || last;
    h->last = ev->kind;
    pthread_cond_broadcast(&h->news);
    pthread_mutex_unlock(&h->lock);
}

/* Waits until `met`; a request that never ends fails the test instead of hanging it. */
static inline void heard_wait(struct heard *h, bool (*met)(const struct heard *, int), int n)
{
    struct timespec at;
    int rc = 0;

    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&h->lock);
    while (!met(h, n) && rc == 0)
        rc = pthread_cond_timedwait(&h->news, &h->lock, &at);
    bool ok = met(h, n);

    pthread_mutex_unlock(&h->lock);
    assert_true(ok);
}

static inline bool heard_is_over(const struct heard *h, int n)
{
    (void)n;
    return h->over;
}

static inline bool heard_has_tokens(const struct heard *h, int n)
{
    return h->n_tokens >= n || h->over;
}

static inline void heard_end(struct heard *h, enum gen_event_kind expected)
{
    heard_wait(h, heard_is_over, 0);
    assert_int_equal(h->last, expected);
}

/* ---- an engine ---- */

static inline struct engine *start_engine(int threads, int slots, int waiting, size_t kv_bytes)
{
    struct engine_config c = {.n_threads = threads,
                              .kernels = kernels_pick(false),
                              .max_running = slots,
                              .max_waiting = waiting,
                              .kv_bytes = kv_bytes,
                              .hold_timeout_ms = 60000};
    struct err e = {0};
    struct engine *en = engine_start(&c, &e);

    if (!en)
        fail_msg("%s", e.msg);
    return en;
}

static inline struct image *load_tiny(struct engine *en, const char *path)
{
    struct err e = {0};
    struct image *im = image_load_dir(engine_bank(en), path, NULL, &e);

    if (!im)
        fail_msg("%s: %s", e.msg, e.detail);
    return im;
}

struct resident_change {
    struct image *image;
    struct served *served;
};

static inline void change_resident(struct engine *en, void *arg)
{
    struct resident_change *c = arg;

    engine_set_resident(en, c->image, c->served);
}

/* Consumes im. */
static inline void make_resident(struct engine *en, struct image *im, const char *name,
                                 uint64_t load_counter)
{
    struct served s = {.load_counter = load_counter};
    struct resident_change c = {.image = im};

    snprintf(s.name, sizeof s.name, "%s", name);
    c.served = served_new(&s);
    assert_non_null(c.served);
    engine_call(en, change_resident, &c);
}

static inline void change_gate(struct engine *en, void *arg)
{
    engine_set_gate(en, *(enum engine_gate *)arg);
}

static inline void set_gate(struct engine *en, enum engine_gate g)
{
    engine_call(en, change_gate, &g);
}

static inline struct engine *start_with_model(const char *name, int threads, int slots)
{
    char path[256];
    struct engine *en = start_engine(threads, slots, 64, (size_t)64 << 20);

    snprintf(path, sizeof path, MODELS "%s", name);
    make_resident(en, load_tiny(en, path), name, 1);
    return en;
}

/* ---- requests ---- */

static inline struct gen_spec plain_spec(const struct gen_prompt *prompts, int n, int max_tokens)
{
    return (struct gen_spec){.prompts = prompts,
                             .n_prompts = n,
                             .max_tokens = max_tokens,
                             .top_p = 1,
                             .repetition_penalty = 1,
                             .top_logprobs = 0,
                             .load_counter = 1};
}

/* on_token (or NULL) runs with arg on the engine thread. */
static inline struct heard *submit_heard(struct engine *en, struct gen_spec spec,
                                         void (*on_token)(void *arg, struct heard *h), void *arg)
{
    struct heard *h = heard_new();
    struct err e = {0};

    h->on_token = on_token;
    h->arg = arg;
    spec.on_event = hear;
    spec.arg = h;
    h->gen = engine_submit(en, &spec, &e);
    if (!h->gen)
        fail_msg("%s", e.msg);
    return h;
}

static inline struct heard *submit(struct engine *en, struct gen_spec spec)
{
    return submit_heard(en, spec, NULL, NULL);
}

/* Tokens of a made-up prompt; the same for the same key. */
static inline void fill_prompt(int32_t *ids, int n, uint32_t key)
{
    uint32_t x = key * 2654435761u + 12345u;

    for (int i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)(3 + (x >> 16) % 400);
    }
}

static inline bool same_answer(const struct heard *a, const struct heard *b, int sequence)
{
    const struct heard_sequence *x = &a->seq[sequence], *y = &b->seq[sequence];

    return x->n == y->n && x->reason == y->reason &&
           memcmp(x->ids, y->ids, (size_t)x->n * sizeof x->ids[0]) == 0 &&
           memcmp(x->logprobs, y->logprobs, (size_t)x->n * sizeof x->logprobs[0]) == 0;
}
#endif
