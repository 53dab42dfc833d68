#include "engine/gen.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "engine/engine_impl.h"
#include "engine/image.h"
#include "engine/runner.h"
#include "engine/served.h"
#include "generate/grammar.h"
#include "generate/token_trie.h"
#include "model/adapter.h"
#include "model/config.h"
#include "model/kv_cache.h"

enum { TWIN_REACH = 256 }; /* sequences */

static int check_shape(const struct gen_spec *spec, struct err *e)
{
    if (spec->n_prompts < 1 || spec->n_prompts > GEN_PROMPTS_MAX)
        return err_set(e, ERR_ARG, "%d prompts in one request, of 1 to %d", spec->n_prompts,
                       GEN_PROMPTS_MAX);
    if (spec->n_stop_ids < 0 || spec->n_stop_ids > GEN_STOP_IDS_MAX)
        return err_set(e, ERR_ARG, "%d stop ids, of at most %d", spec->n_stop_ids,
                       GEN_STOP_IDS_MAX);
    if (spec->top_logprobs < -1 || spec->top_logprobs > GEN_TOP_MAX)
        return err_set(e, ERR_ARG, "top_logprobs %d is not in -1..%d", spec->top_logprobs,
                       GEN_TOP_MAX);
    if (spec->max_tokens < 0)
        return err_set(e, ERR_ARG, "max_tokens %d is negative", spec->max_tokens);
    if (spec->pooling != GEN_POOL_NONE && (spec->max_tokens > 0 || spec->prompt_logprobs))
        return err_set(e, ERR_ARG, "a request for vectors neither generates nor scores");
    for (int i = 0; i < spec->n_prompts; i++)
        if (spec->prompts[i].n < 1)
            return err_set(e, ERR_ARG, "prompt %d has no tokens", i);
    return 0;
}

static void note_token(struct gen *g, int32_t token)
{
    if (token < 0 || token > g->max_token)
        g->max_token = token < 0 ? INT32_MAX : token;
}

static int copy_tokens(struct gen *g, const struct gen_spec *spec, struct err *e)
{
    size_t total = 0, at = 0;

    for (int i = 0; i < spec->n_prompts; i++)
        total += (size_t)spec->prompts[i].n;
    g->tokens = malloc((total + 1) * sizeof *g->tokens);
    if (!g->tokens)
        return err_nomem(e);
    for (int i = 0; i < spec->n_prompts; i++) {
        const struct gen_prompt *p = &spec->prompts[i];

        memcpy(g->tokens + at, p->tokens, (size_t)p->n * sizeof *g->tokens);
        g->sequences[i].tokens = g->tokens + at;
        g->sequences[i].n_prompt = p->n;
        at += (size_t)p->n;
        if (p->n > g->max_prompt)
            g->max_prompt = p->n;
    }
    for (size_t i = 0; i < total; i++)
        note_token(g, g->tokens[i]);
    return 0;
}

static int copy_lists(struct gen *g, const struct gen_spec *spec, struct err *e)
{
    if (spec->n_bias > 0) {
        g->bias = malloc((size_t)spec->n_bias * sizeof *g->bias);
        if (!g->bias)
            return err_nomem(e);
    }
    for (int i = 0; i < spec->n_bias; i++) {
        g->bias[i] = (struct sample_bias){spec->bias[i].token, spec->bias[i].bias};
        note_token(g, spec->bias[i].token);
    }
    if (!spec->allowed)
        return 0;
    g->allowed = malloc(((size_t)spec->n_allowed + 1) * sizeof *g->allowed);
    if (!g->allowed)
        return err_nomem(e);
    memcpy(g->allowed, spec->allowed, (size_t)spec->n_allowed * sizeof *g->allowed);
    for (int i = 0; i < spec->n_allowed; i++)
        note_token(g, g->allowed[i]);
    return 0;
}

/* Choices of one prompt (n > 1) are neighbours mostly, so the search goes from the nearest back,
 * and not far: a request may hold thousands of prompts that differ in their last token. */
static int find_twin(const struct gen *g, int i)
{
    const struct sequence *s = &g->sequences[i];

    for (int j = i - 1; j >= 0 && j >= i - TWIN_REACH; j--) {
        const struct sequence *t = &g->sequences[j];

        if (t->n_prompt == s->n_prompt &&
            /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): copy_tokens set both */
            memcmp(t->tokens, s->tokens, (size_t)s->n_prompt * sizeof *s->tokens) == 0)
            return t->twin;
    }
    return i;
}

static void set_up_sequence(struct gen *g, int i, const struct gen_spec *spec)
{
    struct sequence *s = &g->sequences[i];

    s->gen = g;
    s->index = i;
    s->twin = find_twin(g, i);
    s->params = (struct sample_params){
        .temperature = spec->temperature,
        .top_p = spec->top_p,
        .min_p = spec->min_p,
        .top_k = spec->top_k,
        .frequency_penalty = spec->frequency_penalty,
        .presence_penalty = spec->presence_penalty,
        .repetition_penalty = spec->repetition_penalty,
        .seed = spec->seed,
        .sample_index = spec->prompts[i].sample_index,
        .bias = g->bias,
        .n_bias = spec->n_bias,
        .allowed = g->allowed,
        .n_allowed = spec->allowed ? spec->n_allowed : 0,
    };
}

static void hold_weights(struct gen *g)
{
    struct gen_spec *s = &g->spec;

    s->adapter = s->image && s->adapter ? adapter_ref(s->adapter) : NULL;
    if (s->image)
        image_ref(s->image);
}

struct gen *gen_new(struct engine *en, const struct gen_spec *spec, struct err *e)
{
    if (check_shape(spec, e) < 0)
        return NULL;
    struct gen *g = calloc(1, sizeof *g);

    if (!g) {
        err_nomem(e);
        return NULL;
    }
    atomic_init(&g->refs, 1);
    g->engine = en;
    g->submitted_at = clock_mono_ns();
    g->spec = *spec;
    hold_weights(g);
    g->outcome = GEN_DONE;
    g->n_sequences = g->n_open = spec->n_prompts;
    g->sequences = calloc((size_t)spec->n_prompts, sizeof *g->sequences);
    if (!g->sequences) {
        err_nomem(e);
        goto fail;
    }
    if (copy_tokens(g, spec, e) < 0 || copy_lists(g, spec, e) < 0)
        goto fail;
    g->grammar = spec->grammar ? grammar_bound_ref(spec->grammar) : NULL;
    for (int i = 0; i < spec->n_prompts; i++)
        set_up_sequence(g, i, spec);
    return g;

fail:
    gen_free(g);
    return NULL;
}

struct gen *gen_ref(struct gen *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void sequence_release(struct sequence *s)
{
    kv_seq_free(s->kv);
    free(s->made);
    free(s->pooled);
    s->kv = NULL;
    s->made = NULL;
    s->pooled = NULL;
    s->leader = NULL;
    sample_history_release(&s->history);
    grammar_run_free(s->grammar);
    s->grammar = NULL;
}

void gen_free(struct gen *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    image_unref(g->spec.image);
    adapter_unref(g->spec.adapter);
    free(g->sequences);
    free(g->tokens);
    free(g->allowed);
    free(g->bias);
    grammar_bound_unref(g->grammar);
    free(g);
}

int gen_check(const struct gen *g, const struct model_config *c, struct err *e)
{
    if (g->max_token >= c->vocab)
        return err_set(e, ERR_ARG, "a token id is outside the model's vocabulary of %d", c->vocab);
    if (g->max_prompt > c->max_positions)
        return err_set(e, ERR_ARG, "a prompt of %d tokens does not fit the model's context of %d",
                       g->max_prompt, c->max_positions);
    if (g->grammar && grammar_bound_trie(g->grammar)->vocab != c->vocab)
        return err_set(e, ERR_ARG, "the grammar is for a vocabulary of %d, the model has %d",
                       grammar_bound_trie(g->grammar)->vocab, c->vocab);
    return sample_params_check(&g->sequences[0].params, c->vocab, e);
}

void gen_emit(struct gen *g, const struct gen_event *ev)
{
    g->spec.on_event(g->spec.arg, ev);
}

void gen_cancel(struct gen *g)
{
    atomic_store_explicit(&g->cancelled, true, memory_order_relaxed);
    engine_poke(g->engine);
}

void gen_pause(struct gen *g, bool paused)
{
    if (!g->spec.image)
        return; /* the resident's requests are what the gate is for */
    atomic_store_explicit(&g->paused, paused, memory_order_relaxed);
    engine_poke(g->engine);
}

void gen_cut_sequence(struct gen *g, int sequence)
{
    atomic_store_explicit(&g->sequences[sequence].cut, true, memory_order_relaxed);
    engine_poke(g->engine);
}
