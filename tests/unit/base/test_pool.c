#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <setjmp.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/err.h"
#include "base/pool.h"

enum { MANY = 1000 };

struct tally {
    _Atomic int calls[MANY];
    _Atomic int wrong_worker;
    int workers;
};

static void count_item(void *arg, int item, int worker)
{
    struct tally *t = arg;

    atomic_fetch_add(&t->calls[item], 1);
    if (worker < 0 || worker >= t->workers)
        atomic_fetch_add(&t->wrong_worker, 1);
}

static struct pool *new_pool(int n)
{
    struct err e = {0};
    struct pool *p = pool_new(n, &e);

    assert_non_null(p);
    return p;
}

static void check_every_item_once(struct pool *p, int n_items)
{
    struct tally *t = calloc(1, sizeof *t);

    assert_non_null(t);
    t->workers = pool_workers(p);
    pool_run(p, count_item, t, n_items);
    pool_run_near(p, count_item, t, n_items);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(t->calls[i], i < n_items ? 2 : 0);
    assert_int_equal(t->wrong_worker, 0);
    free(t);
}

static void every_item_runs_once_at_any_number_of_workers(void **state)
{
    static const int sizes[] = {0, 1, 2, 3, 17, MANY};

    (void)state;
    for (int n = 1; n <= 5; n++) {
        struct pool *p = new_pool(n);

        assert_int_equal(pool_workers(p), n);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            check_every_item_once(p, sizes[i]);
        pool_free(p);
    }
}

struct first {
    _Atomic int item[5]; /* that each worker ran first, plus 1 */
    _Atomic int arrived;
};

/* Nobody ends its first item before everybody has one. */
static void note_first(void *arg, int item, int worker)
{
    struct first *f = arg;

    if (f->item[worker])
        return;
    f->item[worker] = item + 1;
    atomic_fetch_add(&f->arrived, 1);
    while (atomic_load(&f->arrived) < 5)
        sched_yield();
}

static void near_loops_begin_with_a_part_of_their_own(void **state)
{
    struct pool *p = new_pool(5);
    struct first f = {.arrived = 0};

    (void)state;
    assert_int_equal(pool_part(0, 5, 23), 0);
    assert_int_equal(pool_part(5, 5, 23), 23);
    pool_run_near(p, note_first, &f, 23);
    for (int i = 0; i < 5; i++)
        assert_int_equal(f.item[i], pool_part(i, 5, 23) + 1);
    pool_free(p);
}

static void thousands_of_short_loops_all_finish(void **state)
{
    struct pool *p = new_pool(3);
    struct tally *t = calloc(1, sizeof *t);

    (void)state;
    assert_non_null(t);
    t->workers = 3;
    for (int i = 0; i < 3000; i++)
        pool_run(p, count_item, t, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(t->calls[i], 3000);
    pool_free(p);
    free(t);
}

static void a_loop_after_the_workers_fell_asleep_runs(void **state)
{
    struct pool *p = new_pool(2);

    (void)state;
    for (int i = 0; i < 5; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        check_every_item_once(p, 40);
    }
    pool_free(p);
}

static void what_a_worker_wrote_is_seen_after_the_loop(void **state)
{
    enum { BYTES = 5 * (1 << 20) + 77 };
    struct pool *p = new_pool(3);
    unsigned char *from = malloc(BYTES);
    unsigned char *to = calloc(1, BYTES);

    (void)state;
    assert_true(from && to);
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(i * 31 + (i >> 12));
    pool_memcpy(p, to, from, BYTES);
    assert_memory_equal(to, from, BYTES);
    pool_free(p);
    free(from);
    free(to);
}

static void a_copy_writes_its_bytes_and_no_others_at_any_alignment(void **state)
{
    enum { BYTES = 3000, EDGE = 64 };
    struct pool *p = new_pool(2);
    unsigned char from[BYTES + EDGE], to[BYTES + 2 * EDGE];

    (void)state;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 7 + 1);
    for (size_t shift = 0; shift < EDGE; shift += 3)
        for (size_t n = 0; n < BYTES; n += 371) {
            memset(to, 0xee, sizeof to);
            pool_memcpy(p, to + EDGE + shift, from + shift / 2, n);
            assert_memory_equal(to + EDGE + shift, from + shift / 2, n);
            assert_int_equal(to[EDGE + shift - 1], 0xee);
            assert_int_equal(to[EDGE + shift + n], 0xee);
        }
    pool_free(p);
}

static void note_highest(void *arg, int item, int worker)
{
    _Atomic int *highest = arg;
    int seen = atomic_load(highest);

    (void)item;
    while (worker > seen && !atomic_compare_exchange_weak(highest, &seen, worker))
        ;
    sched_yield();
}

struct borrower {
    struct pool *pool;
    _Atomic int state; /* 1: has the core, 2: may give it back */
    bool got;
    bool second;
    int cpus_while_lent;
};

static void *borrow_main(void *arg)
{
    struct borrower *b = arg;
    int ids[CPUS_MAX];

    b->got = pool_borrow(b->pool);
    b->second = pool_borrow(b->pool);
    b->cpus_while_lent = cpus_allowed(ids);
    atomic_store(&b->state, 1);
    while (atomic_load(&b->state) != 2)
        sched_yield();
    pool_give_back(b->pool);
    return NULL;
}

static void a_lent_core_is_left_alone_until_it_is_given_back(void **state)
{
    struct pool *p = new_pool(2);
    struct borrower b = {.pool = p};
    _Atomic int highest = 0;
    pthread_t thread;

    (void)state;
    pthread_create(&thread, NULL, borrow_main, &b);
    while (atomic_load(&b.state) != 1)
        check_every_item_once(p, 8); /* loops go on while the borrower waits */
    assert_true(b.got);
    assert_false(b.second);
    assert_int_equal(b.cpus_while_lent, 1);
    pool_run(p, note_highest, &highest, 2000);
    assert_int_equal(highest, 0);
    atomic_store(&b.state, 2);
    pthread_join(thread, NULL);
    for (int i = 0; i < 1000 && atomic_load(&highest) == 0; i++)
        pool_run(p, note_highest, &highest, 200);
    assert_int_equal(highest, 1);
    pool_free(p);
}

struct sharer {
    struct pool *pool;
    pthread_t thread;
    bool got; /* valid once it has started */
    _Atomic bool started, stop;
    _Atomic long rounds;
};

static void *share_main(void *arg)
{
    struct sharer *s = arg;

    s->got = pool_borrow(s->pool);
    atomic_store(&s->started, true);
    if (!s->got)
        return NULL;
    while (!atomic_load(&s->stop)) {
        pool_rest(s->pool);
        atomic_fetch_add(&s->rounds, 1);
    }
    pool_give_back(s->pool);
    return NULL;
}

/* Returns when it has the core; loops go on while it waits for it. */
static void start_sharer(struct sharer *s)
{
    assert_int_equal(pthread_create(&s->thread, NULL, share_main, s), 0);
    while (!atomic_load(&s->started))
        check_every_item_once(s->pool, 8);
    if (s->got)
        return;
    pthread_join(s->thread, NULL);
    fail_msg("the pool lent no core");
}

static int highest_of_many(struct pool *p, int items)
{
    _Atomic int highest = 0;

    pool_run(p, note_highest, &highest, items);
    return atomic_load(&highest);
}

static long wait_for_round(struct sharer *s, long seen)
{
    while (atomic_load(&s->rounds) == seen)
        sched_yield();
    return atomic_load(&s->rounds);
}

static void a_borrower_rests_while_its_core_is_recalled(void **state)
{
    struct pool *p = new_pool(2);
    struct sharer s = {.pool = p};

    (void)state;
    start_sharer(&s);
    for (int turn = 0; turn < 3; turn++) {
        pool_recall_at(p, clock_mono_ns() + (int64_t)3600 * 1000000000); /* not for an hour */
        wait_for_round(&s, atomic_load(&s.rounds));
        assert_int_equal(highest_of_many(p, 500), 0);
        pool_recall_at(p, 1);
        while (highest_of_many(p, 200) == 0) /* until the borrower has come to its rest */
            ;
        long at_rest = atomic_load(&s.rounds);

        check_every_item_once(p, 100);
        assert_int_equal(atomic_load(&s.rounds), at_rest);
        pool_recall_at(p, 0);
        wait_for_round(&s, at_rest);
        assert_int_equal(highest_of_many(p, 500), 0);
    }
    atomic_store(&s.stop, true);
    pthread_join(s.thread, NULL);
    pool_free(p);
}

static void a_core_recalled_at_once_is_there_for_the_next_loop(void **state)
{
    struct pool *p = new_pool(2);
    struct sharer s = {.pool = p};

    (void)state;
    pool_recall_now(p, INT64_MAX / 2); /* not lent: nothing to wait for */
    start_sharer(&s);
    for (int turn = 0; turn < 3; turn++) {
        pool_recall_now(p, INT64_MAX / 2);
        long at_rest = atomic_load(&s.rounds);

        check_every_item_once(p, 100);
        assert_int_equal(atomic_load(&s.rounds), at_rest);
        pool_recall_at(p, 0);
        wait_for_round(&s, at_rest);
    }
    atomic_store(&s.stop, true);
    pthread_join(s.thread, NULL);
    pool_free(p);
}

static void nobody_rests_while_no_core_is_lent(void **state)
{
    struct pool *p = new_pool(2);

    (void)state;
    pool_recall_at(p, 1);
    check_every_item_once(p, 20);
    pool_rest(p);
    pool_recall_at(p, 0);
    pool_free(p);
}

static void a_borrower_gets_its_own_cpus_back(void **state)
{
    struct pool *p = new_pool(2);
    int before[CPUS_MAX];
    int after[CPUS_MAX];
    int n = cpus_allowed(before);

    (void)state;
    assert_true(pool_borrow(p));
    pool_give_back(p);
    assert_int_equal(cpus_allowed(after), n);
    assert_memory_equal(before, after, (size_t)n * sizeof *before);
    pool_free(p);
}

static void a_pool_of_one_lends_nothing(void **state)
{
    struct pool *p = new_pool(1);

    (void)state;
    assert_false(pool_borrow(p));
    check_every_item_once(p, 9);
    pool_free(p);
}

static void the_default_size_is_what_the_process_may_use(void **state)
{
    int ids[CPUS_MAX];
    struct pool *p = new_pool(0);

    (void)state;
    assert_int_equal(pool_workers(p), cpus_usable());
    assert_in_range(pool_workers(p), 1, cpus_allowed(ids));
    pool_free(p);
}

static void an_absurd_size_is_refused(void **state)
{
    struct err e = {0};

    (void)state;
    assert_null(pool_new(CPUS_MAX + 1, &e));
    assert_int_equal(e.code, ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_runs_once_at_any_number_of_workers),
        cmocka_unit_test(near_loops_begin_with_a_part_of_their_own),
        cmocka_unit_test(thousands_of_short_loops_all_finish),
        cmocka_unit_test(a_loop_after_the_workers_fell_asleep_runs),
        cmocka_unit_test(what_a_worker_wrote_is_seen_after_the_loop),
        cmocka_unit_test(a_copy_writes_its_bytes_and_no_others_at_any_alignment),
        cmocka_unit_test(a_lent_core_is_left_alone_until_it_is_given_back),
        cmocka_unit_test(a_borrower_rests_while_its_core_is_recalled),
        cmocka_unit_test(a_core_recalled_at_once_is_there_for_the_next_loop),
        cmocka_unit_test(nobody_rests_while_no_core_is_lent),
        cmocka_unit_test(a_borrower_gets_its_own_cpus_back),
        cmocka_unit_test(a_pool_of_one_lends_nothing),
        cmocka_unit_test(the_default_size_is_what_the_process_may_use),
        cmocka_unit_test(an_absurd_size_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
