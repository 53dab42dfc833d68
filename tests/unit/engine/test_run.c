/* Training runs beside requests: order, flips, what others hold, cancelling. */
#include "engine_test.h"

#include "engine/run.h"
#include "model/adapter.h"
#include "train/trainer.h"

#include <sys/mman.h>
#include <unistd.h>

enum { N = 24, TOKENS = 20 };

static const struct adam adam = {1e-2, 0.9, 0.95, 1e-8, 0.01, 1.0};

/* One operation and how it ended. */
struct asked {
    struct run_op op;
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool over;
    enum run_outcome outcome;
    struct err e;
    double loss;
    float logprobs[N];
    struct step_result step;
    int order;
    int *clock; /* counts operations that have ended */
};

static void note_end(struct run_op *op, enum run_outcome outcome, const struct trainer *t,
                     const struct err *e)
{
    struct asked *a = op->arg;

    pthread_mutex_lock(&a->lock);
    a->outcome = outcome;
    a->order = a->clock ? ++*a->clock : 0;
    if (e)
        a->e = *e;
    if (outcome == RUN_OK && op->kind == RUN_STEP)
        a->step = *trainer_step_result(t);
    if (outcome == RUN_OK && (op->kind == RUN_FORWARD || op->kind == RUN_FORWARD_BACKWARD)) {
        a->loss = trainer_loss(t)->loss;
        memcpy(a->logprobs, trainer_logprobs(t), sizeof a->logprobs);
    }
    a->over = true;
    pthread_cond_broadcast(&a->news);
    pthread_mutex_unlock(&a->lock);
}

static struct asked *ask(struct run *r, struct run_op op, int *clock)
{
    struct asked *a = calloc(1, sizeof *a);

    assert_non_null(a);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->news, NULL);
    a->clock = clock;
    a->op = op;
    a->op.done = note_end;
    a->op.arg = a;
    run_submit(r, &a->op);
    return a;
}

static enum run_outcome outcome_of(struct asked *a)
{
    struct timespec at;
    int rc = 0;

    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&a->lock);
    while (!a->over && rc == 0)
        rc = pthread_cond_timedwait(&a->news, &a->lock, &at);
    assert_true(a->over);
    pthread_mutex_unlock(&a->lock);
    return a->outcome;
}

static void asked_free(struct asked *a)
{
    run_view_release(&a->op.view);
    pthread_cond_destroy(&a->news);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static void expect_ok(struct asked *a)
{
    if (outcome_of(a) != RUN_OK)
        fail_msg("operation %d: outcome %d: %s", (int)a->op.kind, (int)a->outcome, a->e.msg);
}

/* One made-up datum. */
struct lesson {
    int32_t tokens[N], targets[N];
    struct train_datum datum;
};

static void make_lesson(struct lesson *l, uint32_t key)
{
    int32_t ids[N + 1];

    fill_prompt(ids, N + 1, key);
    memcpy(l->tokens, ids, sizeof l->tokens);
    memcpy(l->targets, ids + 1, sizeof l->targets);
    l->datum = (struct train_datum){.tokens = l->tokens, .loss = {.n = N, .targets = l->targets}};
}

static struct run_op pass_op(const struct lesson *l, enum run_op_kind kind)
{
    return (struct run_op){.kind = kind,
                           .loss = loss_defaults(LOSS_CROSS_ENTROPY),
                           .temperature = 1,
                           .data = &l->datum,
                           .n_data = 1};
}

static double pass(struct run *r, const struct lesson *l, enum run_op_kind kind)
{
    struct asked *a = ask(r, pass_op(l, kind), NULL);

    expect_ok(a);
    double loss = a->loss;

    asked_free(a);
    return loss;
}

static int64_t step(struct run *r)
{
    struct asked *a = ask(r, (struct run_op){.kind = RUN_STEP, .adam = adam}, NULL);

    expect_ok(a);
    int64_t n = a->step.step;

    asked_free(a);
    return n;
}

static struct run *start_run(struct engine *en, enum train_mode mode)
{
    struct run_settings s = {.mode = mode,
                             .lora = {.rank = 4, .alpha = 32, .attn = true, .mlp = true},
                             .activation_bytes = (size_t)64 << 20};
    struct image *base = load_tiny(en, MODELS "tiny-llama");
    struct err e = {0};
    struct run *r = run_new(en, base, &s, &e);

    if (!r)
        fail_msg("%s", e.msg);
    image_unref(base);
    return r;
}

static void train(struct run *r, const struct lesson *l, int n)
{
    for (int i = 0; i < n; i++) {
        pass(r, l, RUN_FORWARD_BACKWARD);
        step(r);
    }
}

static void check_learning(enum train_mode mode)
{
    struct engine *en = start_engine(2, 8, 8, (size_t)16 << 20);
    struct run *r = start_run(en, mode);
    struct lesson l;

    make_lesson(&l, 7);
    double before = pass(r, &l, RUN_FORWARD);

    train(r, &l, 8);
    double after = pass(r, &l, RUN_FORWARD);

    if (!(after < before - 1))
        fail_msg("loss %g, after 8 steps %g", before, after);
    run_close(r);
    engine_stop(en);
}

static void full_fine_tuning_learns(void **state)
{
    (void)state;
    check_learning(TRAIN_FULL);
}

static void an_adapter_learns(void **state)
{
    (void)state;
    check_learning(TRAIN_LORA);
}

static struct gen_spec scoring(const struct gen_prompt *p, const struct run_view *v)
{
    struct gen_spec s = plain_spec(p, 1, 1);

    s.prompt_logprobs = true;
    s.image = v->image;
    s.adapter = v->adapter;
    return s;
}

/* The tokens of the lesson with the last target behind them: every target is scored. */
static void check_scores(struct engine *en, const struct lesson *l, const struct run_view *v,
                         const float expected[N])
{
    int32_t ids[N + 1];
    struct gen_prompt p = {.tokens = ids, .n = N + 1};

    memcpy(ids, l->tokens, sizeof l->tokens);
    ids[N] = l->targets[N - 1];
    struct heard *h = submit(en, scoring(&p, v));

    heard_end(h, GEN_DONE);
    assert_int_equal(h->seq[0].n_prompt, N + 1);
    assert_memory_equal(h->seq[0].prompt_logprobs + 1, expected, N * sizeof expected[0]);
    heard_free(h);
}

/* After some steps the sampler, on what the run hands out, says what the trainer says, bit for bit;
 * and what was handed out stays what it was while the run goes on. */
static void check_parity(enum train_mode mode)
{
    struct engine *en = start_engine(2, 8, 8, (size_t)16 << 20);
    struct run *r = start_run(en, mode);
    struct lesson l;

    make_lesson(&l, 7);
    train(r, &l, 2);
    struct asked *scores = ask(r, pass_op(&l, RUN_FORWARD), NULL);

    expect_ok(scores);
    struct asked *view = ask(r, (struct run_op){.kind = RUN_VIEW}, NULL);

    expect_ok(view);
    assert_int_equal(view->op.view.step, 2);
    check_scores(en, &l, &view->op.view, scores->logprobs);
    train(r, &l, 3);
    check_scores(en, &l, &view->op.view, scores->logprobs);
    asked_free(scores);
    scores = ask(r, pass_op(&l, RUN_FORWARD), NULL);
    expect_ok(scores);
    struct run_view now;

    run_peek(r, &now);
    assert_int_equal(now.step, 5);
    check_scores(en, &l, &now, scores->logprobs);
    run_view_release(&now);
    asked_free(scores);
    asked_free(view);
    run_close(r);
    engine_stop(en);
}

static void sampler_equals_trainer_on_full_weights(void **state)
{
    (void)state;
    check_parity(TRAIN_FULL);
}

static void sampler_equals_trainer_on_an_adapter(void **state)
{
    (void)state;
    check_parity(TRAIN_LORA);
}

static void operations_of_one_run_end_in_their_order_and_runs_take_turns(void **state)
{
    enum { OPS = 6 };
    struct engine *en = start_engine(2, 8, 8, (size_t)16 << 20);
    struct run *runs[2] = {start_run(en, TRAIN_LORA), start_run(en, TRAIN_FULL)};
    struct asked *asked[2][OPS];
    struct lesson l;
    int clock = 0;

    (void)state;
    make_lesson(&l, 3);
    for (int i = 0; i < OPS; i++)
        for (int k = 0; k < 2; k++)
            asked[k][i] = ask(runs[k],
                              i % 2 ? (struct run_op){.kind = RUN_STEP, .adam = adam}
                                    : pass_op(&l, RUN_FORWARD_BACKWARD),
                              &clock);
    for (int i = 0; i < OPS; i++)
        for (int k = 0; k < 2; k++) {
            expect_ok(asked[k][i]);
            if (i > 0)
                assert_true(asked[k][i]->order > asked[k][i - 1]->order);
        }
    for (int k = 0; k < 2; k++)
        assert_true(asked[k][0]->order <= 3); /* nobody waited for all of the other */
    for (int i = 0; i < OPS; i++)
        for (int k = 0; k < 2; k++)
            asked_free(asked[k][i]);
    run_close(runs[0]);
    run_close(runs[1]);
    engine_stop(en);
}

static void closing_a_run_cancels_what_is_queued(void **state)
{
    enum { OPS = 12 };
    struct engine *en = start_engine(2, 8, 8, (size_t)16 << 20);
    struct run *r = start_run(en, TRAIN_FULL);
    struct asked *asked[OPS];
    struct lesson l;
    int cancelled = 0;

    (void)state;
    make_lesson(&l, 3);
    for (int i = 0; i < OPS; i++)
        asked[i] = ask(r, pass_op(&l, RUN_FORWARD_BACKWARD), NULL);
    run_close(r);
    for (int i = 0; i < OPS; i++) {
        cancelled += outcome_of(asked[i]) == RUN_CANCELLED;
        asked_free(asked[i]);
    }
    assert_true(cancelled > 0);
    engine_stop(en);
}

static void a_step_without_gradients_changes_nothing_and_says_so(void **state)
{
    struct engine *en = start_engine(2, 8, 8, (size_t)16 << 20);
    struct run *r = start_run(en, TRAIN_FULL);
    struct asked *a = ask(r, (struct run_op){.kind = RUN_STEP, .adam = adam}, NULL);
    struct run_view before, after;

    (void)state;
    run_peek(r, &before);
    expect_ok(a);
    assert_true(a->step.skipped && a->step.step == 0);
    run_peek(r, &after);
    assert_ptr_equal(before.image, after.image);
    run_view_release(&before);
    run_view_release(&after);
    asked_free(a);
    run_close(r);
    engine_stop(en);
}

static void a_bad_datum_fails_its_operation_and_no_other(void **state)
{
    struct engine *en = start_engine(2, 8, 8, (size_t)16 << 20);
    struct run *r = start_run(en, TRAIN_LORA);
    struct lesson good, bad;

    (void)state;
    make_lesson(&good, 3);
    make_lesson(&bad, 4);
    bad.tokens[5] = 1 << 20; /* outside the vocabulary */
    double before = pass(r, &good, RUN_FORWARD);
    struct asked *a = ask(r, pass_op(&bad, RUN_FORWARD_BACKWARD), NULL);

    assert_int_equal(outcome_of(a), RUN_FAILED);
    assert_int_equal(a->e.code, ERR_ARG);
    asked_free(a);
    assert_float_equal(pass(r, &good, RUN_FORWARD), before, 0);
    run_close(r);
    engine_stop(en);
}

/* The optimizer's files of a view, as a save writes them. */
static int save_optimizer(struct trainer_frozen *f, int fds[FROZEN_FILES])
{
    struct frozen_file file[FROZEN_FILES];
    struct err e = {0};
    int n = frozen_files(f, file);

    for (int i = 0; i < n; i++) {
        char *bytes = malloc((size_t)file[i].bytes);

        assert_non_null(bytes);
        assert_int_equal(frozen_read(&file[i], bytes, 0, (size_t)file[i].bytes, &e), 0);
        fds[i] = memfd_create("optimizer", MFD_CLOEXEC);
        assert_int_equal(pwrite(fds[i], bytes, (size_t)file[i].bytes, 0), file[i].bytes);
        free(bytes);
    }
    return n;
}

static struct trainer_state *saved_state(struct run *r, const struct run_view *v)
{
    int fds[FROZEN_FILES], n = save_optimizer(v->optimizer, fds);
    struct err e = {0};
    struct trainer_state *s = trainer_state_read(run_trainer(r), fds, n, v->step, NULL, &e);

    if (!s)
        fail_msg("%s", e.msg);
    while (n > 0)
        close(fds[--n]);
    return s;
}

static struct asked *view_with_optimizer(struct run *r)
{
    struct asked *a = ask(r, (struct run_op){.kind = RUN_VIEW, .with_optimizer = true}, NULL);

    expect_ok(a);
    assert_non_null(a->op.view.optimizer);
    return a;
}

/* Gigabytes in earnest: the asking thread lets go of them, not the engine's. */
static void a_load_hands_back_what_the_run_had(void **state)
{
    struct engine *en = start_engine(2, 8, 8, (size_t)16 << 20);
    struct run *r = start_run(en, TRAIN_FULL);
    struct lesson l;

    (void)state;
    make_lesson(&l, 7);
    train(r, &l, 2);
    double then = pass(r, &l, RUN_FORWARD);
    struct asked *view = view_with_optimizer(r);
    struct trainer_state *saved = saved_state(r, &view->op.view);

    train(r, &l, 2);
    double later = pass(r, &l, RUN_FORWARD);

    for (int i = 0; i < 2; i++) { /* with the optimizer, then without */
        struct asked *load =
            ask(r,
                (struct run_op){
                    .kind = RUN_LOAD, .image = image_ref(view->op.view.image), .state = saved},
                NULL);

        expect_ok(load);
        assert_int_equal(load->op.state != NULL, i == 0);
        assert_ptr_not_equal(load->op.image, view->op.view.image);
        run_op_release(&load->op);
        asked_free(load);
        saved = NULL;
        assert_float_equal(pass(r, &l, RUN_FORWARD), then, 0);
        train(r, &l, 2);
        if (i == 0)
            assert_float_equal(pass(r, &l, RUN_FORWARD), later, 0);
    }
    asked_free(view);
    run_close(r);
    engine_stop(en);
}

static void a_run_can_be_saved_with_its_optimizer_before_its_first_step(void **state)
{
    struct engine *en = start_engine(2, 8, 8, (size_t)16 << 20);
    struct run *r = start_run(en, TRAIN_FULL);
    struct asked *view = view_with_optimizer(r);
    struct trainer_state *s = saved_state(r, &view->op.view);

    (void)state;
    assert_int_equal(view->op.view.step, 0);
    trainer_state_free(s);
    asked_free(view);
    run_close(r);
    engine_stop(en);
}

static void requests_go_on_while_a_run_trains(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 2, 8);
    struct run *r = start_run(en, TRAIN_FULL);
    int32_t ids[40];
    struct gen_prompt p = {.tokens = ids, .n = 40};
    struct lesson l;

    (void)state;
    fill_prompt(ids, 40, 11);
    struct heard *alone = submit(en, plain_spec(&p, 1, TOKENS));

    heard_end(alone, GEN_DONE);
    make_lesson(&l, 7);
    for (int i = 0; i < 4; i++) {
        struct asked *a = ask(r, pass_op(&l, RUN_FORWARD_BACKWARD), NULL);
        struct heard *beside = submit(en, plain_spec(&p, 1, TOKENS));

        heard_end(beside, GEN_DONE);
        assert_true(same_answer(alone, beside, 0)); /* the resident is not what is trained */
        heard_free(beside);
        expect_ok(a);
        asked_free(a);
        step(r);
    }
    heard_free(alone);
    run_close(r);
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_fine_tuning_learns),
        cmocka_unit_test(an_adapter_learns),
        cmocka_unit_test(sampler_equals_trainer_on_full_weights),
        cmocka_unit_test(sampler_equals_trainer_on_an_adapter),
        cmocka_unit_test(operations_of_one_run_end_in_their_order_and_runs_take_turns),
        cmocka_unit_test(closing_a_run_cancels_what_is_queued),
        cmocka_unit_test(a_step_without_gradients_changes_nothing_and_says_so),
        cmocka_unit_test(a_bad_datum_fails_its_operation_and_no_other),
        cmocka_unit_test(a_load_hands_back_what_the_run_had),
        cmocka_unit_test(a_run_can_be_saved_with_its_optimizer_before_its_first_step),
        cmocka_unit_test(requests_go_on_while_a_run_trains),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
