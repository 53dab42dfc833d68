/* bench_engine - the engine without HTTP: streams together, a long prompt among them, the instant
 * of a save.
 *
 * bench_engine --dir MODEL [--threads N] [--streams N] [--fast]: prints `name value` lines. Times
 * are in milliseconds between events on the engine thread. Tokens of the prompts are made up: speed
 * does not depend on them. */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "engine/served.h"
#include "engine/snapshot.h"
#include "kernels/kernels.h"
#include "model/model.h"

enum { STREAMS_MAX = 64, EVENTS_MAX = 4096, LONG_PROMPT = 2000, SHORT_PROMPT = 20, ROUNDS = 3 };

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int64_t at[EVENTS_MAX]; /* of each token, monotonic ns */
    int n;
    bool over;
    int64_t submitted;
    struct gen *gen;
};

static void die(const struct err *e)
{
    fprintf(stderr, "bench_engine: %s (%s)\n", e->msg, e->detail);
    exit(1);
}

static void on_event(void *arg, const struct gen_event *ev)
{
    struct stream *s = arg;

    if (ev->kind < GEN_TOKEN || ev->kind == GEN_SEQUENCE_DONE)
        return;
    pthread_mutex_lock(&s->lock);
    if (ev->kind == GEN_TOKEN && s->n < EVENTS_MAX)
        s->at[s->n++] = clock_mono_ns();
    if (ev->kind != GEN_TOKEN)
        s->over = true;
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->lock);
}

static void wait_tokens(struct stream *s, int n)
{
    pthread_mutex_lock(&s->lock);
    while (!s->over && s->n < n)
        pthread_cond_wait(&s->news, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static struct stream *start(struct engine *en, int prompt, int max_tokens, uint32_t key)
{
    struct stream *s = calloc(1, sizeof *s);
    int32_t ids[LONG_PROMPT];
    struct gen_prompt p = {.tokens = ids, .n = prompt};
    struct gen_spec spec = {.prompts = &p,
                            .n_prompts = 1,
                            .max_tokens = max_tokens,
                            .top_p = 1,
                            .repetition_penalty = 1,
                            .top_logprobs = -1,
                            .load_counter = 1,
                            .on_event = on_event,
                            .arg = s};
    struct err e = {0};

    if (!s)
        exit(1);
    for (int i = 0; i < prompt; i++)
        ids[i] = (int32_t)(100 + (key * 7919u + (uint32_t)i * 104729u) % 400u);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->news, NULL);
    s->submitted = clock_mono_ns();
    s->gen = engine_submit(en, &spec, &e);
    if (!s->gen)
        die(&e);
    return s;
}

static void finish(struct stream *s)
{
    wait_tokens(s, EVENTS_MAX + 1);
    gen_free(s->gen);
    free(s);
}

static double ms_between(int64_t from, int64_t to)
{
    return (double)(to - from) / 1e6;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct gaps {
    double ms[STREAMS_MAX * EVENTS_MAX];
    int n;
};

/* Gaps between tokens of which the later lies in [from, to]. */
static void add_gaps(struct gaps *g, const struct stream *s, int64_t from, int64_t to)
{
    for (int i = 1; i < s->n; i++)
        if (s->at[i] >= from && s->at[i] <= to)
            g->ms[g->n++] = ms_between(s->at[i - 1], s->at[i]);
}

static void print_gaps(const char *name, struct gaps *g)
{
    if (g->n == 0)
        return;
    qsort(g->ms, (size_t)g->n, sizeof g->ms[0], by_size);
    printf("%s_gap_p50_ms %.2f\n", name, g->ms[g->n / 2]);
    printf("%s_gap_p99_ms %.2f\n", name, g->ms[(int)((double)(g->n - 1) * 0.99)]);
    printf("%s_gap_max_ms %.2f\n", name, g->ms[g->n - 1]);
}

static double first_token_ms(struct engine *en, uint32_t key)
{
    struct stream *s = start(en, LONG_PROMPT, 1, key);

    wait_tokens(s, 1);
    double ms = ms_between(s->submitted, s->at[0]);

    finish(s);
    return ms;
}

static double bench_alone(struct engine *en)
{
    double ms[ROUNDS];

    first_token_ms(en, 1);
    for (int i = 0; i < ROUNDS; i++)
        ms[i] = first_token_ms(en, 2 + (uint32_t)i);
    qsort(ms, ROUNDS, sizeof *ms, by_size);
    printf("alone_first_token_ms %.1f\n", ms[ROUNDS / 2]);
    return ms[ROUNDS / 2];
}

static void bench_streams(struct engine *en, int n)
{
    struct stream *s[STREAMS_MAX];
    static struct gaps g;
    char name[32];
    int64_t from = 0, to = 0;
    int tokens = 0;

    g.n = 0;
    for (int i = 0; i < n; i++)
        s[i] = start(en, SHORT_PROMPT, 200, (uint32_t)i);
    for (int i = 0; i < n; i++)
        wait_tokens(s[i], 200);
    for (int i = 0; i < n; i++) {
        from = s[i]->at[10] > from ? s[i]->at[10] : from;
        to = i == 0 || s[i]->at[s[i]->n - 1] < to ? s[i]->at[s[i]->n - 1] : to;
    }
    for (int i = 0; i < n; i++)
        add_gaps(&g, s[i], from, to);
    tokens = g.n;
    printf("streams%d_tokens_per_s %.1f\n", n, tokens / (ms_between(from, to) / 1e3));
    snprintf(name, sizeof name, "streams%d", n);
    print_gaps(name, &g);
    for (int i = 0; i < n; i++)
        finish(s[i]);
}

static void bench_mixed(struct engine *en, int n, double alone_ms)
{
    struct stream *s[STREAMS_MAX];
    static struct gaps g;
    double ms[ROUNDS];

    g.n = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < n; i++)
            s[i] = start(en, SHORT_PROMPT, 400, (uint32_t)i);
        for (int i = 0; i < n; i++)
            wait_tokens(s[i], 30);
        struct stream *l = start(en, LONG_PROMPT, 1, 50 + (uint32_t)round);

        wait_tokens(l, 1);
        ms[round] = ms_between(l->submitted, l->at[0]);
        for (int i = 0; i < n; i++) {
            gen_cancel(s[i]->gen);
            wait_tokens(s[i], EVENTS_MAX + 1);
            add_gaps(&g, s[i], l->submitted, l->at[0]);
            finish(s[i]);
        }
        finish(l);
    }
    qsort(ms, ROUNDS, sizeof *ms, by_size);
    printf("mixed_first_token_ms %.1f\n", ms[ROUNDS / 2]);
    printf("mixed_first_token_ratio %.2f\n", ms[ROUNDS / 2] / alone_ms);
    print_gaps("mixed", &g);
}

struct instant {
    struct snapshot *snapshot;
    double ms;
};

static void take_snapshot(struct engine *en, void *arg)
{
    struct instant *in = arg;
    struct err e = {0};
    int64_t start_ns = clock_mono_ns();

    in->snapshot = snapshot_begin(en, engine_resident(en), &e);
    in->ms = clock_ms_since(start_ns);
    if (!in->snapshot)
        die(&e);
}

static void bench_snapshot(struct engine *en, int n)
{
    enum { SAVES = 200 };
    struct stream *s[STREAMS_MAX];
    double ms[SAVES];

    for (int i = 0; i < n; i++)
        s[i] = start(en, SHORT_PROMPT, 400, (uint32_t)i);
    for (int i = 0; i < SAVES; i++) {
        struct instant in = {0};

        engine_call(en, take_snapshot, &in);
        ms[i] = in.ms;
        snapshot_end(in.snapshot);
    }
    qsort(ms, SAVES, sizeof *ms, by_size);
    printf("snapshot_p99_ms %.4f\n", ms[SAVES * 99 / 100]);
    for (int i = 0; i < n; i++) {
        gen_cancel(s[i]->gen);
        finish(s[i]);
    }
}

struct load {
    struct image *image;
    struct served *served;
};

static void set_resident(struct engine *en, void *arg)
{
    struct load *l = arg;

    engine_set_resident(en, l->image, l->served);
}

static void load_model(struct engine *en, const char *dir)
{
    struct served s = {.name = "bench", .load_counter = 1};
    struct err e = {0};
    struct load l = {.image = image_load_dir(engine_bank(en), dir, NULL, &e),
                     .served = served_new(&s)};

    if (!l.image)
        die(&e);
    engine_call(en, set_resident, &l);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"dir", 1, 0, 'd'},
                                            {"threads", 1, 0, 't'},
                                            {"streams", 1, 0, 's'},
                                            {"fast", 0, 0, 'f'},
                                            {0}};
    struct engine_config c = {.max_waiting = STREAMS_MAX, .hold_timeout_ms = 60000};
    const char *dir = NULL;
    int n = 8;
    bool fast = false;
    struct err e = {0};

    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        dir = o == 'd' ? optarg : dir;
        c.n_threads = o == 't' ? atoi(optarg) : c.n_threads;
        n = o == 's' ? atoi(optarg) : n;
        fast = fast || o == 'f';
        if (o == '?')
            return 2;
    }
    if (!dir || n < 1 || n >= STREAMS_MAX) {
        fprintf(stderr, "usage: bench_engine --dir MODEL [--threads N] [--streams N] [--fast]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    c.kernels = kernels_pick(fast);
    c.max_running = n + 1;
    struct engine *en = engine_start(&c, &e);

    if (!en)
        die(&e);
    load_model(en, dir);
    printf("numerics %s\n", c.kernels->numerics);
    double alone = bench_alone(en);

    bench_streams(en, 1);
    bench_streams(en, n > 4 ? 4 : n);
    bench_streams(en, n);
    bench_mixed(en, n, alone);
    bench_snapshot(en, n);
    engine_stop(en);
    return 0;
}
