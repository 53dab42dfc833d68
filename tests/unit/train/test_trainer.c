/* A run's state: exact resume, slices, cancelled and failed operations, accumulation. */
#include "train/trainer_fixture.h"

#include "base/buf.h"
#include "tensor/dtype.h"

static struct adam brisk(void)
{
    struct adam a = plain_adam;

    a.lr = 1e-2;
    a.clip = 1;
    return a;
}

static const struct lora_settings lora = {
    .rank = 4, .alpha = 32, .attn = true, .mlp = true, .unembed = true, .seed = 9};

/* A batch for the model of a rig, short enough for many passes. */
static void make_data(struct data *d, const struct rig *r)
{
    static int32_t tokens[64], targets[64];
    static const int lengths[] = {2, 7, 31};
    int at = 0;

    *d = (struct data){.n = 3};
    for (int i = 0; i < 64; i++) {
        tokens[i] = (i * 37 + 5) % (r->fx.config.vocab - 1);
        targets[i] = i % 11 == 3 ? -100 : (i * 37 + 42) % (r->fx.config.vocab - 1);
        d->weights[i] = 0.25f + 0.125f * (float)(i % 5);
    }
    for (int i = 0; i < 3; at += lengths[i++])
        d->datum[i] = (struct train_datum){
            .tokens = tokens + at,
            .loss = {.n = lengths[i], .targets = targets + at, .weights = d->weights + at}};
}

static void train(struct rig *r, int steps)
{
    struct adam a = brisk();
    struct data d;

    make_data(&d, r);
    for (int i = 0; i < steps; i++) {
        take_pass(r, &d, true);
        take_step(r, &a);
    }
}

/* ---- what a run is at one moment ---- */

struct moment {
    struct bytes optimizer, adapter;
    char *image; /* NULL for LoRA */
    size_t image_bytes;
    int64_t step;
};

static struct bytes adapter_file(struct rig *r)
{
    struct adapter *a = trainer_adapter(r->t);
    struct bytes b = {0};
    struct err e = {0};

    if (!a)
        return b;
    struct adapter_file *f = adapter_file_open(a, r->fx.model, &e);

    must(f ? 0 : -1, &e);
    b.n = (size_t)adapter_file_bytes(f);
    b.data = malloc(b.n);
    assert_non_null(b.data);
    must(adapter_file_read(f, b.data, 0, b.n, &e), &e);
    adapter_file_close(f);
    adapter_unref(a);
    return b;
}

static struct moment look(struct rig *r)
{
    struct moment m = {.optimizer = optimizer_file(r->t),
                       .adapter = adapter_file(r),
                       .image = malloc(r->fx.weights->bytes),
                       .image_bytes = r->fx.weights->bytes,
                       .step = trainer_step(r->t)};

    memcpy(m.image, r->fx.weights->base, m.image_bytes);
    return m;
}

static void forget(struct moment *m)
{
    free(m->optimizer.data);
    free(m->adapter.data);
    free(m->image);
}

static bool same_moment(const struct moment *a, const struct moment *b)
{
    return a->step == b->step && a->optimizer.n == b->optimizer.n && a->adapter.n == b->adapter.n &&
           memcmp(a->optimizer.data, b->optimizer.data, a->optimizer.n) == 0 &&
           (!a->adapter.n || memcmp(a->adapter.data, b->adapter.data, a->adapter.n) == 0) &&
           memcmp(a->image, b->image, a->image_bytes) == 0;
}

static void same_as(struct rig *r, struct moment *want)
{
    struct moment now = look(r);

    assert_true(same_moment(&now, want));
    forget(&now);
}

/* ---- exact resume ---- */

/* A fresh run takes over weights, moments and step of `m`, as a load does. */
static void restore(struct rig *r, const struct moment *m, struct adapter *a)
{
    struct err e = {0};
    struct trainer_state *s;

    memcpy(r->fx.weights->base, m->image, m->image_bytes);
    if (a)
        rig_load_adapter(r, adapter_ref(a));
    else
        trainer_reset(r->t);
    s = read_saved(r->t, &m->optimizer, m->step, &e);
    must(s ? 0 : -1, &e);
    trainer_adopt(r->t, s);
    trainer_state_free(s);
}

static void check_resume(const char *model, enum train_mode mode, bool master_forward)
{
    struct rig r, fresh;

    rig_open(&r, model, 2);
    rig_open(&fresh, model, 1);
    rig_make_trainer(&r, mode, master_forward, &lora);
    rig_make_trainer(&fresh, mode, master_forward, &lora);
    train(&r, 3);
    struct moment saved = look(&r);
    struct adapter *a = trainer_adapter(r.t);

    train(&r, 2);
    restore(&fresh, &saved, a);
    same_as(&fresh, &saved);
    train(&fresh, 2);
    struct moment end = look(&r);

    assert_int_equal(end.step, 5);
    same_as(&fresh, &end);
    adapter_unref(a);
    forget(&saved);
    forget(&end);
    rig_close(&r);
    rig_close(&fresh);
}

static void a_resumed_run_gives_the_bits_of_one_that_never_stopped(void **state)
{
    (void)state;
    for (int i = 0; i < N_TRAINED; i++) {
        check_resume(trained_models[i], TRAIN_FULL, false);
        check_resume(trained_models[i], TRAIN_LORA, false);
    }
    check_resume("tiny-llama", TRAIN_FULL, true);
    check_resume("tiny-llama-f16", TRAIN_FULL, false);
    check_resume("tiny-qwen3-sharded-f32", TRAIN_FULL, false);
}

static void a_step_of_lora_leaves_the_rounded_values_beside_the_exact_ones(void **state)
{
    struct rig r;

    (void)state;
    rig_open(&r, "tiny-llama", 2);
    rig_make_trainer(&r, TRAIN_LORA, false, &lora);
    for (int i = 0; i < 3; i++) { /* the third one takes the memory of the first */
        train(&r, 1);
        struct adapter *a = trainer_adapter(r.t);

        for (size_t j = 0; j < a->n_values; j++)
            assert_int_equal(a->rounded[j], dtype_f32_to_bf16(a->memory[j]));
        adapter_unref(a);
    }
    rig_close(&r);
}

static void a_reset_run_starts_over(void **state)
{
    struct rig r;

    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        rig_open(&r, "tiny-qwen2", 2);
        rig_make_trainer(&r, mode ? TRAIN_FULL : TRAIN_LORA, false, &lora);
        struct moment start = look(&r);
        struct adapter *a = trainer_adapter(r.t);

        train(&r, 2);
        struct moment there = look(&r);

        assert_false(same_moment(&start, &there));
        memcpy(r.fx.weights->base, start.image, start.image_bytes);
        if (a)
            rig_load_adapter(&r, adapter_ref(a));
        else
            trainer_reset(r.t);
        same_as(&r, &start);
        train(&r, 2);
        same_as(&r, &there);
        adapter_unref(a);
        forget(&start);
        forget(&there);
        rig_close(&r);
    }
}

static void a_loaded_adapter_changes_places_with_the_present_one_and_keeps_its_scale(void **state)
{
    struct lora_settings weak = lora;
    struct err e = {0};
    struct rig r;

    (void)state;
    weak.alpha = 8;
    rig_open(&r, "tiny-llama", 1);
    rig_make_trainer(&r, TRAIN_LORA, false, &lora);
    train(&r, 2); /* the memory of an earlier adapter waits for the next step */
    struct adapter *before = trainer_adapter(r.t), *loaded = adapter_new(&r.fx.config, &weak, &e);
    struct adapter *a = adapter_ref(loaded);

    must(trainer_set_adapter(r.t, &a, &e), &e);
    assert_ptr_equal(a, before);
    train(&r, 2);
    struct adapter *now = trainer_adapter(r.t);

    for (int i = 0; i < adapter_slots(now->n_layers); i++)
        assert_float_equal(adapter_slot_of(now, i)->scale, adapter_slot_of(loaded, i)->scale, 0);
    adapter_unref(a);
    adapter_unref(before);
    adapter_unref(loaded);
    adapter_unref(now);
    rig_close(&r);
}

/* ---- bits do not depend on how ---- */

static void slices_and_threads_change_no_bit(void **state)
{
    struct rig r, cut;

    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        rig_open(&r, "tiny-lfm2", 2);
        rig_open(&cut, "tiny-lfm2", 1);
        cut.slice_ns = 1;
        rig_make_trainer(&r, mode ? TRAIN_FULL : TRAIN_LORA, false, &lora);
        rig_make_trainer(&cut, mode ? TRAIN_FULL : TRAIN_LORA, false, &lora);
        train(&r, 2);
        train(&cut, 2);
        struct moment end = look(&r);

        same_as(&cut, &end);
        forget(&end);
        rig_close(&r);
        rig_close(&cut);
    }
}

static void gradients_of_successive_passes_add_up(void **state)
{
    struct rig whole, parts;
    struct adam a = brisk();
    struct data d, one;

    (void)state;
    rig_open(&whole, "tiny-llama-untied-rope3", 2);
    rig_open(&parts, "tiny-llama-untied-rope3", 2);
    rig_make_trainer(&whole, TRAIN_FULL, false, NULL);
    rig_make_trainer(&parts, TRAIN_FULL, false, NULL);
    make_data(&d, &whole);
    take_pass(&whole, &d, true);
    for (int i = 0; i < d.n; i++) {
        one = (struct data){.n = 1, .datum = {d.datum[i]}};
        take_pass(&parts, &one, true);
        take_pass(&parts, &one, false); /* adds nothing */
    }
    take_step(&whole, &a);
    take_step(&parts, &a);
    struct moment end = look(&whole);

    same_as(&parts, &end); /* to the bit: each sum is one chain over the rows */
    assert_false(trainer_has_gradients(parts.t));
    forget(&end);
    rig_close(&whole);
    rig_close(&parts);
}

static void a_new_lora_run_answers_like_its_base(void **state)
{
    struct rig full, r;
    struct data d;

    (void)state;
    rig_open(&full, "tiny-llama", 2);
    rig_open(&r, "tiny-llama", 2);
    rig_make_trainer(&full, TRAIN_FULL, false, NULL);
    rig_make_trainer(&r, TRAIN_LORA, false, &lora);
    make_data(&d, &r);
    assert_true(take_pass(&full, &d, false) == take_pass(&r, &d, false));
    rig_close(&full);
    rig_close(&r);
}

/* ---- operations that do not end well ---- */

static void a_step_without_gradients_changes_nothing(void **state)
{
    struct adam a = brisk();
    struct rig r;
    struct data d;

    (void)state;
    rig_open(&r, "tiny-llama", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    train(&r, 1);
    struct moment was = look(&r);

    assert_true(take_step(&r, &a).skipped);
    make_data(&d, &r);
    memset(d.weights, 0, sizeof d.weights);
    assert_true(take_pass(&r, &d, true) == 0); /* no weight: no gradient */
    assert_false(trainer_has_gradients(r.t));
    struct step_result s = take_step(&r, &a);

    assert_true(s.skipped && s.step == 1);
    same_as(&r, &was);
    forget(&was);
    rig_close(&r);
}

/* Zero gradients are gradients: moments and weights decay. */
static void a_step_on_zero_gradients_is_a_step(void **state)
{
    struct loss_config c = loss_defaults(LOSS_IMPORTANCE_SAMPLING);
    struct adam a = brisk();
    float old[64] = {0}, advantages[64] = {0};
    struct err e = {0};
    struct rig r;
    struct data d;

    (void)state;
    rig_open(&r, "tiny-llama", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    make_data(&d, &r);
    for (int i = 0; i < d.n; i++) {
        d.datum[i].loss.old_logprobs = old;
        d.datum[i].loss.advantages = advantages;
    }
    must(trainer_begin_pass(r.t, &c, 1, d.datum, d.n, true, &e), &e);
    assert_int_equal(run_operation(&r, &e), TRAIN_DONE);
    trainer_end(r.t);
    assert_true(trainer_has_gradients(r.t));
    struct step_result s = take_step(&r, &a);

    assert_true(!s.skipped && s.grad_norm == 0 && s.step == 1);
    rig_close(&r);
}

/* The reference: one pass, one step. Then the same after an operation was cancelled at slice n. */
static void check_cancelled(enum train_mode mode, bool pending)
{
    struct adam a = brisk();
    struct loss_config c = sum_of_cross_entropy();
    struct rig r, ref;
    struct err e = {0};
    struct data d;
    bool over = false;

    rig_open(&ref, "tiny-qwen2", 2);
    rig_make_trainer(&ref, mode, false, &lora);
    make_data(&d, &ref);
    take_pass(&ref, &d, true);
    take_step(&ref, &a);
    struct moment want = look(&ref);

    for (int n = 0; !over; n += n < 4 ? 1 : 1 + n / 3) {
        rig_open(&r, "tiny-qwen2", 2);
        rig_make_trainer(&r, mode, false, &lora);
        if (pending)
            take_pass(&r, &d, true);
        must(trainer_begin_pass(r.t, &c, 1, d.datum, d.n, true, &e), &e);
        over = run_slices(&r, n);
        trainer_end(r.t);
        if (!over && trainer_has_gradients(r.t)) {
            assert_true(pending); /* cancelled in time: those of before are intact */
        } else if (!over) {
            take_pass(&r, &d, true); /* none, or dropped: as if there had never been any */
        }
        if (!over) {
            take_step(&r, &a);
            same_as(&r, &want);
        }
        rig_close(&r);
    }
    forget(&want);
    rig_close(&ref);
}

static void a_cancelled_pass_leaves_gradients_or_drops_them_all(void **state)
{
    (void)state;
    check_cancelled(TRAIN_FULL, false);
    check_cancelled(TRAIN_FULL, true);
    check_cancelled(TRAIN_LORA, true);
}

/* Cancelled before its first write, a step has not been; after that it has. */
static void a_cancelled_step_has_happened_wholly_or_not_at_all(void **state)
{
    struct adam a = brisk();
    struct rig r, ref;
    struct err e = {0};
    struct data d;
    int happened = 0, did_not = 0;

    (void)state;
    rig_open(&ref, "tiny-llama", 2);
    rig_make_trainer(&ref, TRAIN_FULL, false, NULL);
    make_data(&d, &ref);
    struct moment before = look(&ref);

    take_pass(&ref, &d, true);
    take_step(&ref, &a);
    struct moment after = look(&ref);

    for (int n = 0; n < 6; n++) {
        rig_open(&r, "tiny-llama", 2);
        rig_make_trainer(&r, TRAIN_FULL, false, NULL);
        take_pass(&r, &d, true);
        must(trainer_begin_step(r.t, &a, r.other, &e), &e);
        bool over = run_slices(&r, n);

        trainer_end(r.t);
        if (trainer_step(r.t) == 1) {
            rig_flip(&r);
            same_as(&r, &after);
            happened++;
        } else {
            assert_true(!over && trainer_has_gradients(r.t));
            same_as(&r, &before);
            did_not++;
        }
        rig_close(&r);
    }
    assert_true(happened > 0 && did_not > 0);
    forget(&before);
    forget(&after);
    rig_close(&ref);
}

static void gradients_that_are_not_finite_fail_the_step(void **state)
{
    struct loss_config c = loss_defaults(LOSS_SURROGATE);
    struct adam a = brisk();
    struct err e = {0};
    struct rig r;
    struct data d;
    float huge[64];

    (void)state;
    rig_open(&r, "tiny-llama", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    train(&r, 1);
    struct moment was = look(&r);

    make_data(&d, &r);
    for (int i = 0; i < 64; i++)
        huge[i] = 2e37f; /* times a log-probability it is still a number */
    for (int i = 0; i < d.n; i++)
        d.datum[i].loss.surrogate = huge;
    must(trainer_begin_pass(r.t, &c, 1, d.datum, d.n, true, &e), &e);
    must(run_operation(&r, &e) == TRAIN_DONE ? 0 : -1, &e);
    trainer_end(r.t);
    must(trainer_begin_step(r.t, &a, r.other, &e), &e);
    assert_int_equal(run_operation(&r, &e), TRAIN_FAILED);
    assert_int_equal(e.code, ERR_FORMAT);
    trainer_end(r.t);
    assert_false(trainer_has_gradients(r.t));
    same_as(&r, &was);
    train(&r, 1); /* and the run goes on */
    assert_int_equal(trainer_step(r.t), 2);
    forget(&was);
    rig_close(&r);
}

static void a_loss_that_is_not_finite_fails_before_any_gradient(void **state)
{
    struct loss_config c = loss_defaults(LOSS_PPO_CLIP);
    float old[64], advantages[64];
    struct err e = {0};
    struct rig r;
    struct data d;

    (void)state;
    rig_open(&r, "tiny-llama", 2);
    rig_make_trainer(&r, TRAIN_LORA, false, &lora);
    make_data(&d, &r);
    for (int i = 0; i < 64; i++) {
        old[i] = -3e38f;
        advantages[i] = -1;
    }
    for (int i = 0; i < d.n; i++) {
        d.datum[i].loss.old_logprobs = old;
        d.datum[i].loss.advantages = advantages;
    }
    must(trainer_begin_pass(r.t, &c, 1, d.datum, d.n, true, &e), &e);
    assert_int_equal(run_operation(&r, &e), TRAIN_FAILED);
    assert_int_equal(e.code, ERR_FORMAT);
    trainer_end(r.t);
    assert_false(trainer_has_gradients(r.t));
    rig_close(&r);
}

static void a_value_that_f16_does_not_hold_fails_before_any_change(void **state)
{
    struct adam a = brisk();
    struct err e = {0};
    struct rig r;
    struct data d;

    (void)state;
    rig_open(&r, "tiny-llama-f16", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    train(&r, 1);
    struct moment was = look(&r);

    make_data(&d, &r);
    take_pass(&r, &d, true);
    a.lr = 1e6;
    must(trainer_begin_step(r.t, &a, r.other, &e), &e);
    assert_int_equal(run_operation(&r, &e), TRAIN_FAILED);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "F16"));
    trainer_end(r.t);
    same_as(&r, &was);
    assert_true(trainer_has_gradients(r.t)); /* a smaller step may follow */
    a.lr = 1e-3;
    assert_int_equal(take_step(&r, &a).step, 2);
    forget(&was);
    rig_close(&r);
}

/* Rows of an untied embedding that no token used: zero over zero is no number. */
static void values_that_never_had_a_gradient_only_decay(void **state)
{
    struct adam a = brisk();
    struct rig r;
    struct data d;
    int n;

    (void)state;
    a.eps = 1e-30;
    a.weight_decay = 0;
    rig_open(&r, "tiny-llama-untied-rope3", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    struct moment was = look(&r);

    make_data(&d, &r);
    take_pass(&r, &d, true);
    take_step(&r, &a);
    struct bytes now = optimizer_file(r.t);
    const float *before = (const float *)(const void *)(was.optimizer.data + was.optimizer.n),
                *after = (const float *)(const void *)(now.data + now.n);
    const struct train_param *p = trainer_params(r.t, &n);
    size_t floats = p[n - 1].offset + p[n - 1].n, same = 0;

    for (size_t i = floats; i > 0; i--) { /* the masters are the file's end */
        assert_true(isfinite(after[-(ptrdiff_t)i]));
        same += after[-(ptrdiff_t)i] == before[-(ptrdiff_t)i];
    }
    assert_true(same > 400 * 64); /* 544 rows of 64, of which a call of 40 tokens uses a few */
    forget(&was);
    free(now.data);
    rig_close(&r);
}

static void a_call_that_cannot_run_is_refused_before_it_begins(void **state)
{
    struct loss_config none = loss_defaults(LOSS_FORWARD_LOGPROB),
                       ppo = loss_defaults(LOSS_PPO_CLIP), ce = sum_of_cross_entropy();
    struct adam a = brisk();
    struct err e = {0};
    struct rig r, other;
    struct data d;
    int32_t beyond[2];

    (void)state;
    rig_open(&r, "tiny-llama", 2);
    rig_open(&other, "tiny-qwen2", 2);
    rig_make_trainer(&r, TRAIN_FULL, false, NULL);
    make_data(&d, &r);
    assert_int_equal(trainer_begin_pass(r.t, &none, 1, d.datum, d.n, true, &e), -1);
    assert_int_equal(trainer_begin_pass(r.t, &ppo, 1, d.datum, d.n, false, &e), -1);
    assert_int_equal(trainer_begin_pass(r.t, &ce, 1, d.datum, 0, false, &e), -1);
    assert_int_equal(e.code, ERR_ARG);
    beyond[0] = beyond[1] = r.fx.config.vocab;
    d.datum[0].tokens = beyond;
    assert_int_equal(trainer_begin_pass(r.t, &ce, 1, d.datum, d.n, true, &e), -1);
    assert_int_equal(e.code, ERR_ARG);
    assert_int_equal(trainer_begin_step(r.t, &a, other.other, &e), -1);
    assert_int_equal(trainer_begin_step(r.t, &a, NULL, &e), -1);
    for (int i = 0; i < 8; i++) {
        struct adam bad = a;
        double *field[] = {&bad.lr,           &bad.beta1, &bad.beta2, &bad.eps,
                           &bad.weight_decay, &bad.clip,  &bad.lr,    &bad.weight_decay};

        *field[i] = i == 3 ? 1e-60 : i < 6 ? NAN : 1e42;
        assert_int_equal(trainer_begin_step(r.t, &bad, r.other, &e), -1);
        assert_int_equal(e.code, ERR_ARG);
    }
    train(&r, 1);
    rig_close(&r);
    rig_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_gives_the_bits_of_one_that_never_stopped),
        cmocka_unit_test(a_step_of_lora_leaves_the_rounded_values_beside_the_exact_ones),
        cmocka_unit_test(a_reset_run_starts_over),
        cmocka_unit_test(a_loaded_adapter_changes_places_with_the_present_one_and_keeps_its_scale),
        cmocka_unit_test(slices_and_threads_change_no_bit),
        cmocka_unit_test(gradients_of_successive_passes_add_up),
        cmocka_unit_test(a_new_lora_run_answers_like_its_base),
        cmocka_unit_test(a_step_without_gradients_changes_nothing),
        cmocka_unit_test(a_step_on_zero_gradients_is_a_step),
        cmocka_unit_test(a_cancelled_pass_leaves_gradients_or_drops_them_all),
        cmocka_unit_test(a_cancelled_step_has_happened_wholly_or_not_at_all),
        cmocka_unit_test(gradients_that_are_not_finite_fail_the_step),
        cmocka_unit_test(a_loss_that_is_not_finite_fails_before_any_gradient),
        cmocka_unit_test(a_value_that_f16_does_not_hold_fails_before_any_change),
        cmocka_unit_test(values_that_never_had_a_gradient_only_decay),
        cmocka_unit_test(a_call_that_cannot_run_is_refused_before_it_begins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
