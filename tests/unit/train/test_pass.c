/* The rules of a pass: the forward pass's values, calls one after the other, refusals, cancels. */
#include "pass_fixture.h"

struct run {
    struct fixture fx;
    struct golden recorded;
    struct batch b;
    struct places pl;
    struct pass *pass;
    struct pass_job job;
};

static void run_open(struct run *r, const char *model, size_t budget)
{
    struct err e = {0};

    *r = (struct run){0};
    fixture_open(&r->fx, model, kernels_pick(false)->name, 2);
    recorded_open(&r->recorded, model, "train_grads.safetensors");
    batch_make(&r->b, &r->fx.config);
    places_open(&r->pl, &r->recorded.index, &r->fx.config);
    r->pass = pass_new(&r->fx.config, kernels_pick(false), r->fx.pool, budget, &e);
    must(r->pass ? 0 : -1, &e);
    r->job = (struct pass_job){.model = r->fx.model,
                               .sequences = r->b.sequences,
                               .n_sequences = r->b.n,
                               .temperature = 1,
                               .backward = true};
}

static void run_close(struct run *r)
{
    pass_free(r->pass);
    places_close(&r->pl);
    batch_free(&r->b);
    st_index_release(&r->recorded.index);
    close(r->recorded.fd);
    fixture_close(&r->fx);
}

static void begin(struct run *r)
{
    struct err e = {0};

    must(pass_begin(r->pass, &r->job, &e), &e);
}

/* ---- the sampler's log-probability ---- */

static void check_sequence(struct run *r, const struct pass_sequence *s, float temperature,
                           const struct adapter *a, const float *logprobs)
{
    struct err e = {0};
    struct kv_seq *seq = kv_seq_new(r->fx.kv, &e);
    float *hidden = hidden_rows(&r->fx, s->n);

    for (int i = 0; i < s->n; i++) { /* token by token, as when sampling */
        struct forward_span span = {seq, s->tokens + i, 1, a};
        struct forward_batch batch = {&span, 1, (const int[]){0}, 1};
        struct logits_row row = {.target = s->targets[i], .adapter = a, .temperature = temperature};

        must(forward_run(r->fx.forward, r->fx.model, &batch, hidden, &e), &e);
        if (s->targets[i] < 0) {
            assert_true(logprobs[i] == 0);
            continue;
        }
        logits_run(r->fx.logits, r->fx.model, hidden, 1, &row);
        assert_true(logits_logprob(&row, row.target_logit) == logprobs[i]);
    }
    free(hidden);
    kv_seq_free(seq);
}

static void check_logprobs(const char *model, float temperature, bool lora)
{
    struct run r;
    const float *logprobs;

    run_open(&r, model, BUDGET);
    struct adapter *a = lora ? adapter_open(&r.fx, model) : NULL;

    for (int backward = 0; backward < 2; backward++) {
        r.job.adapter = a;
        r.job.temperature = temperature;
        r.job.backward = backward;
        begin(&r);
        run_to_end(r.pass, 0);
        logprobs = pass_logprobs(r.pass);
        for (int i = 0; i < r.b.n; logprobs += r.b.sequences[i++].n)
            check_sequence(&r, &r.b.sequences[i], temperature, a, logprobs);
        pass_end(r.pass);
    }
    adapter_unref(a);
    run_close(&r);
}

static void log_probabilities_have_the_bits_of_decoding(void **state)
{
    (void)state;
    for (int i = 0; i < N_TRAINED; i++) {
        check_logprobs(trained_models[i], 1, false);
        check_logprobs(trained_models[i], 1, true);
    }
    check_logprobs("tiny-llama", 0.7f, false);
}

/* ---- calls ---- */

/* A call over all sequences adds what calls over a part each add, in their order. */
static void gradients_of_successive_passes_add_up_in_call_order(void **state)
{
    struct run r;
    float *whole;
    const float *coef;

    (void)state;
    run_open(&r, "tiny-llama-untied-rope3", BUDGET);
    begin(&r);
    run_to_end(r.pass, 0);
    pass_back(r.pass, r.b.coef, NULL, &r.pl.g);
    run_to_end(r.pass, 0);
    pass_end(r.pass);
    whole = malloc(r.pl.n * sizeof *whole);
    memcpy(whole, r.pl.memory, r.pl.n * sizeof *whole);
    memset(r.pl.memory, 0, r.pl.n * sizeof *whole);
    coef = r.b.coef;
    for (int i = 0; i < r.b.n; coef += r.b.sequences[i++].n) {
        r.job.sequences = &r.b.sequences[i];
        r.job.n_sequences = 1;
        begin(&r);
        run_to_end(r.pass, 0);
        pass_back(r.pass, coef, NULL, &r.pl.g);
        run_to_end(r.pass, 0);
        pass_end(r.pass);
    }
    assert_memory_equal(whole, r.pl.memory, r.pl.n * sizeof *whole);
    free(whole);
    run_close(&r);
}

static void a_cancel_before_the_backward_half_leaves_gradients_alone(void **state)
{
    struct run r;

    (void)state;
    run_open(&r, "tiny-llama", BUDGET);
    begin(&r);
    assert_int_equal(pass_run(r.pass, 1), PASS_MORE);
    pass_end(r.pass);
    begin(&r);
    run_to_end(r.pass, 0);
    pass_back(r.pass, r.b.coef, NULL, &r.pl.g);
    pass_end(r.pass);
    for (size_t i = 0; i < r.pl.n; i++)
        assert_true(r.pl.memory[i] == 0);
    run_close(&r);
}

/* A place that is not asked for gets nothing, and the others get what they get anyway. */
static void places_that_are_missing_change_nothing_else(void **state)
{
    struct run r;
    float *want;
    size_t n;

    (void)state;
    run_open(&r, "tiny-qwen3", BUDGET);
    run_pass(&r.fx, r.fx.model, NULL, &r.b, plainly, NULL, &r.pl.g);
    n = (size_t)r.fx.config.hidden * (size_t)r.fx.config.ff;
    want = malloc(n * sizeof *want);
    memcpy(want, r.pl.g.layers[0].down, n * sizeof *want);
    memset(r.pl.memory, 0, r.pl.n * sizeof *r.pl.memory);

    struct layer_grads only[8] = {{.down = r.pl.g.layers[0].down}};
    struct grads g = {.layers = only, .n_layers = r.fx.config.n_layers};

    run_pass(&r.fx, r.fx.model, NULL, &r.b, plainly, NULL, &g);
    assert_memory_equal(want, r.pl.g.layers[0].down, n * sizeof *want);
    memset(r.pl.g.layers[0].down, 0, n * sizeof *want);
    for (size_t i = 0; i < r.pl.n; i++)
        assert_true(r.pl.memory[i] == 0);
    free(want);
    run_close(&r);
}

static void rows_without_a_coefficient_give_no_gradient(void **state)
{
    struct run r;

    (void)state;
    run_open(&r, "tiny-lfm2", BUDGET);
    memset(r.b.coef, 0, (size_t)r.b.rows * sizeof *r.b.coef);
    run_pass(&r.fx, r.fx.model, NULL, &r.b, plainly, NULL, &r.pl.g);
    for (size_t i = 0; i < r.pl.n; i++)
        assert_true(r.pl.memory[i] == 0);
    run_close(&r);
}

/* ---- refusals ---- */

static void check_refused(struct run *r, enum err_code code, const char *word)
{
    struct err e = {0};

    assert_int_equal(pass_begin(r->pass, &r->job, &e), -1);
    assert_int_equal(e.code, code);
    if (!strstr(e.msg, word))
        fail_msg("\"%s\" does not say %s", e.msg, word);
}

static void what_is_out_of_range_is_refused(void **state)
{
    struct run r;
    int32_t bad[2] = {0, 0}, good[2] = {0, -100};
    struct pass_sequence s = {good, good, 2};

    (void)state;
    run_open(&r, "tiny-llama", BUDGET);
    r.job.sequences = &s;
    r.job.n_sequences = 0;
    check_refused(&r, ERR_ARG, "without sequences");
    r.job.n_sequences = 1;
    check_refused(&r, ERR_ARG, "token -100");
    s.tokens = bad;
    bad[1] = r.fx.config.vocab;
    check_refused(&r, ERR_ARG, "token 512");
    s.tokens = (const int32_t[]){0, 0};
    s.targets = bad;
    check_refused(&r, ERR_ARG, "target 512");
    s.targets = good;
    r.job.temperature = 0;
    check_refused(&r, ERR_ARG, "temperature");
    r.job.temperature = NAN;
    check_refused(&r, ERR_ARG, "temperature");
    r.job.temperature = 1;
    s.n = 0;
    check_refused(&r, ERR_ARG, "0 tokens");
    s.n = 2;
    pass_set_budget(r.pass, 10000);
    check_refused(&r, ERR_SPACE, "10000");
    pass_set_budget(r.pass, BUDGET);
    begin(&r);
    run_to_end(r.pass, 0);
    pass_end(r.pass);
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probabilities_have_the_bits_of_decoding),
        cmocka_unit_test(gradients_of_successive_passes_add_up_in_call_order),
        cmocka_unit_test(a_cancel_before_the_backward_half_leaves_gradients_alone),
        cmocka_unit_test(places_that_are_missing_change_nothing_else),
        cmocka_unit_test(rows_without_a_coefficient_give_no_gradient),
        cmocka_unit_test(what_is_out_of_range_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
