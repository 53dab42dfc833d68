#include "engine/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "engine/engine_impl.h"
#include "engine/gen.h"
#include "engine/image.h"
#include "engine/meter.h"
#include "engine/pooling.h"
#include "engine/runner.h"
#include "engine/served.h"
#include "generate/grammar.h"
#include "kernels/kernels.h"
#include "model/adapter.h"
#include "model/kv_cache.h"

enum { PREFIX_SHARE = 8 }; /* beginnings that are kept take at most this part of KV memory */

struct batch *batch_new(struct engine *en, struct err *e)
{
    struct batch *b = calloc(1, sizeof *b);

    if (!b) {
        err_nomem(e);
        return NULL;
    }
    b->engine = en;
    b->step = step_new(e);
    if (!b->step) {
        free(b);
        return NULL;
    }
    return b;
}

void batch_free(struct batch *b)
{
    if (!b)
        return;
    step_free(b->step);
    free(b);
}

int batch_images(const struct batch *b, const struct image *except)
{
    int n = 0;

    for (const struct gen *g = b->running; g; g = g->next) {
        const struct gen *first = b->running;

        while (first->image != g->image)
            first = first->next;
        n += first == g && g->image != except && !g->spec.image;
    }
    return n;
}

/* ---- KV memory ---- */

static int blocks_of(int positions)
{
    return (positions + KV_BLOCK - 1) / KV_BLOCK;
}

/* The longest that the sequence can become; the last token is never fed back. */
static int positions_of(const struct sequence *s)
{
    return s->n_prompt + (s->max_new > 0 ? s->max_new - 1 : 0);
}

/* Runners share one budget. */
static bool is_within_budget(const struct batch *b, const struct runner *r, int blocks)
{
    size_t taken = (size_t)(blocks > 0 ? blocks : 0) * kv_cache_block_bytes(r->kv);

    for (const struct runner *other = b->engine->runners; other; other = other->next)
        taken += runner_kv_promised(other);
    return taken <= engine_kv_budget(b->engine);
}

/* s->kv with room for `positions`: what is known of the prompt, or empty. */
static int promise_once(struct batch *b, struct sequence *s, int positions, bool known)
{
    struct gen *g = s->gen;
    struct runner *r = g->runner;
    struct err e = {0};

    s->kv = known ? prefix_find(&r->prefixes, g->image->epoch, s->tokens, s->n_prompt) : NULL;
    if (!s->kv)
        s->kv = kv_seq_new(r->kv, &e);
    if (s->kv && is_within_budget(b, r, blocks_of(positions) - blocks_of(kv_seq_length(s->kv))) &&
        kv_seq_reserve(s->kv, positions, &e) == 0)
        return 0;
    kv_seq_free(s->kv);
    s->kv = NULL;
    return -1;
}

static bool evict_any(struct engine *en)
{
    for (struct runner *r = en->runners; r; r = r->next)
        if (prefix_evict(&r->prefixes))
            return true;
    return false;
}

static bool evict_parked(struct batch *b);

/* Beginnings that are kept make way first, then requests that are paused. */
static int promise(struct batch *b, struct sequence *s, int positions, bool known)
{
    while (promise_once(b, s, positions, known) < 0)
        if (!evict_any(b->engine) && !evict_parked(b))
            return -1;
    return 0;
}

/* The sequence that is computing the same prompt, or NULL. Scores are told while it does, so a
 * scored prompt is followed from its beginning or not at all. */
static struct sequence *find_leader(const struct sequence *s)
{
    struct gen *g = s->gen;

    for (int i = s->twin; i < g->n_started; i++) {
        struct sequence *t = &g->sequences[i];

        if (t->twin == s->twin && t->state == SEQ_PREFILL &&
            (!g->spec.prompt_logprobs || kv_seq_length(t->kv) == 0))
            return t;
    }
    return NULL;
}

/* What picking tokens needs to know of the sequence. */
static int prepare_picks(struct sequence *s)
{
    struct err e = {0};

    if (s->gen->grammar && !(s->grammar = grammar_run_new(s->gen->grammar, &e)))
        return -1;
    if (!sample_needs_history(&s->params))
        return 0;
    for (int i = 0; i < s->n_prompt; i++)
        if (sample_history_add(&s->history, s->tokens[i], false, &e) < 0)
            return -1;
    return 0;
}

/* What is known of a prompt is of no use where its rows are to be looked at. */
static bool needs_beginning(const struct gen_spec *spec)
{
    return spec->prompt_logprobs || pooling_needs_beginning(spec);
}

static void tell_known(struct sequence *s)
{
    struct gen_event ev = {
        .kind = GEN_PROMPT_KNOWN, .sequence = s->index, .n_known = kv_seq_length(s->kv)};

    if (ev.n_known > 0)
        gen_emit(s->gen, &ev);
}

/* A follower shares the full blocks of the prompt and is promised the rest. */
static int start_sequence(struct batch *b, struct sequence *s)
{
    struct sequence *leader = find_leader(s);
    int shared = leader ? s->n_prompt / KV_BLOCK * KV_BLOCK : 0;

    bool known = !leader && !needs_beginning(&s->gen->spec);

    if (b->n_active >= ACTIVE_MAX || promise(b, s, positions_of(s) - shared, known) < 0)
        return -1;
    if (prepare_picks(s) < 0) {
        sequence_release(s);
        return -1;
    }
    if (known)
        meter_prefix(b->engine->meter, s->n_prompt, kv_seq_length(s->kv));
    s->leader = leader;
    s->state = leader ? SEQ_FOLLOWING : SEQ_PREFILL;
    s->gen->n_started++;
    b->n_active++;
    if (!leader)
        tell_known(s);
    return 0;
}

int batch_fork(struct sequence *s)
{
    const struct sequence *leader = s->leader;
    struct err e = {0};

    kv_seq_free(s->kv); /* gives its promise back: what the fork needs is free now */
    s->kv = kv_seq_fork(leader->kv, s->n_prompt, &e);
    if (!s->kv)
        return -1;
    return kv_seq_reserve(s->kv, positions_of(s), &e);
}

/* A request has at most its share of the places, so that many prompts in one do not keep others
 * out. */
static void start_pending(struct batch *b, struct gen *g)
{
    int share = ACTIVE_MAX / b->engine->config.max_running;

    while (g->n_started < g->n_sequences && gen_active(g) < (share > 0 ? share : 1))
        if (start_sequence(b, &g->sequences[g->n_started]) < 0) {
            if (b->n_active == 0) /* nobody will give memory back */
                g->outcome = GEN_NO_MEMORY;
            b->starved = true;
            return;
        }
}

/* ---- taking and ending requests ---- */

static void limit_sequences(struct gen *g)
{
    for (int i = 0; i < g->n_sequences; i++) {
        struct sequence *s = &g->sequences[i];
        int room = g->runner->config.max_positions - s->n_prompt;

        s->max_new = g->spec.max_tokens < room ? g->spec.max_tokens : room;
    }
}

static bool can_ever_fit(const struct gen *g)
{
    for (int i = 0; i < g->n_sequences; i++)
        if (positions_of(&g->sequences[i]) > kv_cache_max_positions(g->runner->kv))
            return false;
    return true;
}

static void append(struct gen **list, struct gen *g)
{
    while (*list)
        list = &(*list)->next;
    *list = g;
    g->next = NULL;
}

enum batch_answer batch_take(struct batch *b, struct gen *g)
{
    limit_sequences(g);
    if (!can_ever_fit(g))
        return BATCH_NEVER;
    if (start_sequence(b, &g->sequences[0]) < 0)
        return b->n_running > 0 ? BATCH_LATER : BATCH_NEVER;
    append(&b->running, g);
    g->admitted_at = clock_mono_ns();
    meter_admitted(b->engine->meter, g);
    b->n_running++;
    start_pending(b, g); /* before the first step, so that choices share their prompt */
    engine_note_running(b->engine);
    return BATCH_TAKEN;
}

/* What the sequence has computed may be the beginning of the next one, unless its weights are on
 * their way out. */
static void leave_prefix(struct batch *b, const struct sequence *s)
{
    const struct gen *g = s->gen;
    struct engine *en = b->engine;
    int n = s->kv ? kv_seq_length(s->kv) : 0;
    int n_made = n > s->n_prompt ? n - s->n_prompt : 0;

    if (n < KV_BLOCK || pooling_wanted(&g->spec) || g->image != en->resident ||
        g->adapter != en->adapter || en->gate != GATE_OPEN || (n_made && !s->made))
        return;
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);

    if (!tokens)
        return;
    memcpy(tokens, s->tokens, (size_t)(n - n_made) * sizeof *tokens);
    if (n_made)
        memcpy(tokens + s->n_prompt, s->made, (size_t)n_made * sizeof *tokens);
    prefix_keep(&g->runner->prefixes, g->image->epoch, tokens, n, s->kv,
                engine_kv_budget(en) / PREFIX_SHARE);
    free(tokens);
}

static void let_sequence_go(struct batch *b, struct sequence *s)
{
    if (s->state == SEQ_DONE)
        return;
    if (s->state == SEQ_PREFILL || s->state == SEQ_DECODE)
        leave_prefix(b, s);
    if (s->state != SEQ_PENDING)
        b->n_active--;
    sequence_release(s);
    s->state = SEQ_DONE;
    s->gen->n_open--;
}

void batch_end_sequence(struct batch *b, struct sequence *s, enum gen_reason why)
{
    meter_sequence_ended(b->engine->meter, s, why != GEN_LENGTH);
    let_sequence_go(b, s);
    gen_emit(s->gen,
             &(struct gen_event){.kind = GEN_SEQUENCE_DONE, .sequence = s->index, .reason = why});
}

/* The slot is free and the image let go before the last event says so. */
static void end_request(struct batch *b, struct gen **at)
{
    struct gen *g = *at;
    struct engine *en = b->engine;

    *at = g->next;
    meter_request_ended(en->meter, g, g->n_open);
    for (int i = 0; i < g->n_sequences; i++)
        let_sequence_go(b, &g->sequences[i]);
    b->n_running--;
    runner_put(en, g->runner);
    image_unref(g->image);
    adapter_unref(g->adapter);
    served_unref(g->served);
    engine_note_slot(en, clock_ms_since(g->admitted_at));
    engine_note_running(en);
    gen_emit(g, &(struct gen_event){.kind = g->outcome});
    gen_free(g);
}

void batch_finish(struct batch *b)
{
    for (struct gen **at = &b->running; *at;) {
        if ((*at)->outcome != GEN_DONE || (*at)->n_open == 0)
            end_request(b, at);
        else
            at = &(*at)->next;
    }
}

/* ---- paused requests ---- */

static void count(struct batch *b, const struct gen *g, int change)
{
    b->n_running += change;
    b->n_active += change * gen_active(g);
}

static bool is_paused(const struct gen *g)
{
    return atomic_load_explicit(&g->paused, memory_order_relaxed);
}

static void park(struct batch *b)
{
    for (struct gen **at = &b->running; *at;) {
        struct gen *g = *at;

        if (!is_paused(g)) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        count(b, g, -1);
        append(&b->parked, g);
        g->parked_at = clock_mono_ns();
        engine_note_running(b->engine);
    }
}

/* The time of the pause is no time in a slot. */
static void take_slot_again(struct batch *b, struct gen *g, int64_t now_ns)
{
    count(b, g, 1);
    g->admitted_at += now_ns - g->parked_at;
}

/* Nor is it a gap between two tokens. */
static void go_on(struct batch *b, struct gen **at)
{
    struct gen *g = *at;
    int64_t now = clock_mono_ns();

    *at = g->next;
    take_slot_again(b, g, now);
    append(&b->running, g);
    for (int i = 0; i < g->n_started; i++)
        g->sequences[i].token_at = now;
    engine_note_running(b->engine);
}

static void unpark(struct batch *b)
{
    for (struct gen **at = &b->parked; *at;)
        if (!is_paused(*at) && b->n_running < b->engine->config.max_running &&
            b->n_active + gen_active(*at) <= ACTIVE_MAX)
            go_on(b, at);
        else
            at = &(*at)->next;
}

static void end_parked(struct batch *b, struct gen **at, enum gen_event_kind why)
{
    (*at)->outcome = why;
    take_slot_again(b, *at, clock_mono_ns());
    end_request(b, at);
}

/* The one that was paused last has been kept for the shortest time. */
static bool evict_parked(struct batch *b)
{
    struct gen **at = &b->parked;

    if (!*at)
        return false;
    while ((*at)->next)
        at = &(*at)->next;
    end_parked(b, at, GEN_EVICTED);
    return true;
}

static void end_cancelled_parked(struct batch *b)
{
    for (struct gen **at = &b->parked; *at;)
        if (atomic_load_explicit(&(*at)->cancelled, memory_order_relaxed))
            end_parked(b, at, GEN_CANCELLED);
        else
            at = &(*at)->next;
}

void batch_end_all(struct batch *b, enum gen_event_kind why)
{
    while (b->parked)
        end_parked(b, &b->parked, why);
    for (struct gen *g = b->running; g; g = g->next)
        g->outcome = why;
    batch_finish(b);
}

/* ---- between two steps ---- */

static void end_cut_sequences(struct batch *b, struct gen *g)
{
    for (int i = 0; i < g->n_started; i++) {
        struct sequence *s = &g->sequences[i];

        if (s->state == SEQ_DECODE && atomic_load_explicit(&s->cut, memory_order_relaxed))
            batch_end_sequence(b, s, GEN_CUT);
    }
}

void batch_sweep(struct batch *b)
{
    for (struct gen *g = b->running; g; g = g->next) {
        if (atomic_load_explicit(&g->cancelled, memory_order_relaxed))
            g->outcome = GEN_CANCELLED;
        else
            end_cut_sequences(b, g);
    }
    batch_finish(b);
    end_cancelled_parked(b);
    park(b);
    unpark(b);
    b->starved = false;
    for (struct gen *g = b->running; g && !b->starved; g = g->next)
        start_pending(b, g);
    batch_finish(b);
}
