/* A real model, SmolLM2-135M-Instruct with its weights rounded to BF16, against recorded values of
 * the reference. The weights are not in the repository: CAIRN_SMOLLM2 names the directory that
 * `cairn import` wrote (default: the quickstart's); without it the tests are skipped. */
#include "fixture.h"

struct real {
    struct fixture fx;
    json_t *values;
};

static void find_real(char dir[512])
{
    const char *said = getenv("CAIRN_SMOLLM2"), *home = getenv("HOME");

    if (said)
        snprintf(dir, 512, "%s", said);
    else
        snprintf(dir, 512, "%s/.local/share/cairn-quickstart/SmolLM2-135M-Instruct",
                 home ? home : "");
}

static int open_real(void **state)
{
    struct err e = {0};
    struct real *r = calloc(1, sizeof *r);
    char dir[512], path[540];

    assert_non_null(r);
    *state = r;
    find_real(dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (access(path, R_OK) != 0)
        return 0; /* r->values stays NULL: every test skips */
    r->values = json_parse_file(AT_FDCWD, GOLDEN "smollm2-135m-instruct/values.json", 1 << 20, &e);
    must(r->values ? 0 : -1, &e);
    fixture_load(&r->fx, dir);
    fixture_start(&r->fx, kernels_pick(false), 0, 256 << 20);
    return 0;
}

static int close_real(void **state)
{
    struct real *r = *state;

    if (r->values)
        fixture_close(&r->fx);
    json_decref(r->values);
    free(r);
    return 0;
}

static struct real *real_or_skip(void **state)
{
    struct real *r = *state;

    if (!r->values)
        skip();
    return r;
}

static double number_at(const json_t *list, int i)
{
    return json_number_value(json_array_get(list, (size_t)i));
}

static void check_text(struct fixture *fx, const json_t *text)
{
    const json_t *logprobs = json_object_get(text, "logprobs");
    const json_t *top = json_object_get(text, "last_top20");
    int n;
    int32_t *ids = json_ids(json_object_get(text, "ids"), &n);
    float *x = run_prompt(fx, ids, n);
    struct logits_row *rows = calloc(FORWARD_ROWS_MAX, sizeof *rows);
    double sum = 0, want = json_number_value(json_object_get(text, "perplexity"));

    assert_in_range(n, 2, FORWARD_ROWS_MAX);
    for (int i = 0; i < n; i++)
        rows[i] = (struct logits_row){.target = i + 1 < n ? ids[i + 1] : -1, .n_top = 20};
    logits_run(fx->logits, fx->model, x, n, rows);
    for (int i = 0; i + 1 < n; i++) {
        double got = (double)logits_logprob(&rows[i], rows[i].target_logit);

        if (fabs(got - number_at(logprobs, i)) > 2e-3)
            fail_msg("log-probability %d: %g, recorded %g", i, got, number_at(logprobs, i));
        sum -= got;
    }
    assert_true(fabs(exp(sum / (n - 1)) / want - 1) < 1e-4);
    for (int i = 0; i < 20; i++) {
        const struct logits_top *t = &rows[n - 1].top[i];

        assert_int_equal(
            t->token, json_integer_value(json_array_get(json_object_get(top, "ids"), (size_t)i)));
        assert_true(fabs((double)t->logit - number_at(json_object_get(top, "logits"), i)) < 2e-3);
    }
    free(rows);
    free(x);
    free(ids);
}

static void texts_have_the_recorded_logprobs_and_perplexity(void **state)
{
    struct real *r = real_or_skip(state);
    const json_t *texts = json_object_get(r->values, "texts");

    assert_int_equal(json_array_size(texts), 5);
    for (size_t i = 0; i < 5; i++)
        check_text(&r->fx, json_array_get(texts, i));
}

static void check_chat(struct fixture *fx, const json_t *chat)
{
    const json_t *greedy = json_object_get(chat, "greedy");
    const json_t *best = json_object_get(chat, "best_logits");
    int n;
    int32_t *ids = json_ids(json_object_get(chat, "ids"), &n);
    struct err e = {0};
    struct kv_seq *seq = kv_seq_new(fx->kv, &e);
    size_t H = (size_t)fx->config.hidden;
    float *x = hidden_rows(fx, n);

    feed(fx, seq, ids, n, FORWARD_ROWS_MAX, x);
    memmove(x, x + (size_t)(n - 1) * H, H * sizeof *x);
    for (int i = 0; i < (int)json_array_size(greedy); i++) {
        struct logits_row row = {.target = -1};
        int32_t want = (int32_t)json_integer_value(json_array_get(greedy, (size_t)i));

        logits_run(fx->logits, fx->model, x, 1, &row);
        if (row.argmax != want) /* the smallest margin is 2.9e-3: no tie excuses this */
            fail_msg("greedy token %d: %d, recorded %d", i, row.argmax, want);
        assert_true(fabs((double)row.max - number_at(best, i)) < 2e-3);
        feed(fx, seq, &row.argmax, 1, 1, x);
    }
    kv_seq_free(seq);
    free(x);
    free(ids);
}

static void chats_have_the_recorded_greedy_answers(void **state)
{
    struct real *r = real_or_skip(state);
    const json_t *chats = json_object_get(r->values, "chats");

    assert_int_equal(json_array_size(chats), 5);
    for (size_t i = 0; i < 5; i++)
        check_chat(&r->fx, json_array_get(chats, i));
}

/* 32 answers at once: the steps are wide, the tokens the same. */
static void thirty_two_answers_at_once_decode_the_same_tokens(void **state)
{
    enum { N = 32, STEPS = 8 };
    struct real *r = real_or_skip(state);
    struct fixture *fx = &r->fx;
    const json_t *chats = json_object_get(r->values, "chats");
    struct forward_span spans[N];
    struct logits_row rows[N];
    int32_t next[N];
    int select[N];
    float *x = hidden_rows(fx, 512);
    struct err e = {0};

    for (int i = 0; i < N; i++) {
        int n;
        int32_t *ids = json_ids(json_object_get(json_array_get(chats, (size_t)i % 5), "ids"), &n);

        spans[i] = (struct forward_span){kv_seq_new(fx->kv, &e), &next[i], 1, NULL};
        feed(fx, spans[i].seq, ids, n - 1, 512, x);
        next[i] = ids[n - 1];
        select[i] = i;
        free(ids);
    }
    for (int s = 0; s < STEPS; s++) {
        must(forward_run(fx->forward, fx->model, &(struct forward_batch){spans, N, select, N}, x,
                         &e),
             &e);
        for (int i = 0; i < N; i++)
            rows[i] = (struct logits_row){.target = -1};
        logits_run(fx->logits, fx->model, x, N, rows);
        for (int i = 0; i < N; i++) {
            const json_t *greedy = json_object_get(json_array_get(chats, (size_t)i % 5), "greedy");

            assert_int_equal(rows[i].argmax, json_integer_value(json_array_get(greedy, (size_t)s)));
            next[i] = rows[i].argmax;
        }
    }
    for (int i = 0; i < N; i++)
        kv_seq_free(spans[i].seq);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_have_the_recorded_logprobs_and_perplexity),
        cmocka_unit_test(chats_have_the_recorded_greedy_answers),
        cmocka_unit_test(thirty_two_answers_at_once_decode_the_same_tokens),
    };

    return cmocka_run_group_tests(tests, open_real, close_real);
}
