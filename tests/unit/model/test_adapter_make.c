/* Adapters that training makes: their start, lm_head beside the base, and the way to disk and back.
 */
#include "base/buf.h"
#include "fixture.h"
#include "model/adapter_make.h"
#include "store/scratch.h"
#include "tensor/dtype.h"

static const char *const models[] = {"tiny-llama", "tiny-llama-untied-rope3", "tiny-qwen2",
                                     "tiny-qwen3", "tiny-lfm2"};
enum { N_MODELS = sizeof models / sizeof *models, ROWS = 9 };

static const int32_t ids[ROWS] = {3, 1, 4, 1, 5, 9, 2, 6, 5};

static struct adapter *make(const struct fixture *fx, int rank, uint64_t seed)
{
    struct lora_settings s = {
        .rank = rank, .alpha = 32, .attn = true, .mlp = true, .unembed = true, .seed = seed};
    struct err e = {0};
    struct adapter *a = adapter_new(&fx->config, &s, &e);

    must(a ? 0 : -1, &e);
    return a;
}

static float *values(const struct kern_matrix *m)
{
    return (float *)(uintptr_t)m->w;
}

static size_t count(const struct kern_matrix *m)
{
    return (size_t)m->n * (size_t)m->k;
}

/* B of a fresh adapter is zero: give it something to say. */
static void fill_b(struct adapter *a)
{
    for (int i = 0; i < adapter_slots(a->n_layers); i++) {
        const struct lora *l = adapter_slot(a, i);

        for (size_t j = 0; j < count(&l->b); j++)
            values(&l->b)[j] = 0.01f * (float)((int)((j * 7 + (size_t)i) % 13) - 6);
    }
    adapter_round(a);
}

static void is_rounded(const struct adapter *a, const struct kern_matrix *m)
{
    struct kern_matrix half = adapter_factor(a, m, true);

    assert_int_equal(half.dtype, KERN_BF16);
    for (size_t j = 0; j < count(m); j++)
        assert_int_equal(((const uint16_t *)half.w)[j], dtype_f32_to_bf16(values(m)[j]));
}

static void all_is_rounded(const struct adapter *a)
{
    for (int i = 0; i < adapter_slots(a->n_layers); i++) {
        const struct lora *l = adapter_slot_of(a, i);

        if (!l->a.n)
            continue;
        is_rounded(a, &l->a);
        is_rounded(a, &l->b);
    }
}

static void same_matrices(const struct adapter *a, const struct adapter *b, bool same_a)
{
    assert_true(adapter_same_shape(a, b));
    for (int i = 0; i < adapter_slots(a->n_layers); i++) {
        const struct lora *x = adapter_slot_of(a, i), *y = adapter_slot_of(b, i);

        if (!x->a.n)
            continue;
        assert_true(x->scale == y->scale);
        assert_int_equal(memcmp(x->a.w, y->a.w, count(&x->a) * sizeof(float)) == 0, same_a);
        assert_memory_equal(x->b.w, y->b.w, count(&x->b) * sizeof(float));
    }
}

static void the_same_seed_gives_the_same_adapter(void **state)
{
    struct fixture fx;

    (void)state;
    fixture_load(&fx, MODELS "tiny-llama");
    struct adapter *a = make(&fx, 8, 7), *b = make(&fx, 8, 7), *c = make(&fx, 8, 8);

    assert_int_equal(a->n_modules, 3 * 7 + 1);
    same_matrices(a, b, true);
    same_matrices(a, c, false);
    all_is_rounded(a);
    adapter_unref(a);
    adapter_unref(b);
    adapter_unref(c);
    fixture_free(&fx);
}

static void a_is_uniform_within_its_bound_and_b_is_zero(void **state)
{
    struct fixture fx;

    (void)state;
    fixture_load(&fx, MODELS "tiny-llama");
    struct adapter *a = make(&fx, 32, 1);

    for (int i = 0; i < adapter_slots(a->n_layers); i++) {
        const struct lora *l = adapter_slot(a, i);
        double bound = 1 / sqrt((double)l->a.k), sum = 0, squares = 0;
        size_t n = count(&l->a);

        if (!n)
            continue;
        for (size_t j = 0; j < n; j++) {
            double v = (double)values(&l->a)[j];

            assert_true(fabs(v) <= bound * 1.0000001);
            sum += v;
            squares += v * v;
        }
        /* 2,048 draws or more: the mean is within five deviations, the variance within a tenth. */
        assert_true(fabs(sum / (double)n) < 5 * bound / sqrt(3.0 * (double)n));
        assert_true(fabs(squares / (double)n * 3 / (bound * bound) - 1) < 0.1);
        for (size_t j = 0; j < count(&l->b); j++)
            assert_true(values(&l->b)[j] == 0);
    }
    adapter_unref(a);
    fixture_free(&fx);
}

static void flags_choose_the_modules(void **state)
{
    const struct {
        bool attn, mlp, unembed;
        int modules; /* of tiny-lfm2: three layers of convolution, one of attention */
    } cases[] = {{true, false, false, 3 * 2 + 4},
                 {false, true, false, 4 * 3},
                 {false, false, true, 1},
                 {true, true, true, 23}};
    struct fixture fx;
    struct err e = {0};

    (void)state;
    fixture_load(&fx, MODELS "tiny-lfm2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lora_settings s = {.rank = 2,
                                  .alpha = 32,
                                  .attn = cases[i].attn,
                                  .mlp = cases[i].mlp,
                                  .unembed = cases[i].unembed};
        struct adapter *a = adapter_new(&fx.config, &s, &e);

        must(a ? 0 : -1, &e);
        assert_int_equal(a->n_modules, cases[i].modules);
        adapter_unref(a);
    }
    struct lora_settings none = {.rank = 2, .alpha = 32}, wide = {.rank = 1025, .attn = true};

    assert_null(adapter_new(&fx.config, &none, &e));
    assert_int_equal(e.code, ERR_ARG);
    assert_null(adapter_new(&fx.config, &wide, &e));
    assert_int_equal(e.code, ERR_ARG);
    fixture_free(&fx);
}

/* ---- lm_head ---- */

/* Hidden states with the adapter in every row, then logits of each row with adapters[i]. */
static float *logits_of(struct fixture *fx, const float *hidden,
                        const struct adapter *const adapters[ROWS])
{
    size_t vocab = (size_t)fx->config.vocab;
    float *full = malloc(ROWS * vocab * sizeof *full);
    struct logits_row rows[ROWS];

    assert_non_null(full);
    for (int i = 0; i < ROWS; i++)
        rows[i] = (struct logits_row){
            .target = ids[i], .full = full + (size_t)i * vocab, .adapter = adapters[i]};
    logits_run(fx->logits, fx->model, hidden, ROWS, rows);
    for (int i = 0; i < ROWS; i++)
        assert_true(rows[i].target_logit == full[(size_t)i * vocab + (size_t)ids[i]]);
    return full;
}

/* y + s (B (A x)) in double. */
static double expected(const struct lora *l, const float *x, double y, int token)
{
    double sum = 0;

    for (int r = 0; r < l->a.n; r++) {
        double ax = 0;

        for (int k = 0; k < l->a.k; k++)
            ax += (double)values(&l->a)[r * l->a.k + k] * (double)x[k];
        sum += ax * (double)values(&l->b)[token * l->a.n + r];
    }
    return y + (double)l->scale * sum;
}

static void check_head(const char *name, const char *table)
{
    struct fixture fx;

    fixture_open(&fx, name, table, 2);
    struct adapter *a = make(&fx, 5, 3), *b = make(&fx, 8, 4);
    const struct adapter *none[ROWS] = {0}, *all[ROWS], *mixed[ROWS] = {a, a, NULL, b, b, NULL, a};
    size_t vocab = (size_t)fx.config.vocab, H = (size_t)fx.config.hidden;
    float *hidden = run_prompt(&fx, ids, ROWS);

    fill_b(a);
    fill_b(b);
    for (int i = 0; i < ROWS; i++)
        all[i] = a;
    float *base = logits_of(&fx, hidden, none), *one = logits_of(&fx, hidden, all),
          *two = logits_of(&fx, hidden, mixed);

    for (size_t i = 0; i < ROWS; i++) {
        const float *same = mixed[i] == a ? one : base;

        for (int t = 0; t < fx.config.vocab; t += 17)
            assert_true(
                fabs(expected(&a->head, hidden + i * H, (double)base[i * vocab + (size_t)t], t) -
                     (double)one[i * vocab + (size_t)t]) < 1e-4);
        if (mixed[i] != b)
            assert_memory_equal(two + i * vocab, same + i * vocab, vocab * sizeof(float));
        else
            assert_memory_not_equal(two + i * vocab, one + i * vocab, vocab * sizeof(float));
    }
    free(two);
    free(one);
    free(base);
    free(hidden);
    adapter_unref(a);
    adapter_unref(b);
    fixture_close(&fx);
}

static void lm_head_adds_its_update_to_the_rows_that_have_it(void **state)
{
    static const char *const tables[] = {"ref", "avx2", "avx512", "bf16"};

    (void)state;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (int i = 0; kernels_by_name(tables[t]) && i < N_MODELS; i++)
            check_head(models[i], tables[t]);
}

static void a_fresh_adapter_changes_nothing(void **state)
{
    struct fixture fx;
    const struct adapter *none[ROWS] = {0}, *all[ROWS];

    (void)state;
    fixture_open(&fx, "tiny-qwen3", "avx2", 2);
    struct adapter *a = make(&fx, 4, 11);
    float *hidden = run_prompt(&fx, ids, ROWS);

    for (int i = 0; i < ROWS; i++)
        all[i] = a;
    float *base = logits_of(&fx, hidden, none), *with = logits_of(&fx, hidden, all);

    assert_memory_equal(base, with, ROWS * (size_t)fx.config.vocab * sizeof(float));
    free(with);
    free(base);
    free(hidden);
    adapter_unref(a);
    fixture_close(&fx);
}

/* ---- to disk and back ---- */

static void put(const struct scratch *d, const char *name, const struct buf *b)
{
    struct err e = {0};

    unlinkat(d->fd, name, 0);
    must(fs_create_file(d->fd, name, b->data, b->len, 0600, &e), &e);
}

/* The file, read in pieces that end anywhere. */
static void read_file(struct adapter *a, const struct fixture *fx, struct buf *out)
{
    struct err e = {0};
    struct adapter_file *f = adapter_file_open(a, fx->model, &e);

    must(f ? 0 : -1, &e);
    size_t bytes = (size_t)adapter_file_bytes(f);
    char *to = buf_reserve(out, bytes);

    assert_non_null(to);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < 4099 ? bytes - at : 4099;
        assert_int_equal(adapter_file_read(f, to + at, at, n, &e), 0);
    }
    out->len += bytes;
    adapter_file_close(f);
}

static void write_adapter(const struct scratch *d, const struct fixture *fx, struct adapter *a)
{
    struct buf file = {0}, text = {0};
    struct err e = {0};
    json_t *config = adapter_config_json(a, &fx->config, "the/base", &e);

    must(config ? 0 : -1, &e);
    read_file(a, fx, &file);
    json_write_pretty(&text, config);
    put(d, "adapter_model.safetensors", &file);
    put(d, "adapter_config.json", &text);
    json_decref(config);
    buf_release(&text);
    buf_release(&file);
}

static struct adapter *read_adapter(const struct scratch *d, const struct fixture *fx)
{
    struct adapter_problem p = {0};
    struct err e = {0};
    struct adapter *a = adapter_read(d->fd, "back", 1, &fx->config, false, &p, &e);

    must(a ? 0 : -1, &e);
    return a;
}

static void a_written_adapter_reads_back_to_the_same_bits(void **state)
{
    const struct scratch *d = *state;
    for (int i = 0; i < N_MODELS; i++) {
        struct fixture fx;
        char path[128];

        snprintf(path, sizeof path, MODELS "%s", models[i]);
        fixture_load(&fx, path);
        struct adapter *a = make(&fx, 3, 5); /* 32 / 3 has no short form */

        fill_b(a);
        write_adapter(d, &fx, a);
        struct adapter *b = read_adapter(d, &fx);

        same_matrices(a, b, true);
        all_is_rounded(b);
        adapter_unref(a);
        adapter_unref(b);
        fixture_free(&fx);
    }
}

/* Slots with other ranks and scales than the first keep them. */
static void patterns_keep_what_differs(void **state)
{
    const struct scratch *d = *state;
    struct fixture fx;
    struct err e = {0};

    fixture_load(&fx, MODELS "tiny-llama");
    struct adapter *a = make(&fx, 4, 5);

    a->loras[PROJ_UP].a.n = a->loras[PROJ_UP].b.k = 2;
    a->loras[PROJECTIONS + PROJ_K].scale = 0.3f;
    struct adapter *narrow = adapter_like(a, &e);

    must(narrow ? 0 : -1, &e);
    fill_b(narrow);
    write_adapter(d, &fx, narrow);
    struct adapter *b = read_adapter(d, &fx);

    same_matrices(narrow, b, true);
    assert_int_equal(b->loras[PROJ_UP].a.n, 2);
    adapter_unref(a);
    adapter_unref(b);
    adapter_unref(narrow);
    fixture_free(&fx);
}

static void a_head_tied_to_the_embedding_by_its_settings_is_refused(void **state)
{
    const struct scratch *d = *state;
    static const char config[] = "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 32, "
                                 "\"target_modules\": [\"lm_head\"], "
                                 "\"ensure_weight_tying\": true}";
    struct adapter_problem p = {0};
    struct buf text = {0};
    struct err e = {0};
    struct fixture fx;

    fixture_load(&fx, MODELS "tiny-llama");
    struct lora_settings s = {.rank = 4, .alpha = 32, .unembed = true};
    struct adapter *a = adapter_new(&fx.config, &s, &e);

    must(a ? 0 : -1, &e);
    write_adapter(d, &fx, a);
    adapter_unref(read_adapter(d, &fx));
    buf_add_str(&text, config);
    put(d, "adapter_config.json", &text);
    assert_null(adapter_read(d->fd, "tied", 1, &fx.config, false, &p, &e));
    assert_int_equal(p.fault, ADAPTER_BAD_CONFIG);
    assert_string_equal(p.field, "ensure_weight_tying");
    adapter_problem_clear(&p);
    buf_release(&text);
    adapter_unref(a);
    fixture_free(&fx);
}

static void a_layer_number_has_one_spelling(void **state)
{
    struct fixture fx;
    const char *others[] = {"00", "+0", " 0", "0x0", ""};
    char module[128];

    (void)state;
    fixture_load(&fx, MODELS "tiny-llama");
    assert_int_equal(adapter_find_module(&fx.config, "model.layers.0.self_attn.q_proj"), PROJ_Q);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        snprintf(module, sizeof module, "model.layers.%s.self_attn.q_proj", others[i]);
        assert_int_equal(adapter_find_module(&fx.config, module), -1);
    }
    fixture_free(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_adapter),
        cmocka_unit_test(a_is_uniform_within_its_bound_and_b_is_zero),
        cmocka_unit_test(flags_choose_the_modules),
        cmocka_unit_test(lm_head_adds_its_update_to_the_rows_that_have_it),
        cmocka_unit_test(a_fresh_adapter_changes_nothing),
        cmocka_unit_test_setup_teardown(a_written_adapter_reads_back_to_the_same_bits, scratch_make,
                                        scratch_drop),
        cmocka_unit_test_setup_teardown(patterns_keep_what_differs, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(a_head_tied_to_the_embedding_by_its_settings_is_refused,
                                        scratch_make, scratch_drop),
        cmocka_unit_test(a_layer_number_has_one_spelling),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
