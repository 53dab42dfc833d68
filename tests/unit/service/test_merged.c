/* Merged adapters: recorded logits of merged models, and an lm_head that parts from the embedding.
 */
#include "model/fixture.h"

#include "engine/image.h"
#include "engine/image_bank.h"
#include "model/adapter_make.h"
#include "service/weaver/merged.h"

static const char *const models[] = {"tiny-llama", "tiny-llama-untied-rope3", "tiny-qwen2",
                                     "tiny-qwen3", "tiny-lfm2"};
enum { N_MODELS = sizeof models / sizeof *models };

/* A model on disk as an image, and as a fixture that runs it. */
struct base {
    struct fixture fx;
    struct image_bank *bank;
    struct image *image;
};

static void base_open(struct base *b, const char *name)
{
    struct err e = {0};
    char path[256];

    fixture_open(&b->fx, name, "avx2", 2);
    snprintf(path, sizeof path, MODELS "%s", name);
    b->bank = image_bank_new(&e);
    must(b->bank ? 0 : -1, &e);
    b->image = image_load_dir(b->bank, path, NULL, &e);
    must(b->image ? 0 : -1, &e);
}

static void base_close(struct base *b)
{
    image_unref(b->image);
    image_bank_unref(b->bank);
    fixture_close(&b->fx);
}

/* The logits of a prompt, with this adapter's lm_head or NULL; the caller frees. */
static float *logits_of(struct fixture *fx, const struct model *m, const struct adapter *head,
                        const int32_t *ids, int n)
{
    size_t vocab = (size_t)fx->config.vocab;
    float *full = malloc((size_t)n * vocab * sizeof *full);
    struct logits_row rows[64];
    struct fixture other = *fx;

    assert_non_null(full);
    assert_true(n <= 64);
    other.model = (struct model *)(uintptr_t)m;
    float *hidden = run_prompt(&other, ids, n);

    for (int i = 0; i < n; i++)
        rows[i] =
            (struct logits_row){.target = -1, .full = full + (size_t)i * vocab, .adapter = head};
    logits_run(fx->logits, m, hidden, n, rows);
    free(hidden);
    return full;
}

static struct adapter *recorded_adapter(const struct base *b, const char *name)
{
    struct adapter_problem p = {0};
    struct err e = {0};
    char path[256];

    snprintf(path, sizeof path, GOLDEN "%s/lora", name);
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    struct adapter *a = adapter_read(fd, "lora", 1, &b->fx.config, false, &p, &e);

    must(a ? 0 : -1, &e);
    close(fd);
    return a;
}

static struct model *bind_merged(const struct merged *m, const struct model_config *c)
{
    const char *reason;
    struct err e = {0};
    struct model *model = model_bind(c, m->weights, &reason, &e);

    must(model ? 0 : -1, &e);
    return model;
}

/* Weights at the edge of two BF16 numbers may fall on the other side: 5e-4 beside logits of 3. */
static void a_merged_model_has_the_recorded_logits(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        struct base b;
        struct merged m;
        struct golden g = {0}, merged = {0};
        struct err e = {0};
        char path[256];
        size_t want_n;
        int n;

        base_open(&b, models[i]);
        golden_open(&g, models[i]);
        int32_t *ids = golden_prompt(&g, 0, &n);
        struct adapter *a = recorded_adapter(&b, models[i]);

        snprintf(path, sizeof path, GOLDEN "%s/merged.safetensors", models[i]);
        merged.fd = open(path, O_RDONLY);
        must(st_index_read(&merged.index, merged.fd, &e), &e);
        float *want = golden_tensor(&merged, "merged_bf16.prompt0.logits", &want_n);

        must(merged_make(&m, b.image, a, NULL, &e), &e);
        struct model *model = bind_merged(&m, &b.fx.config);
        float *got = logits_of(&b.fx, model, NULL, ids, n);

        assert_int_equal(want_n, (size_t)n * (size_t)b.fx.config.vocab);
        check_close(models[i], "merged logits", got, want, want_n, 5e-4);
        free(got);
        free(want);
        free(ids);
        model_free(model);
        merged_release(&m);
        adapter_unref(a);
        golden_close(&g);
        golden_close(&merged);
        base_close(&b);
    }
}

static void set_b(struct adapter *a)
{
    const struct lora *l = &a->head;
    float *b = (float *)(uintptr_t)l->b.w;

    for (int i = 0; i < l->b.n * l->b.k; i++)
        b[i] = 0.01f * (float)(i % 13 - 6);
}

static void a_merge_ends_when_it_is_not_wanted_any_more(void **state)
{
    static const struct lora_settings s = {.rank = 2, .alpha = 8, .mlp = true};
    atomic_bool stop = true;
    struct base b;
    struct merged m;
    struct err e = {0};

    (void)state;
    base_open(&b, "tiny-llama");
    struct adapter *a = adapter_new(&b.fx.config, &s, &e);

    must(a ? 0 : -1, &e);
    assert_int_equal(merged_make(&m, b.image, a, &stop, &e), -1);
    assert_int_equal(e.code, ERR_CANCELLED);
    assert_null(m.weights);
    adapter_unref(a);
    base_close(&b);
}

/* Merged or beside the base, an adapted head says nearly the same; the embedding stays. */
static void an_adapted_head_parts_from_a_tied_embedding(void **state)
{
    static const struct lora_settings s = {.rank = 4, .alpha = 8, .unembed = true};
    static const int32_t ids[6] = {3, 1, 4, 1, 5, 9};
    struct base b;
    struct merged m;
    struct err e = {0};

    (void)state;
    base_open(&b, "tiny-llama");
    struct adapter *a = adapter_new(&b.fx.config, &s, &e);

    must(a ? 0 : -1, &e);
    set_b(a);
    must(merged_make(&m, b.image, a, NULL, &e), &e);
    json_t *text = json_parse(m.config.data, m.config.len, &e);
    static struct model_config config;
    const char *reason;

    assert_true(json_is_false(json_object_get(text, "tie_word_embeddings")));
    must(model_config_parse(&config, text, NULL, &reason, &e), &e);
    struct model *model = bind_merged(&m, &config);
    float *base = logits_of(&b.fx, b.fx.model, NULL, ids, 6),
          *beside = logits_of(&b.fx, b.fx.model, a, ids, 6),
          *got = logits_of(&b.fx, model, NULL, ids, 6);
    double largest = 0;

    assert_memory_equal(model->embed.w, b.fx.model->embed.w,
                        (size_t)config.vocab * (size_t)config.hidden * 2);
    for (int i = 0; i < 6 * config.vocab; i++)
        largest = fmax(largest, fabs((double)beside[i] - (double)base[i]));
    assert_true(largest > 0.2); /* the adapter says something, more than rounding does */
    check_close("tiny-llama", "merged head", got, beside, 6 * (size_t)config.vocab, 0.1);
    free(beside);
    free(got);
    free(base);
    model_free(model);
    json_decref(text);
    merged_release(&m);
    adapter_unref(a);
    base_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_merged_model_has_the_recorded_logits),
        cmocka_unit_test(an_adapted_head_parts_from_a_tied_embedding),
        cmocka_unit_test(a_merge_ends_when_it_is_not_wanted_any_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
