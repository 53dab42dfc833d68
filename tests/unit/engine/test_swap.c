/* Weights change while requests run: nobody mixes two versions. */
#include "engine_test.h"

enum { PROMPT = 70, TOKENS = 60 };

/* Other weights of the same shape: the bytes of two layers' matrices are exchanged. */
static struct image *other_weights(struct engine *en)
{
    struct err e = {0};
    struct image *base = load_tiny(en, MODELS "tiny-llama");
    struct image *im = image_copy_private(base, &e);
    const struct st_tensor *a, *b;

    assert_non_null(im);
    a = weights_find(im->weights, "model.layers.0.mlp.up_proj.weight");
    b = weights_find(base->weights, "model.layers.1.mlp.up_proj.weight");
    assert_true(a && b && a->bytes == b->bytes);
    memcpy(weights_data(im->weights, a), weights_data(base->weights, b), a->bytes);
    image_unref(base);
    return im;
}

static struct gen_prompt make_prompt(int32_t ids[PROMPT])
{
    fill_prompt(ids, PROMPT, 42);
    return (struct gen_prompt){.tokens = ids, .n = PROMPT};
}

static struct heard *answer_of(struct image *(*weights)(struct engine *),
                               const struct gen_prompt *p)
{
    struct engine *en = start_engine(2, 8, 8, 0);

    make_resident(en, weights(en), "m", 1);
    struct heard *h = submit(en, plain_spec(p, 1, TOKENS));

    heard_end(h, GEN_DONE);
    gen_free(h->gen);
    h->gen = NULL;
    engine_stop(en);
    return h;
}

static struct image *base_weights(struct engine *en)
{
    return load_tiny(en, MODELS "tiny-llama");
}

static void a_swap_in_the_middle_leaves_running_requests_on_their_own_weights(void **state)
{
    int32_t ids[PROMPT];
    struct gen_prompt p = make_prompt(ids);
    struct heard *old = answer_of(base_weights, &p), *new = answer_of(other_weights, &p);
    struct engine *en = start_engine(2, 8, 8, 0);
    struct gen_spec spec = plain_spec(&p, 1, TOKENS);

    (void)state;
    assert_false(same_answer(old, new, 0));
    make_resident(en, base_weights(en), "old", 1);
    struct heard *before = submit(en, spec);

    heard_wait(before, heard_has_tokens, 3);
    make_resident(en, other_weights(en), "new", 2);
    spec.load_counter = 2;
    struct heard *after = submit(en, spec);

    heard_end(before, GEN_DONE);
    heard_end(after, GEN_DONE);
    assert_true(same_answer(before, old, 0));
    assert_true(same_answer(after, new, 0));
    assert_string_equal(before->name, "old");
    assert_string_equal(after->name, "new");
    assert_true(after->epoch > before->epoch);
    assert_true(engine_wait_images(en, 0, 10000));
    heard_free(before);
    heard_free(after);
    engine_stop(en);
    heard_free(old);
    heard_free(new);
}

static void a_model_of_another_shape_runs_beside_the_old_one(void **state)
{
    int32_t ids[PROMPT];
    struct gen_prompt p = make_prompt(ids);
    struct engine *en = start_with_model("tiny-llama", 2, 8);
    struct heard *alone = answer_of(base_weights, &p);
    struct gen_spec spec = plain_spec(&p, 1, TOKENS);
    struct heard *before = submit(en, spec);

    (void)state;
    heard_wait(before, heard_has_tokens, 3);
    make_resident(en, load_tiny(en, MODELS "tiny-lfm2"), "lfm", 2);
    spec.load_counter = 2;
    struct heard *after = submit(en, spec);

    heard_end(before, GEN_DONE);
    heard_end(after, GEN_DONE);
    assert_true(same_answer(before, alone, 0));
    assert_false(same_answer(after, before, 0));
    heard_free(before);
    heard_free(after);
    heard_free(alone);
    engine_stop(en);
}

/* ---- who comes after a swap ---- */

enum { LONG = 200 };

/* An answer that takes its time: the engine thread sleeps at every token. */
static void sleep_a_little(void *arg, struct heard *h)
{
    (void)h;
    nanosleep(&(struct timespec){.tv_nsec = *(const long *)arg}, NULL);
}

struct first_token {
    const struct heard *other;
    int other_had; /* tokens, when this request heard its first; -1: not yet */
};

static void look_at_other(void *arg, struct heard *h)
{
    struct first_token *f = arg;

    (void)h;
    if (f->other_had < 0)
        f->other_had = f->other->n_tokens; /* written by this thread, the engine's */
}

/* How many tokens an answer of LONG tokens had when one of n_tokens, asked for after a swap, began.
 */
static int tokens_before(int64_t stand_back_ms, long sleep_ns, int n_tokens)
{
    struct engine_config c = {.n_threads = 1,
                              .kernels = kernels_pick(false),
                              .max_running = 4,
                              .max_waiting = 4,
                              .stand_back_ms = stand_back_ms};
    int32_t ids[PROMPT];
    struct gen_prompt p = make_prompt(ids);
    struct gen_spec spec = plain_spec(&p, 1, LONG);
    struct err e = {0};
    struct engine *en = engine_start(&c, &e);

    assert_non_null(en);
    make_resident(en, base_weights(en), "old", 1);
    struct image *next = other_weights(en);
    struct heard *before = submit_heard(en, spec, sleep_a_little, &sleep_ns);

    heard_wait(before, heard_has_tokens, 3);
    make_resident(en, next, "new", 2);
    spec.load_counter = 2;
    spec.max_tokens = n_tokens;
    struct first_token first = {.other = before, .other_had = -1};
    struct heard *after = submit_heard(en, spec, look_at_other, &first);

    heard_end(after, GEN_DONE);
    heard_end(before, GEN_DONE);
    assert_int_equal(before->n_tokens, LONG);
    assert_int_equal(after->n_tokens, n_tokens);
    heard_free(before);
    heard_free(after);
    engine_stop(en);
    return first.other_had;
}

static void who_comes_after_a_swap_lets_shorter_answers_on_the_old_weights_end(void **state)
{
    (void)state;
    assert_int_equal(tokens_before(PATIENCE_S * 1000, 1000000, LONG), LONG);
}

static void who_has_less_to_make_than_the_old_answers_takes_turns_with_them(void **state)
{
    (void)state;
    assert_true(tokens_before(PATIENCE_S * 1000, 1000000, 5) < LONG);
}

static void nobody_stands_back_longer_than_the_limit(void **state)
{
    (void)state;
    assert_true(tokens_before(20, 5000000, LONG) < LONG); /* the old answer takes a second */
    assert_true(tokens_before(0, 1000000, LONG) < LONG);
}

static void rename_served(struct engine *en, void *arg)
{
    struct served s = *engine_served(en);

    snprintf(s.name, sizeof s.name, "%s", (const char *)arg);
    engine_set_served(en, served_new(&s));
}

static void a_rename_concerns_requests_that_are_admitted_later(void **state)
{
    int32_t ids[PROMPT];
    struct gen_prompt p = make_prompt(ids);
    struct engine *en = start_with_model("tiny-llama", 1, 8);
    struct heard *first = submit(en, plain_spec(&p, 1, 200));
    char name[] = "saved";

    (void)state;
    heard_wait(first, heard_has_tokens, 1);
    engine_call(en, rename_served, name);
    struct heard *second = submit(en, plain_spec(&p, 1, 2)); /* same load: not sent back */

    heard_end(second, GEN_DONE);
    heard_end(first, GEN_DONE);
    assert_string_equal(first->name, "tiny-llama");
    assert_string_equal(second->name, "saved");
    heard_free(first);
    heard_free(second);
    engine_stop(en);
}

static void the_first_swap_keeps_the_old_memory_as_the_spare(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 8);
    struct image_bank *bank = engine_bank(en);

    (void)state;
    assert_int_equal(image_bank_spare_bytes(bank), 0);
    make_resident(en, base_weights(en), "again", 2);
    size_t spare = image_bank_spare_bytes(bank);

    assert_true(spare > 0);
    assert_int_equal(image_bank_alive(bank), 1);
    struct image *copy = load_tiny(en, MODELS "tiny-llama");

    assert_int_equal(image_bank_spare_bytes(bank), 0); /* the load took it */
    image_unref(copy);
    assert_int_equal(image_bank_spare_bytes(bank), spare);
    engine_stop(en);
}

static void a_request_with_its_own_image_runs_on_it_whatever_becomes_of_the_resident(void **state)
{
    int32_t ids[PROMPT];
    struct gen_prompt p = make_prompt(ids);
    struct heard *own = answer_of(other_weights, &p), *resident = answer_of(base_weights, &p);
    struct engine *en = start_engine(2, 8, 8, 0);
    struct gen_spec spec = plain_spec(&p, 1, TOKENS), mine = spec;
    struct image *im = other_weights(en);

    (void)state;
    mine.image = im;
    mine.load_counter = 77; /* of no resident */
    struct heard *alone = submit(en, mine);

    heard_end(alone, GEN_DONE);
    make_resident(en, base_weights(en), "m", 1);
    struct heard *beside = submit(en, mine), *usual = submit(en, spec);

    heard_wait(beside, heard_has_tokens, 3);
    heard_wait(usual, heard_has_tokens, 1); /* it runs, too: the gate holds what does not */
    set_gate(en, GATE_HOLD);
    struct heard *held = submit(en, mine);

    assert_true(engine_wait_drained(en, 10000)); /* the own image holds nobody up */
    heard_end(held, GEN_DONE);
    set_gate(en, GATE_REFUSE);
    struct heard *torn = submit(en, mine), *refused = submit(en, spec);

    heard_end(torn, GEN_DONE);
    heard_end(refused, GEN_TORN);
    heard_end(beside, GEN_DONE);
    heard_end(usual, GEN_DONE);
    assert_true(same_answer(alone, own, 0) && same_answer(beside, own, 0));
    assert_true(same_answer(held, own, 0) && same_answer(torn, own, 0));
    assert_true(same_answer(usual, resident, 0));
    struct heard *all[] = {own, resident, alone, beside, usual, held, torn, refused};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        heard_free(all[i]);
    image_unref(im);
    engine_stop(en);
}

struct swapper {
    struct engine *engine;
    struct image *images[2];
    atomic_bool over;
};

/* The name says which image it is: "0" or "1". */
static void *swap_to_and_fro(void *arg)
{
    struct swapper *s = arg;

    for (uint64_t n = 0; !atomic_load(&s->over); n++)
        make_resident(s->engine, image_ref(s->images[n % 2]), n % 2 ? "1" : "0", n + 2);
    return NULL;
}

static void name_and_weights_that_are_looked_at_belong_together(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 8);
    struct swapper s = {.engine = en, .images = {base_weights(en), other_weights(en)}};
    pthread_t thread;
    int seen[2] = {0};

    (void)state;
    make_resident(en, image_ref(s.images[0]), "0", 1);
    pthread_create(&thread, NULL, swap_to_and_fro, &s);
    for (int i = 0; i < 20000 || seen[0] == 0 || seen[1] == 0; i++) {
        struct image *im;
        struct served *served = engine_peek(en, &im);
        int which = served->name[0] - '0';

        assert_ptr_equal(im, s.images[which]);
        seen[which]++;
        served_unref(served);
        image_unref(im);
    }
    atomic_store(&s.over, true);
    pthread_join(thread, NULL);
    image_unref(s.images[0]);
    image_unref(s.images[1]);
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_swap_in_the_middle_leaves_running_requests_on_their_own_weights),
        cmocka_unit_test(a_model_of_another_shape_runs_beside_the_old_one),
        cmocka_unit_test(who_comes_after_a_swap_lets_shorter_answers_on_the_old_weights_end),
        cmocka_unit_test(who_has_less_to_make_than_the_old_answers_takes_turns_with_them),
        cmocka_unit_test(nobody_stands_back_longer_than_the_limit),
        cmocka_unit_test(a_rename_concerns_requests_that_are_admitted_later),
        cmocka_unit_test(the_first_swap_keeps_the_old_memory_as_the_spare),
        cmocka_unit_test(a_request_with_its_own_image_runs_on_it_whatever_becomes_of_the_resident),
        cmocka_unit_test(name_and_weights_that_are_looked_at_belong_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
