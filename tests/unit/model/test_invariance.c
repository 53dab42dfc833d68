/* A row's bits depend on its own sequence alone: not on kernels, threads, chunks, or what else is
 * in the batch. */
#include "fixture.h"

enum { LONG = 300 };

static int32_t *long_ids(const char *name)
{
    struct golden g = {0};
    int n;
    int32_t *ids;

    golden_open(&g, name);
    ids = json_ids(json_object_get(json_object_get(g.json, "long"), "ids"), &n);
    golden_close(&g);
    assert_int_equal(n, LONG);
    return ids;
}

static void check_bits(const char *model, const char *what, const float *got, const float *want,
                       size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s, %s: value %zu is %.9g, alone it is %.9g", model, what, i, (double)got[i],
                     (double)want[i]);
}

/* Whole prompt in one call, scalar kernels, one thread: what everything else must equal. */
static float *reference(const char *name, const int32_t *ids, int n)
{
    struct fixture fx;
    float *x;

    fixture_open(&fx, name, "ref", 1);
    x = run_prompt(&fx, ids, n);
    fixture_close(&fx);
    return x;
}

/* New memory holds zeros; a server's holds what earlier sequences left. NaN shows who reads it. */
static void poison(struct fixture *fx)
{
    struct err e = {0};
    struct kv_seq *s = kv_seq_new(fx->kv, &e);
    int n = (int)kv_cache_max_positions(fx->kv) / KV_BLOCK * KV_BLOCK;

    if (n > 16 * KV_BLOCK)
        n = 16 * KV_BLOCK;
    must(kv_seq_extend(s, n, &e), &e);
    for (int b = 0; b < n / KV_BLOCK; b++)
        for (int l = 0; l < fx->config.n_layers - fx->config.n_conv_layers; l++)
            for (int h = 0; h < fx->config.n_kv_heads; h++)
                for (int i = 0; i < KV_BLOCK * fx->config.head_dim; i++) {
                    kv_seq_k_page(s, b, l, h)[i] = NAN;
                    kv_seq_v_page(s, b, l, h)[i] = NAN;
                }
    kv_seq_free(s);
}

static void check_chunks(struct fixture *fx, const char *name, const int32_t *ids,
                         const float *want)
{
    static const int chunks[] = {LONG, 1, 7, 16, 17, 64, 65, 128};
    size_t H = (size_t)fx->config.hidden;

    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct err e = {0};
        struct kv_seq *s = kv_seq_new(fx->kv, &e);
        float *x = hidden_rows(fx, LONG);
        char what[64];

        feed(fx, s, ids, LONG, chunks[i], x);
        snprintf(what, sizeof what, "%s, chunks of %d", forward_kernels(fx->forward)->name,
                 chunks[i]);
        check_bits(name, what, x, want, LONG * H);
        kv_seq_free(s);
        free(x);
    }
}

static void every_table_thread_count_and_chunk_gives_the_same_bits(void **state)
{
    static const char *const tables[] = {"ref", "avx2", "avx512"};

    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        int32_t *ids = long_ids(tiny_models[i]);
        float *want = reference(tiny_models[i], ids, LONG);

        for (int t = 0; t < 3; t++) {
            struct fixture fx;

            if (!kernels_by_name(tables[t]))
                continue;
            fixture_open(&fx, tiny_models[i], tables[t], 1 + t % 2);
            poison(&fx);
            check_chunks(&fx, tiny_models[i], ids, want);
            fixture_close(&fx);
        }
        free(want);
        free(ids);
    }
}

/* bf16-1 has two implementations and the same promise. */
static void the_fast_numerics_keep_their_bits_too(void **state)
{
    int32_t *ids = long_ids("tiny-llama");
    struct fixture fx;
    float *want;

    (void)state;
    fixture_open(&fx, "tiny-llama", "bf16-ref", 1);
    want = run_prompt(&fx, ids, LONG);
    check_chunks(&fx, "tiny-llama", ids, want);
    fixture_close(&fx);
    if (kernels_by_name("bf16")) {
        fixture_open(&fx, "tiny-llama", "bf16", 2);
        check_chunks(&fx, "tiny-llama", ids, want);
        fixture_close(&fx);
    }
    free(want);
    free(ids);
}

/* Five sequences of one text, each at another place: three decode, two are in the middle of their
 * prompts. */
struct rider {
    struct kv_seq *seq;
    int at, n; /* tokens stored before the step, tokens in the step */
};

static void check_mixed_step(struct fixture *fx, const char *name, const int32_t *ids,
                             const float *want, struct rider *r, int n_riders)
{
    struct forward_span spans[8];
    int select[FORWARD_ROWS_MAX], rows = 0, row = 0;
    size_t H = (size_t)fx->config.hidden;
    float *skip = hidden_rows(fx, LONG), *out;
    struct err e = {0};

    for (int i = 0; i < n_riders; i++) {
        r[i].seq = kv_seq_new(fx->kv, &e);
        if (r[i].at > 0)
            feed(fx, r[i].seq, ids, r[i].at, 50, skip);
        spans[i] = (struct forward_span){r[i].seq, ids + r[i].at, r[i].n, NULL};
        for (int k = 0; k < r[i].n; k++)
            select[rows] = rows, rows++;
    }
    out = hidden_rows(fx, rows);
    must(forward_run(fx->forward, fx->model, &(struct forward_batch){spans, n_riders, select, rows},
                     out, &e),
         &e);
    for (int i = 0; i < n_riders; i++) {
        assert_int_equal(kv_seq_length(r[i].seq), r[i].at + r[i].n);
        check_bits(name, "mixed batch", out + (size_t)row * H, want + (size_t)r[i].at * H,
                   (size_t)r[i].n * H);
        row += r[i].n;
        kv_seq_free(r[i].seq);
    }
    free(out);
    free(skip);
}

static void a_row_is_the_same_in_any_company(void **state)
{
    struct rider wide[] = {{.at = 10, .n = 1},   {.at = 0, .n = 40}, {.at = 63, .n = 1},
                           {.at = 100, .n = 70}, {.at = 64, .n = 1}, {.at = 299, .n = 1}};
    struct rider narrow[] = {
        {.at = 10, .n = 1}, {.at = 60, .n = 9}, {.at = 128, .n = 1}, {.at = 0, .n = 3}};

    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        int32_t *ids = long_ids(tiny_models[i]);
        float *want = reference(tiny_models[i], ids, LONG);
        struct fixture fx;

        fixture_open(&fx, tiny_models[i], kernels_pick(false)->name, 2);
        poison(&fx);
        check_mixed_step(&fx, tiny_models[i], ids, want, wide, 6);
        check_mixed_step(&fx, tiny_models[i], ids, want, narrow, 4);
        fixture_close(&fx);
        free(want);
        free(ids);
    }
}

/* Rows that nobody wants are left out of the last layer; the others must not notice. */
static void check_selection(struct fixture *fx, const char *name, const int32_t *ids,
                            const float *want, const int *select, int n_select, int n)
{
    struct err e = {0};
    struct kv_seq *s = kv_seq_new(fx->kv, &e);
    struct forward_span span = {s, ids, n, NULL};
    size_t H = (size_t)fx->config.hidden;
    float *out = hidden_rows(fx, n_select + 1), *next = hidden_rows(fx, 1);

    must(forward_run(fx->forward, fx->model, &(struct forward_batch){&span, 1, select, n_select},
                     out, &e),
         &e);
    for (int i = 0; i < n_select; i++)
        check_bits(name, "selected row", out + (size_t)i * H, want + (size_t)select[i] * H, H);
    feed(fx, s, ids + n, 1, 1, next); /* the caches hold everything */
    check_bits(name, "row after a selection", next, want + (size_t)n * H, H);
    kv_seq_free(s);
    free(next);
    free(out);
}

static void selected_rows_do_not_depend_on_the_selection(void **state)
{
    static const int last_of_100[] = {99}, some[] = {0, 1, 2, 40, 41, 63, 64, 99}, few[] = {3, 7};

    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        int32_t *ids = long_ids(tiny_models[i]);
        float *want = reference(tiny_models[i], ids, 101);
        struct fixture fx;

        fixture_open(&fx, tiny_models[i], kernels_pick(false)->name, 2);
        check_selection(&fx, tiny_models[i], ids, want, last_of_100, 1, 100);
        check_selection(&fx, tiny_models[i], ids, want, some, 8, 100);
        check_selection(&fx, tiny_models[i], ids, want, NULL, 0, 100);
        check_selection(&fx, tiny_models[i], ids, want, few, 2, 8);
        check_selection(&fx, tiny_models[i], ids, want, NULL, 0, 8);
        fixture_close(&fx);
        free(want);
        free(ids);
    }
}

static void forked_sequences_go_on_like_the_original(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY; i++) {
        int32_t *ids = long_ids(tiny_models[i]);
        float *want = reference(tiny_models[i], ids, 150);
        struct err e = {0};
        struct fixture fx;
        struct kv_seq *a, *b;
        float *x;

        fixture_open(&fx, tiny_models[i], kernels_pick(false)->name, 2);
        x = hidden_rows(&fx, 150);
        a = kv_seq_new(fx.kv, &e);
        feed(&fx, a, ids, 100, 100, x);
        b = kv_seq_fork(a, 100, &e);
        must(b ? 0 : -1, &e);
        feed(&fx, a, ids + 50, 40, 40, x); /* another continuation must not show */
        feed(&fx, b, ids + 100, 50, 9, x);
        check_bits(tiny_models[i], "fork", x, want + (size_t)(100 * fx.config.hidden),
                   (size_t)(50 * fx.config.hidden));
        kv_seq_free(a);
        kv_seq_free(b);
        free(x);
        fixture_close(&fx);
        free(want);
        free(ids);
    }
}

static void logprobs_do_not_depend_on_the_tile_or_on_what_else_is_asked(void **state)
{
    int32_t *ids = long_ids("tiny-qwen2");
    struct fixture fx;
    float *x, *full;
    struct logits_row *many = calloc(LONG, sizeof *many);

    (void)state;
    fixture_open(&fx, "tiny-qwen2", kernels_pick(false)->name, 2);
    x = run_prompt(&fx, ids, LONG);
    full = malloc((size_t)fx.config.vocab * sizeof *full);
    for (int i = 0; i < LONG; i++)
        many[i] = (struct logits_row){.target = ids[i], .n_top = 5};
    logits_run(fx.logits, fx.model, x, LONG, many);
    for (int i = 0; i < LONG; i += 13) {
        struct logits_row one = {.target = ids[i], .n_top = 20, .full = full};

        logits_run(fx.logits, fx.model, x + i * fx.config.hidden, 1, &one);
        assert_true(one.max == many[i].max && one.log_sum == many[i].log_sum);
        assert_true(one.target_logit == many[i].target_logit);
        assert_true(full[ids[i]] == one.target_logit && full[one.argmax] == one.max);
        assert_int_equal(one.argmax, one.top[0].token);
        for (int k = 0; k < 5; k++)
            assert_int_equal(one.top[k].token, many[i].top[k].token);
        for (int k = 1; k < 20; k++)
            assert_true(one.top[k].logit <= one.top[k - 1].logit);
    }
    free(many);
    free(full);
    free(x);
    fixture_close(&fx);
    free(ids);
}

static void probabilities_of_a_row_add_up_to_one(void **state)
{
    int32_t *ids = long_ids("tiny-llama");
    struct fixture fx;
    float *x, *full;
    struct logits_row row = {.target = -1};
    double sum = 0;

    (void)state;
    fixture_open(&fx, "tiny-llama", kernels_pick(false)->name, 1);
    x = run_prompt(&fx, ids, 20);
    full = malloc((size_t)fx.config.vocab * sizeof *full);
    row.full = full;
    logits_run(fx.logits, fx.model, x + 19 * fx.config.hidden, 1, &row);
    for (int i = 0; i < fx.config.vocab; i++)
        sum += exp((double)logits_logprob(&row, full[i]));
    assert_true(fabs(sum - 1) < 1e-5);
    free(full);
    free(x);
    fixture_close(&fx);
    free(ids);
}

static void broken_logits_are_reported_and_not_used(void **state)
{
    static const float bad[] = {NAN, INFINITY, -NAN};
    int32_t *ids = long_ids("tiny-llama");
    struct fixture fx;
    float *x;

    (void)state;
    fixture_open(&fx, "tiny-llama", kernels_pick(false)->name, 1);
    x = run_prompt(&fx, ids, 2);
    for (int i = 0; i < 3; i++) {
        struct logits_row rows[2] = {{.target = 1, .n_top = 3}, {.target = 1, .n_top = 3}};

        x[7] = bad[i];
        logits_run(fx.logits, fx.model, x, 2, rows);
        assert_false(rows[0].finite);
        assert_int_equal(rows[0].n_top, 0);
        assert_true(rows[1].finite);
    }
    free(x);
    fixture_close(&fx);
    free(ids);
}

static void refuse(struct fixture *fx, struct forward_batch b, int code, const char *word)
{
    struct err e = {0};
    float out[1024];

    assert_int_equal(forward_run(fx->forward, fx->model, &b, out, &e), -1);
    assert_int_equal(e.code, code);
    if (!strstr(e.msg, word))
        fail_msg("\"%s\" does not say %s", e.msg, word);
}

static void a_refused_step_changes_nothing(void **state)
{
    static const int32_t good[FORWARD_ROWS_MAX + 1], low[] = {1, -1}, high[] = {1, 512};
    static const int falling[] = {1, 0}, far[] = {2};
    struct fixture fx;
    struct err e = {0};
    struct kv_seq *s, *t;

    (void)state;
    fixture_load(&fx, MODELS "tiny-llama");
    fixture_start(&fx, kernels_pick(false), 1, 3 * (3 * 2 * 2 * 16 * KV_BLOCK * 4));
    s = kv_seq_new(fx.kv, &e);
    t = kv_seq_new(fx.kv, &e);
    refuse(&fx, (struct forward_batch){&(struct forward_span){s, low, 2, NULL}, 1, NULL, 0}, ERR_ARG,
           "token -1");
    refuse(&fx, (struct forward_batch){&(struct forward_span){s, high, 2, NULL}, 1, NULL, 0}, ERR_ARG,
           "token 512");
    refuse(&fx, (struct forward_batch){&(struct forward_span){s, good, 0, NULL}, 1, NULL, 0}, ERR_ARG,
           "0 tokens");
    refuse(&fx, (struct forward_batch){&(struct forward_span){s, good, 513, NULL}, 1, NULL, 0}, ERR_ARG,
           "513 tokens");
    refuse(&fx, (struct forward_batch){&(struct forward_span){s, good, 2, NULL}, 1, falling, 2}, ERR_ARG,
           "do not rise");
    refuse(&fx, (struct forward_batch){&(struct forward_span){s, good, 2, NULL}, 1, far, 1}, ERR_ARG,
           "do not rise");
    struct forward_span both[] = {{t, good, 100, NULL}, {s, good, 100, NULL}};

    refuse(&fx, (struct forward_batch){both, 2, NULL, 0}, ERR_SPACE, "no cache block");
    assert_int_equal(kv_cache_blocks_used(fx.kv), 0);
    assert_int_equal(kv_seq_length(s) + kv_seq_length(t), 0);
    kv_seq_free(s);
    kv_seq_free(t);
    fixture_close(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_thread_count_and_chunk_gives_the_same_bits),
        cmocka_unit_test(the_fast_numerics_keep_their_bits_too),
        cmocka_unit_test(a_row_is_the_same_in_any_company),
        cmocka_unit_test(selected_rows_do_not_depend_on_the_selection),
        cmocka_unit_test(forked_sequences_go_on_like_the_original),
        cmocka_unit_test(logprobs_do_not_depend_on_the_tile_or_on_what_else_is_asked),
        cmocka_unit_test(probabilities_of_a_row_add_up_to_one),
        cmocka_unit_test(broken_logits_are_reported_and_not_used),
        cmocka_unit_test(a_refused_step_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
