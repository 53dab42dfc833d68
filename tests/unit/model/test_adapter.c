/* Adapters beside the base: recorded logits, public cases, and rows that do not depend on the
 * others. */
#include "fixture.h"
#include "model/adapter.h"
#include "model/adapter_config.h"

#define CASES "tests/vectors/cases/"

static const char *const adapted_models[] = {"tiny-llama", "tiny-llama-untied-rope3", "tiny-qwen2",
                                             "tiny-qwen3", "tiny-lfm2"};
enum { N_ADAPTED = sizeof adapted_models / sizeof *adapted_models };

static const char *const tables[] = {"ref", "avx2", "avx512"};

static int open_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY);

    if (fd < 0)
        fail_msg("cannot open %s", path);
    return fd;
}

static struct adapter *load_adapter(const struct fixture *fx, const char *name, double scale)
{
    struct adapter_problem p = {0};
    struct err e = {0};
    char path[256];
    int fd;

    snprintf(path, sizeof path, GOLDEN "%s/lora", name);
    fd = open_dir(path);
    struct adapter *a = adapter_read(fd, "lora", scale, &fx->config, false, &p, &e);

    must(a ? 0 : -1, &e);
    close(fd);
    return a;
}

/* One sequence of the batch: fed in pieces, each row's final hidden state kept. */
struct part {
    const int32_t *ids;
    int n, at;
    const struct adapter *adapter;
    struct kv_seq *seq;
    float *hidden;
};

static void part_open(const struct fixture *fx, struct part *p, const int32_t *ids, int n,
                      const struct adapter *a)
{
    struct err e = {0};

    *p = (struct part){.ids = ids, .n = n, .adapter = a, .hidden = hidden_rows(fx, n)};
    p->seq = kv_seq_new(fx->kv, &e);
    must(p->seq ? 0 : -1, &e);
}

static void part_close(struct part *p)
{
    kv_seq_free(p->seq);
    free(p->hidden);
}

/* One step: up to `chunk` tokens of each part. False: all are through. */
static bool step_all(struct fixture *fx, struct part *parts, int n, int chunk)
{
    size_t H = (size_t)fx->config.hidden;
    struct forward_span spans[8];
    int select[FORWARD_ROWS_MAX], rows = 0, n_spans = 0;
    struct err e = {0};

    for (int i = 0; i < n; i++) {
        struct part *p = &parts[i];
        int len = p->n - p->at < chunk ? p->n - p->at : chunk;

        if (len == 0)
            continue;
        spans[n_spans++] = (struct forward_span){p->seq, p->ids + p->at, len, p->adapter};
        for (int r = 0; r < len; r++, rows++)
            select[rows] = rows;
    }
    if (n_spans == 0)
        return false;
    struct forward_batch b = {spans, n_spans, select, rows};
    float *out = hidden_rows(fx, rows), *from = out;

    must(forward_run(fx->forward, fx->model, &b, out, &e), &e);
    for (int i = 0; i < n; i++) {
        struct part *p = &parts[i];
        int len = p->n - p->at < chunk ? p->n - p->at : chunk;

        memcpy(p->hidden + (size_t)p->at * H, from, (size_t)len * H * sizeof(float));
        from += (size_t)len * H;
        p->at += len;
    }
    free(out);
    return true;
}

static void run_alone(struct fixture *fx, struct part *p, int chunk)
{
    while (step_all(fx, p, 1, chunk))
        ;
}

static void check_logits(struct fixture *fx, const char *name)
{
    struct golden g = {0};
    struct adapter *a = load_adapter(fx, name, 1);
    struct logits_row rows[64] = {{.target = -1}};
    char path[256];
    struct err e = {0};
    struct part p;
    size_t want_n;
    int n;

    golden_open(&g, name);
    int32_t *ids = golden_prompt(&g, 0, &n);

    golden_close(&g);
    g = (struct golden){0};
    snprintf(path, sizeof path, GOLDEN "%s/lora.safetensors", name);
    g.fd = open(path, O_RDONLY);
    must(st_index_read(&g.index, g.fd, &e), &e);
    float *want = golden_tensor(&g, "prompt0.logits", &want_n);
    float *full = malloc(want_n * sizeof *full);

    assert_int_equal(want_n, (size_t)n * (size_t)fx->config.vocab);
    part_open(fx, &p, ids, n, a);
    run_alone(fx, &p, FORWARD_ROWS_MAX);
    for (int i = 0; i < n; i++)
        rows[i] =
            (struct logits_row){.target = -1, .full = full + (size_t)i * (size_t)fx->config.vocab};
    logits_run(fx->logits, fx->model, p.hidden, n, rows);
    check_close(name, "prompt0.logits", full, want, want_n, 5e-4);
    part_close(&p);
    free(full);
    free(want);
    free(ids);
    golden_close(&g);
    adapter_unref(a);
}

static void logits_beside_an_adapter_are_the_recorded_ones(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (int i = 0; kernels_by_name(tables[t]) && i < N_ADAPTED; i++) {
            struct fixture fx;

            fixture_open(&fx, adapted_models[i], tables[t], 2);
            check_logits(&fx, adapted_models[i]);
            fixture_close(&fx);
        }
}

static void same_bits(const struct fixture *fx, const struct part *a, const struct part *b,
                      const char *what)
{
    if (memcmp(a->hidden, b->hidden, (size_t)a->n * (size_t)fx->config.hidden * sizeof(float)) != 0)
        fail_msg("%s: other bits", what);
}

/* Two adapters and none in one batch, cut in another way: every row as alone. */
static void check_mixed(struct fixture *fx, const char *name, int chunk)
{
    struct adapter *one = load_adapter(fx, name, 1), *two = load_adapter(fx, name, -0.5);
    const struct adapter *which[4] = {one, NULL, two, one};
    struct part alone[4], mixed[4];
    int32_t ids[150];

    for (int i = 0; i < 150; i++)
        ids[i] = (i * 37 + 11) % 250;
    for (int i = 0; i < 4; i++) {
        part_open(fx, &alone[i], ids + i, 40 + 30 * i, which[i]);
        run_alone(fx, &alone[i], FORWARD_ROWS_MAX);
        part_open(fx, &mixed[i], ids + i, 40 + 30 * i, which[i]);
    }
    while (step_all(fx, mixed, 4, chunk))
        ;
    for (int i = 0; i < 4; i++)
        same_bits(fx, &alone[i], &mixed[i], name);
    assert_memory_not_equal(alone[0].hidden, alone[3].hidden, 64);
    for (int i = 0; i < 4; i++) {
        part_close(&alone[i]);
        part_close(&mixed[i]);
    }
    adapter_unref(one);
    adapter_unref(two);
}

static void a_row_has_the_same_bits_beside_rows_of_other_adapters(void **state)
{
    const int chunks[] = {1, 4, 23, 120};

    (void)state;
    for (int i = 0; i < N_ADAPTED; i++)
        for (int c = 0; c < 4; c++) {
            struct fixture fx;

            fixture_open(&fx, adapted_models[i], "avx2", 1 + c % 2);
            check_mixed(&fx, adapted_models[i], chunks[c]);
            fixture_close(&fx);
        }
}

static void every_kernel_table_gives_the_same_bits(void **state)
{
    struct part parts[3];
    struct fixture fx[3];
    struct adapter *a[3];
    int32_t ids[70];
    int n = 0;

    (void)state;
    for (int i = 0; i < 70; i++)
        ids[i] = (i * 29 + 3) % 250;
    for (int t = 0; t < 3; t++) {
        if (!kernels_by_name(tables[t]))
            continue;
        fixture_open(&fx[n], "tiny-qwen3", tables[t], 2);
        a[n] = load_adapter(&fx[n], "tiny-qwen3", 1);
        part_open(&fx[n], &parts[n], ids, 70, a[n]);
        run_alone(&fx[n], &parts[n], 33);
        same_bits(&fx[n], &parts[0], &parts[n], tables[t]);
        n++;
    }
    for (int t = 0; t < n; t++) {
        part_close(&parts[t]);
        adapter_unref(a[t]);
        fixture_close(&fx[t]);
    }
}

static void a_scale_of_zero_changes_nothing(void **state)
{
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct part with, without;
    struct fixture fx;

    (void)state;
    fixture_open(&fx, "tiny-llama", "avx2", 2);
    struct adapter *a = load_adapter(&fx, "tiny-llama", 0);

    part_open(&fx, &with, ids, 9, a);
    part_open(&fx, &without, ids, 9, NULL);
    run_alone(&fx, &with, 512);
    run_alone(&fx, &without, 512);
    same_bits(&fx, &with, &without, "scale 0");
    part_close(&with);
    part_close(&without);
    adapter_unref(a);
    fixture_close(&fx);
}

/* ---- public cases: for the model of dirs/tied_no_head ---- */

static void check_scale(const struct adapter *a, double scale, double merged, const char *name)
{
    const struct lora *q = &a->loras[PROJ_Q];
    double delta = 0;

    if (fabs((double)q->scale - scale) > 1e-6)
        fail_msg("%s: scale %g, expected %g", name, (double)q->scale, scale);
    for (int r = 0; r < q->a.n; r++)
        delta += (double)((const float *)q->b.w)[r] *
                 (double)((const float *)q->a.w)[(size_t)r * (size_t)q->a.k];
    /* alpha_zero tells the base value; the other rows add the update to it. */
    if (fabs(0.138671875 + (double)q->scale * delta - merged) > 1e-6)
        fail_msg("%s: merged value %g, expected %g", name, 0.138671875 + (double)q->scale * delta,
                 merged);
}

static void check_case(const struct model_config *c, const char *dir, const char *outcome,
                       double scale, double merged)
{
    struct adapter_problem p = {0};
    struct err e = {0};
    char path[256];
    int fd;

    snprintf(path, sizeof path, CASES "%s", dir);
    fd = open_dir(path);
    struct adapter *a = adapter_read(fd, "case", 1, c, false, &p, &e);

    if ((a != NULL) != (strcmp(outcome, "apply") == 0))
        fail_msg("%s: expected %s; %s", dir, outcome, e.msg);
    if (a)
        check_scale(a, scale, merged, dir);
    else
        assert_true(p.fault != ADAPTER_OK && p.fault != ADAPTER_FAILED && e.msg[0]);
    adapter_problem_clear(&p);
    adapter_unref(a);
    close(fd);
}

static void public_cases_apply_or_are_refused(void **state)
{
    static struct model_config c;
    struct fixture fx;
    FILE *f = fopen(CASES "adapters.tsv", "r");
    char line[512];
    int n = 0;

    (void)state;
    assert_non_null(f);
    fixture_load(&fx, CASES "dirs/tied_no_head");
    c = fx.config;
    assert_non_null(fgets(line, sizeof line, f));
    while (fgets(line, sizeof line, f)) {
        char dir[64], outcome[16];
        double scale = 0, merged = 0;

        assert_true(sscanf(line, "%63[^\t]\t%15[^\t]\t%lf\t%lf", dir, outcome, &scale, &merged) >=
                    2);
        check_case(&c, dir, outcome, scale, merged);
        n++;
    }
    assert_int_equal(n, 12);
    fclose(f);
    fixture_free(&fx);
}

static void check_fault(const struct model_config *c, const char *name, enum adapter_fault fault,
                        const char *field)
{
    struct adapter_problem p = {0};
    struct err e = {0};
    char path[256];
    int fd;

    snprintf(path, sizeof path, CASES "adapters/%s", name);
    fd = open_dir(path);
    assert_null(adapter_read(fd, name, 1, c, true, &p, &e));
    assert_int_equal(p.fault, fault);
    assert_string_equal(p.field, field);
    assert_int_equal(json_array_size(p.tensors) > 0,
                     fault != ADAPTER_BAD_CONFIG && fault != ADAPTER_OK);
    adapter_problem_clear(&p);
    close(fd);
}

static void a_setting_with_an_empty_name_is_named_all_the_same(void **state)
{
    struct adapter_problem p = {0};
    struct err e = {0};
    json_t *config =
        json_pack("{s:s, s:i, s:i, s:b}", "peft_type", "LORA", "r", 4, "lora_alpha", 8, "", 1);

    (void)state;
    assert_int_equal(adapter_config_check(config, &p, &e), -1);
    assert_string_equal(p.field, "\"\"");
    assert_string_equal(e.msg, "adapter_config.json: \"\" is not supported");
    json_decref(config);
}

static void a_refusal_says_what_is_wrong(void **state)
{
    struct fixture fx;

    (void)state;
    fixture_load(&fx, CASES "dirs/tied_no_head");
    check_fault(&fx.config, "alpha_missing", ADAPTER_BAD_CONFIG, "lora_alpha");
    check_fault(&fx.config, "dora", ADAPTER_BAD_CONFIG, "use_dora");
    check_fault(&fx.config, "rank_mismatch", ADAPTER_BAD_SHAPE, "");
    check_fault(&fx.config, "b_missing", ADAPTER_BAD_PAIR, "");
    check_fault(&fx.config, "prefix_other", ADAPTER_BAD_MODULE, "");
    check_fault(&fx.config, "layer_absent", ADAPTER_BAD_MODULE, "");
    check_fault(&fx.config, "rslora", ADAPTER_OK, "");
    fixture_free(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_beside_an_adapter_are_the_recorded_ones),
        cmocka_unit_test(a_row_has_the_same_bits_beside_rows_of_other_adapters),
        cmocka_unit_test(every_kernel_table_gives_the_same_bits),
        cmocka_unit_test(a_scale_of_zero_changes_nothing),
        cmocka_unit_test(public_cases_apply_or_are_refused),
        cmocka_unit_test(a_setting_with_an_empty_name_is_named_all_the_same),
        cmocka_unit_test(a_refusal_says_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
