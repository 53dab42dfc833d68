/* tests/unit/train/pass_fixture.h - a model, a pass over it, the recorded training batch, and a
 * place for every gradient by the name of its tensor. */
#ifndef TESTS_TRAIN_PASS_FIXTURE_H
#define TESTS_TRAIN_PASS_FIXTURE_H

#include "model/fixture.h"

#include "base/clock.h"
#include "model/adapter.h"
#include "train/grads.h"
#include "train/pass.h"

static const char *const trained_models[] = {"tiny-llama", "tiny-llama-untied-rope3", "tiny-qwen2",
                                             "tiny-qwen3", "tiny-lfm2"};
enum { N_TRAINED = sizeof trained_models / sizeof *trained_models, BUDGET = 64 << 20 };

/* ---- the batch ---- */

struct batch {
    struct pass_sequence *sequences;
    int n, rows;
    float *coef; /* [rows] of the loss sum of weight x -logprob */
    /* [rows], or NULL: entropies are filled in by run_pass */
    float *entropy_coef, *entropies;
};

static inline void batch_read(struct batch *b, const struct golden *g)
{
    const json_t *list = json_object_get(json_object_get(g->json, "train"), "batch");

    b->n = (int)json_array_size(list);
    b->rows = 0;
    b->sequences = calloc((size_t)b->n, sizeof *b->sequences);
    b->coef = calloc(1 << 16, sizeof *b->coef);
    for (int i = 0; i < b->n; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        const json_t *weights = json_object_get(item, "weights");
        struct pass_sequence *s = &b->sequences[i];
        int n_targets;

        s->tokens = json_ids(json_object_get(item, "input_ids"), &s->n);
        s->targets = json_ids(json_object_get(item, "target_ids"), &n_targets);
        assert_int_equal(s->n, n_targets);
        for (int t = 0; t < s->n; t++)
            b->coef[b->rows++] = -(float)json_number_value(json_array_get(weights, (size_t)t));
    }
}

/* A batch of uneven lengths, longer than a block of keys; rows past the first chunk of a step, cut
 * inside a sequence; targets and coefficients that are missing. */
static inline void batch_make(struct batch *b, const struct model_config *c)
{
    static const int lengths[] = {150, 1, 70, 64, 33, 129, 140};
    uint32_t x = 12345;

    *b = (struct batch){.n = sizeof lengths / sizeof *lengths};
    b->sequences = calloc((size_t)b->n, sizeof *b->sequences);
    b->coef = calloc(1024, sizeof *b->coef);
    for (int i = 0; i < b->n; i++) {
        int32_t *tokens = calloc((size_t)lengths[i], sizeof *tokens);
        int32_t *targets = calloc((size_t)lengths[i], sizeof *targets);

        for (int t = 0; t < lengths[i]; t++) {
            x = x * 1664525 + 1013904223;
            tokens[t] = (int32_t)((x >> 8) % (uint32_t)c->vocab);
            targets[t] = x >> 30 == 0 ? -100 : (int32_t)((x >> 12) % (uint32_t)c->vocab);
            b->coef[b->rows++] = x >> 28 == 5 ? 0 : (float)(x >> 16 & 255) / 128.0f - 1;
        }
        b->sequences[i] = (struct pass_sequence){tokens, targets, lengths[i]};
    }
}

/* Some entropies count, of rows with and without another coefficient. */
static inline void batch_add_entropy(struct batch *b, bool alone)
{
    b->entropy_coef = calloc((size_t)b->rows, sizeof *b->entropy_coef);
    b->entropies = calloc((size_t)b->rows, sizeof *b->entropies);
    for (int i = 0; i < b->rows; i++) {
        b->entropy_coef[i] = i % 4 == 1 ? 0 : 0.25f * (float)(i % 3 + 1);
        if (alone)
            b->coef[i] = 0;
    }
}

static inline void batch_free(struct batch *b)
{
    for (int i = 0; i < b->n; i++) {
        free((void *)b->sequences[i].tokens);
        free((void *)b->sequences[i].targets);
    }
    free(b->sequences);
    free(b->coef);
    free(b->entropy_coef);
    free(b->entropies);
}

/* ---- gradients by name ---- */

struct place_name {
    const char *name;
    size_t at; /* of a pointer in struct layer_grads */
};

#define PLACE(name, field)                        \
    {                                             \
        name, offsetof(struct layer_grads, field) \
    }

static const struct place_name place_names[] = {
    PLACE("input_layernorm.weight", norm_in),
    PLACE("post_attention_layernorm.weight", norm_ff),
    PLACE("operator_norm.weight", norm_in),
    PLACE("ffn_norm.weight", norm_ff),
    PLACE("self_attn.q_proj.weight", q),
    PLACE("self_attn.k_proj.weight", k),
    PLACE("self_attn.v_proj.weight", v),
    PLACE("self_attn.o_proj.weight", o),
    PLACE("self_attn.out_proj.weight", o),
    PLACE("self_attn.q_proj.bias", q_bias),
    PLACE("self_attn.k_proj.bias", k_bias),
    PLACE("self_attn.v_proj.bias", v_bias),
    PLACE("self_attn.q_norm.weight", q_norm),
    PLACE("self_attn.k_norm.weight", k_norm),
    PLACE("self_attn.q_layernorm.weight", q_norm),
    PLACE("self_attn.k_layernorm.weight", k_norm),
    PLACE("mlp.gate_proj.weight", gate),
    PLACE("mlp.up_proj.weight", up),
    PLACE("mlp.down_proj.weight", down),
    PLACE("feed_forward.w1.weight", gate),
    PLACE("feed_forward.w3.weight", up),
    PLACE("feed_forward.w2.weight", down),
    PLACE("conv.in_proj.weight", conv_in),
    PLACE("conv.conv.weight", conv_taps),
    PLACE("conv.out_proj.weight", conv_out),
};

static const struct place_name lora_names[] = {
    PLACE("self_attn.q_proj", lora[PROJ_Q]),     PLACE("self_attn.k_proj", lora[PROJ_K]),
    PLACE("self_attn.v_proj", lora[PROJ_V]),     PLACE("self_attn.o_proj", lora[PROJ_O]),
    PLACE("self_attn.out_proj", lora[PROJ_O]),   PLACE("mlp.gate_proj", lora[PROJ_GATE]),
    PLACE("mlp.up_proj", lora[PROJ_UP]),         PLACE("mlp.down_proj", lora[PROJ_DOWN]),
    PLACE("feed_forward.w1", lora[PROJ_GATE]),   PLACE("feed_forward.w3", lora[PROJ_UP]),
    PLACE("feed_forward.w2", lora[PROJ_DOWN]),   PLACE("conv.in_proj", lora[PROJ_CONV_IN]),
    PLACE("conv.out_proj", lora[PROJ_CONV_OUT]),
};

#undef PLACE

/* Where the pointer to a gradient's place is kept; NULL: no such name. "grad." has been cut. */
static inline float **place_of_layer(struct grads *g, const char *name)
{
    char *end;
    long layer = strtol(name, &end, 10);

    assert_true(*end == '.' && layer < g->n_layers);
    for (size_t i = 0; i < sizeof place_names / sizeof *place_names; i++)
        if (strcmp(end + 1, place_names[i].name) == 0)
            return (float **)((char *)&g->layers[layer] + place_names[i].at);
    return NULL;
}

static inline float **place_of_lora(struct grads *g, const char *name)
{
    char *end;
    long layer = strtol(name, &end, 10);

    for (size_t i = 0; i < sizeof lora_names / sizeof *lora_names; i++) {
        size_t n = strlen(lora_names[i].name);
        struct lora_grad *l = (struct lora_grad *)((char *)&g->layers[layer] + lora_names[i].at);

        if (strncmp(end + 1, lora_names[i].name, n) != 0)
            continue;
        if (strcmp(end + 1 + n, ".lora_A.weight") == 0)
            return &l->a;
        if (strcmp(end + 1 + n, ".lora_B.weight") == 0)
            return &l->b;
    }
    return NULL;
}

static inline float **place_of(struct grads *g, const char *name)
{
    static const char layers[] = "model.layers.", lora[] = "base_model.model.model.layers.";

    if (strncmp(name, layers, sizeof layers - 1) == 0)
        return place_of_layer(g, name + sizeof layers - 1);
    if (strncmp(name, lora, sizeof lora - 1) == 0)
        return place_of_lora(g, name + sizeof lora - 1);
    if (strcmp(name, "model.embed_tokens.weight") == 0)
        return &g->embed;
    if (strcmp(name, "lm_head.weight") == 0)
        return &g->head;
    if (strcmp(name, "model.norm.weight") == 0 || strcmp(name, "model.embedding_norm.weight") == 0)
        return &g->final_norm;
    return NULL;
}

/* Gradients with a place for every "grad." tensor of an index, all in one block. */
struct places {
    struct grads g;
    float *memory;
    size_t n; /* floats */
};

static inline void places_open(struct places *pl, const struct st_index *index,
                               const struct model_config *c)
{
    float *at;

    *pl = (struct places){.g = {.n_layers = c->n_layers}};
    pl->g.layers = calloc((size_t)c->n_layers, sizeof *pl->g.layers);
    for (size_t i = 0; i < index->n; i++)
        pl->n += index->tensors[i].bytes / sizeof(float);
    at = pl->memory = calloc(pl->n, sizeof *pl->memory);
    for (size_t i = 0; i < index->n; i++) {
        float **place = place_of(&pl->g, index->tensors[i].name + strlen("grad."));

        if (!place)
            fail_msg("no place for %s", index->tensors[i].name);
        *place = at;
        at += index->tensors[i].bytes / sizeof(float);
    }
    if (c->tied)
        pl->g.head = pl->g.embed;
}

static inline void places_close(struct places *pl)
{
    free(pl->g.layers);
    free(pl->memory);
}

/* ---- a pass ---- */

static inline void recorded_open(struct golden *g, const char *model, const char *file)
{
    char path[256];
    struct err e = {0};

    snprintf(path, sizeof path, GOLDEN "%s/%s", model, file);
    g->fd = open(path, O_RDONLY);
    assert_true(g->fd >= 0);
    must(st_index_read(&g->index, g->fd, &e), &e);
}

/* slice: ns, 0: all at once. */
static inline void run_to_end(struct pass *p, int64_t slice)
{
    while (pass_run(p, slice ? clock_mono_ns() + slice : 0) == PASS_MORE)
        ;
}

struct how {
    size_t budget;
    int64_t slice; /* ns, 0: all at once */
    float temperature;
};

static const struct how plainly = {BUDGET, 0, 1};

/* Log-probabilities into logprobs (or NULL), gradients added to g (or NULL). */
static inline void run_pass(const struct fixture *fx, const struct model *m,
                            const struct adapter *a, const struct batch *b, struct how how,
                            float *logprobs, struct grads *g)
{
    struct err e = {0};
    struct pass *p = pass_new(&fx->config, forward_kernels(fx->forward), fx->pool, how.budget, &e);
    struct pass_job job = {.model = m,
                           .adapter = a,
                           .sequences = b->sequences,
                           .n_sequences = b->n,
                           .temperature = how.temperature,
                           .backward = g != NULL,
                           .entropy = b->entropy_coef != NULL};

    must(p ? 0 : -1, &e);
    must(pass_begin(p, &job, &e), &e);
    run_to_end(p, how.slice);
    assert_true(pass_finite(p));
    assert_int_equal(pass_rows(p), b->rows);
    if (logprobs)
        memcpy(logprobs, pass_logprobs(p), (size_t)b->rows * sizeof *logprobs);
    if (b->entropies)
        memcpy(b->entropies, pass_entropies(p), (size_t)b->rows * sizeof *b->entropies);
    if (g) {
        pass_back(p, b->coef, b->entropy_coef, g);
        run_to_end(p, how.slice);
    }
    pass_end(p);
    pass_free(p);
}

static inline struct adapter *adapter_open(const struct fixture *fx, const char *model)
{
    struct adapter_problem problem = {0};
    struct err e = {0};
    char path[256];
    struct adapter *a;
    int fd;

    snprintf(path, sizeof path, GOLDEN "%s/lora", model);
    fd = open(path, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    a = adapter_read(fd, "lora", 1, &fx->config, false, &problem, &e);
    must(a ? 0 : -1, &e);
    close(fd);
    return a;
}
#endif
