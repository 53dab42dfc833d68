/* Gradients against finite differences: one tiny model of each family, its weights widened to F32
 * so that they can be moved a little; every tensor along its own gradient. */
#include "pass_fixture.h"

#include "model/adapter_make.h"

enum { PARAMS_MAX = 128 };

struct param {
    const char *name;
    float *w, *g;
    size_t n;
};

/* A model whose tensors are f32 arrays of its own, and a gradient beside each. */
struct wide {
    struct model model;
    struct layer_grads *layer_grads;
    struct grads grads;
    struct param param[PARAMS_MAX];
    int n;
};

static float *widen(struct wide *m, const void *w, size_t n, const char *name, float **place)
{
    struct param *p = &m->param[m->n++];

    assert_true(m->n <= PARAMS_MAX);
    *p = (struct param){name, malloc(n * sizeof(float)), calloc(n, sizeof(float)), n};
    kernels_by_name("ref")->to_f32(p->w, w, m->model.dtype, n);
    *place = p->g;
    return p->w;
}

static void widen_matrix(struct wide *m, struct kern_matrix *w, const char *name, float **place)
{
    if (w->n == 0)
        return;
    w->w = widen(m, w->w, (size_t)w->n * (size_t)w->k, name, place);
    w->dtype = KERN_F32;
}

static void widen_vector(struct wide *m, const void **w, int n, const char *name, float **place)
{
    if (*w)
        *w = widen(m, *w, (size_t)n, name, place);
}

static void widen_layer(struct wide *m, struct layer *l, struct layer_grads *g)
{
    const struct model_config *c = &m->model.config;

#define MATRIX(field)       widen_matrix(m, &l->field, #field, &g->field)
#define VECTOR(field, size) widen_vector(m, &l->field, size, #field, &g->field)
    MATRIX(gate);
    MATRIX(up);
    MATRIX(down);
    MATRIX(q);
    MATRIX(k);
    MATRIX(v);
    MATRIX(o);
    MATRIX(conv_in);
    MATRIX(conv_out);
    VECTOR(norm_in, c->hidden);
    VECTOR(norm_ff, c->hidden);
    VECTOR(q_bias, model_q_width(c));
    VECTOR(k_bias, model_kv_width(c));
    VECTOR(v_bias, model_kv_width(c));
    VECTOR(q_norm, c->head_dim);
    VECTOR(k_norm, c->head_dim);
    VECTOR(conv_taps, c->hidden * c->conv_taps);
#undef MATRIX
#undef VECTOR
}

static void wide_open(struct wide *m, const struct model *from)
{
    const struct model_config *c = &from->config;

    *m = (struct wide){.model = *from};
    m->model.layers = calloc((size_t)c->n_layers, sizeof *m->model.layers);
    memcpy(m->model.layers, from->layers, (size_t)c->n_layers * sizeof *m->model.layers);
    m->grads.layers = m->layer_grads = calloc((size_t)c->n_layers, sizeof *m->layer_grads);
    m->grads.n_layers = c->n_layers;
    for (int i = 0; i < c->n_layers; i++)
        widen_layer(m, &m->model.layers[i], &m->layer_grads[i]);
    widen_matrix(m, &m->model.embed, "embed", &m->grads.embed);
    widen_vector(m, &m->model.final_norm, c->hidden, "final_norm", &m->grads.final_norm);
    if (c->tied) {
        m->model.head = m->model.embed;
        m->grads.head = m->grads.embed;
    } else {
        widen_matrix(m, &m->model.head, "head", &m->grads.head);
    }
    m->model.dtype = KERN_F32;
}

static void wide_close(struct wide *m)
{
    for (int i = 0; i < m->n; i++) {
        free(m->param[i].w);
        free(m->param[i].g);
    }
    free(m->model.layers);
    free(m->layer_grads);
}

static double loss(const struct fixture *fx, const struct model *m, const struct adapter *a,
                   const struct batch *b, struct how how)
{
    float *logprobs = calloc((size_t)b->rows, sizeof *logprobs);
    double sum = 0;

    run_pass(fx, m, a, b, how, logprobs, NULL);
    for (int i = 0; i < b->rows; i++)
        sum += (double)b->coef[i] * (double)logprobs[i] +
               (b->entropies ? (double)b->entropy_coef[i] * (double)b->entropies[i] : 0);
    free(logprobs);
    return sum;
}

static void move(struct param *p, const float *from, double h)
{
    for (size_t i = 0; i < p->n; i++)
        p->w[i] = (float)((double)from[i] + h * (double)p->g[i]);
}

/* Along its own gradient the loss must grow by the square of its length. */
static void check_param(const struct fixture *fx, const struct model *m, const struct adapter *a,
                        const struct batch *b, struct how how, struct param *p)
{
    const double grow = 0.2;
    float *from = malloc(p->n * sizeof *from);
    double square = 0, up, down, ratio;

    for (size_t i = 0; i < p->n; i++)
        square += (double)p->g[i] * (double)p->g[i];
    assert_true(square > 0);
    memcpy(from, p->w, p->n * sizeof *from);
    move(p, from, grow / 2 / square);
    up = loss(fx, m, a, b, how);
    move(p, from, -grow / 2 / square);
    down = loss(fx, m, a, b, how);
    memcpy(p->w, from, p->n * sizeof *from);
    ratio = (up - down) / grow;
    if (!(fabs(ratio - 1) < 0.01))
        fail_msg("%s: the loss grows by %g of what the gradient says", p->name, ratio);
    free(from);
}

static void gradients_are_the_slope_of_the_loss(void **state)
{
    (void)state;
    for (int i = 0; i < N_TRAINED; i++) {
        struct fixture fx;
        struct golden golden = {0};
        struct batch b = {0};
        struct wide m;

        fixture_open(&fx, trained_models[i], kernels_pick(false)->name, 2);
        golden_open(&golden, trained_models[i]);
        batch_read(&b, &golden);
        wide_open(&m, fx.model);
        run_pass(&fx, &m.model, NULL, &b, plainly, NULL, &m.grads);
        for (int p = 0; p < m.n; p++)
            check_param(&fx, &m.model, NULL, &b, plainly, &m.param[p]);
        wide_close(&m);
        batch_free(&b);
        golden_close(&golden);
        fixture_close(&fx);
    }
}

static void gradients_follow_the_temperature(void **state)
{
    const struct how warm = {BUDGET, 0, 1.7f};
    struct fixture fx;
    struct golden golden = {0};
    struct batch b = {0};
    struct wide m;

    (void)state;
    fixture_open(&fx, "tiny-llama", kernels_pick(false)->name, 2);
    golden_open(&golden, "tiny-llama");
    batch_read(&b, &golden);
    wide_open(&m, fx.model);
    run_pass(&fx, &m.model, NULL, &b, warm, NULL, &m.grads);
    check_param(&fx, &m.model, NULL, &b, warm, &m.param[0]);
    wide_close(&m);
    batch_free(&b);
    golden_close(&golden);
    fixture_close(&fx);
}

/* ---- entropies ---- */

static void slopes_with_entropy(const char *model, bool alone)
{
    const struct how warm = {BUDGET, 0, 1.7f};
    struct fixture fx;
    struct golden golden = {0};
    struct batch b = {0};
    struct wide m;

    fixture_open(&fx, model, kernels_pick(false)->name, 2);
    golden_open(&golden, model);
    batch_read(&b, &golden);
    batch_add_entropy(&b, alone);
    wide_open(&m, fx.model);
    run_pass(&fx, &m.model, NULL, &b, warm, NULL, &m.grads);
    for (int p = 0; p < m.n; p++)
        check_param(&fx, &m.model, NULL, &b, warm, &m.param[p]);
    wide_close(&m);
    batch_free(&b);
    golden_close(&golden);
    fixture_close(&fx);
}

static void entropies_have_their_slope_too(void **state)
{
    (void)state;
    slopes_with_entropy("tiny-llama", false);
    slopes_with_entropy("tiny-llama", true);
    slopes_with_entropy("tiny-llama-untied-rope3", true);
    slopes_with_entropy("tiny-lfm2", false);
}

/* By the log-probabilities of every token of the vocabulary. */
static void entropies_are_those_of_the_whole_distribution(void **state)
{
    const struct how warm = {BUDGET, 0, 1.3f};
    enum { ROWS = 12 };
    int32_t tokens[ROWS], targets[ROWS];
    struct pass_sequence s = {tokens, targets, ROWS};
    float coef[ROWS] = {0}, entropy_coef[ROWS] = {0}, entropies[ROWS], lp[ROWS];
    double want[ROWS] = {0};
    struct batch b = {.sequences = &s, .n = 1, .rows = ROWS, .coef = coef};
    struct fixture fx;

    (void)state;
    fixture_open(&fx, "tiny-qwen2", kernels_pick(false)->name, 2);
    for (int i = 0; i < ROWS; i++)
        tokens[i] = 3 + 37 * i % fx.config.vocab;
    for (int v = 0; v < fx.config.vocab; v++) {
        for (int i = 0; i < ROWS; i++)
            targets[i] = v;
        run_pass(&fx, fx.model, NULL, &b, warm, lp, NULL);
        for (int i = 0; i < ROWS; i++)
            want[i] -= exp((double)lp[i]) * (double)lp[i];
    }
    targets[4] = -100;
    b.entropy_coef = entropy_coef;
    b.entropies = entropies;
    run_pass(&fx, fx.model, NULL, &b, warm, lp, NULL);
    for (int i = 0; i < ROWS; i++)
        if (fabs((double)entropies[i] - (i == 4 ? 0 : want[i])) > 2e-5)
            fail_msg("[%d]: entropy %.9g, expected %.9g", i, (double)entropies[i], want[i]);
    fixture_close(&fx);
}

/* ---- adapters, that of lm_head included ---- */

static void add_lora_param(struct param *list, int *n, const struct kern_matrix *w, float **place)
{
    struct param *p = &list[(*n)++];

    assert_true(*n <= PARAMS_MAX);
    *p = (struct param){
        .name = "adapter", .w = (float *)(uintptr_t)w->w, .n = (size_t)w->n * (size_t)w->k};
    *place = p->g = calloc(p->n, sizeof *p->g);
}

static int lora_params(struct adapter *a, struct grads *g, struct param *list)
{
    int n = 0;
    uint64_t seed = 7;

    for (int slot = 0; slot < adapter_slots(a->n_layers); slot++) {
        struct lora *l = adapter_slot(a, slot);
        struct lora_grad *to = slot < a->n_layers * PROJECTIONS
                                   ? &g->layers[slot / PROJECTIONS].lora[slot % PROJECTIONS]
                                   : &g->head_lora;

        if (l->a.n == 0)
            continue;
        add_lora_param(list, &n, &l->a, &to->a);
        add_lora_param(list, &n, &l->b, &to->b);
        for (size_t i = 0; i < list[n - 1].n; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            list[n - 1].w[i] = (float)(seed >> 44) / 0x1p20f * 0.2f - 0.1f;
        }
    }
    return n;
}

static void adapter_slopes(bool entropy)
{
    static const char *const models[] = {"tiny-llama", "tiny-llama-untied-rope3", "tiny-lfm2"};
    const struct lora_settings settings = {
        .rank = 3, .alpha = 6, .attn = true, .mlp = true, .unembed = true, .seed = 5};

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct fixture fx;
        struct golden golden = {0};
        struct batch b = {0};
        struct layer_grads layers[8] = {0};
        struct grads g = {.layers = layers};
        struct param list[PARAMS_MAX];
        struct err e = {0};
        int n;

        fixture_open(&fx, models[i], kernels_pick(false)->name, 2);
        golden_open(&golden, models[i]);
        batch_read(&b, &golden);
        if (entropy)
            batch_add_entropy(&b, false);
        g.n_layers = fx.config.n_layers;
        struct adapter *a = adapter_new(&fx.config, &settings, &e);

        must(a ? 0 : -1, &e);
        n = lora_params(a, &g, list);
        run_pass(&fx, fx.model, a, &b, plainly, NULL, &g);
        for (int p = 0; p < n; p++) {
            check_param(&fx, fx.model, a, &b, plainly, &list[p]);
            free(list[p].g);
        }
        adapter_unref(a);
        batch_free(&b);
        golden_close(&golden);
        fixture_close(&fx);
    }
}

static void adapter_gradients_are_the_slope_of_the_loss(void **state)
{
    (void)state;
    adapter_slopes(false);
    adapter_slopes(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_slope_of_the_loss),
        cmocka_unit_test(gradients_follow_the_temperature),
        cmocka_unit_test(entropies_have_their_slope_too),
        cmocka_unit_test(entropies_are_those_of_the_whole_distribution),
        cmocka_unit_test(adapter_gradients_are_the_slope_of_the_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
