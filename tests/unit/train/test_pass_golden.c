/* Gradients of the reference implementation, for every family and every exact kernel table. */
#include "pass_fixture.h"

static const char *const tables[] = {"ref", "avx2", "avx512"};

/* Relative to the largest entry of the tensor: ten times and more what float32 differs from float64
 * in the reference itself. */
static const double grad_limit = 2e-4;

/* Relative length of the difference, of a whole tensor: BF16 has 8 bits, and these random models
 * spread errors of one row over the whole vocabulary (seen: 0.07). */
static const double fast_limit = 0.1;

static void check_near(const char *model, const char *name, const float *got, const float *want,
                       size_t n)
{
    double square = 0, apart = 0;

    for (size_t i = 0; i < n; i++) {
        square += (double)want[i] * (double)want[i];
        apart += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
    }
    if (!(sqrt(apart / square) < fast_limit))
        fail_msg("%s %s: %g of its length apart", model, name, sqrt(apart / square));
}

static void check_gradients(const char *model, const struct golden *g, struct places *pl, bool fast)
{
    for (size_t i = 0; i < g->index.n; i++) {
        const char *name = g->index.tensors[i].name;
        const float *got = *place_of(&pl->g, name + strlen("grad."));
        size_t n;
        float *want = golden_tensor(g, name, &n);
        double largest = 0;

        for (size_t j = 0; j < n && !fast; j++)
            largest = fmax(largest, fabs((double)want[j]));
        if (fast)
            check_near(model, name, got, want, n);
        else
            check_close(model, name, got, want, n, grad_limit * largest);
        free(want);
    }
}

static double loss_of(const struct batch *b, const float *logprobs)
{
    double sum = 0;

    for (int i = 0; i < b->rows; i++)
        sum += (double)b->coef[i] * (double)logprobs[i];
    return sum;
}

static void check_model(const char *model, const char *table, bool lora)
{
    struct fixture fx;
    struct golden golden = {0}, recorded = {0};
    struct batch b = {0};
    struct places pl;
    struct adapter *a;
    const json_t *values;
    bool fast = strcmp(kernels_by_name(table)->numerics, "bf16-1") == 0;
    double loss_limit = fast ? 5 : 5e-3;
    float *logprobs;

    fixture_open(&fx, model, table, 2);
    golden_open(&golden, model);
    recorded_open(&recorded, model, lora ? "lora_grads.safetensors" : "train_grads.safetensors");
    batch_read(&b, &golden);
    places_open(&pl, &recorded.index, &fx.config);
    logprobs = calloc((size_t)b.rows, sizeof *logprobs);
    a = lora ? adapter_open(&fx, model) : NULL;
    run_pass(&fx, fx.model, a, &b, plainly, logprobs, &pl.g);
    values = json_object_get(golden.json, lora ? "lora" : "train");
    assert_true(fabs(loss_of(&b, logprobs) - json_number_value(json_object_get(values, "ce_sum"))) <
                loss_limit);
    check_gradients(model, &recorded, &pl, fast);
    free(logprobs);
    adapter_unref(a);
    places_close(&pl);
    batch_free(&b);
    golden_close(&recorded);
    golden_close(&golden);
    fixture_close(&fx);
}

static void check_all(bool lora)
{
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (int i = 0; kernels_by_name(tables[t]) && i < N_TRAINED; i++)
            check_model(trained_models[i], tables[t], lora);
}

static void full_gradients_are_those_recorded(void **state)
{
    (void)state;
    check_all(false);
}

static void adapter_gradients_are_those_recorded(void **state)
{
    (void)state;
    check_all(true);
}

static void fast_gradients_are_near_those_recorded(void **state)
{
    const char *table = kernels_by_name("bf16") ? "bf16" : "bf16-ref";

    (void)state;
    for (int i = 0; i < N_TRAINED; i++) {
        check_model(trained_models[i], table, false);
        check_model(trained_models[i], table, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_gradients_are_those_recorded),
        cmocka_unit_test(adapter_gradients_are_those_recorded),
        cmocka_unit_test(fast_gradients_are_near_those_recorded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
