/* The database file: creation, versions, transactions, statements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "db/db.h"
#include "db/migrations.h"

struct place {
    char dir[64];
    char file[96];
};

static int make_place(void **state)
{
    struct place *p = calloc(1, sizeof *p);

    assert_non_null(p);
    strcpy(p->dir, "/tmp/cairn-db-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->file, sizeof p->file, "%s/cairn.db", p->dir);
    *state = p;
    return 0;
}

static int drop_place(void **state)
{
    struct place *p = *state;
    char side[128];

    unlink(p->file);
    snprintf(side, sizeof side, "%s-wal", p->file);
    unlink(side);
    snprintf(side, sizeof side, "%s-shm", p->file);
    unlink(side);
    assert_int_equal(rmdir(p->dir), 0);
    free(p);
    return 0;
}

static int64_t one_int(struct db *d, const char *sql)
{
    struct db_stmt q = {0};
    struct err e = {0};
    int64_t v;

    assert_int_equal(db_prepare(&q, d, sql, &e), 0);
    assert_int_equal(db_step(&q, &e), 1);
    v = db_int(&q, 0);
    db_finish(&q);
    return v;
}

static void a_new_file_has_the_newest_version_and_is_private(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    struct stat st;
    struct db *d = db_open(p->file, &e);

    assert_non_null(d);
    assert_int_equal(db_version(d), db_migration_count());
    assert_int_equal(stat(p->file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    db_close(d);
}

static void a_commit_is_durable_and_in_wal_mode(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    struct db *d = db_open(p->file, &e);
    struct db_stmt q = {0};

    assert_int_equal(one_int(d, "PRAGMA synchronous"), 2);
    assert_int_equal(db_prepare(&q, d, "PRAGMA journal_mode", &e), 0);
    assert_int_equal(db_step(&q, &e), 1);
    assert_string_equal(db_text(&q, 0), "wal");
    db_finish(&q);
    db_close(d);
}

static void a_second_open_keeps_rows_and_migrates_nothing(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    struct db *d = db_open(p->file, &e);

    assert_int_equal(db_begin(d, &e), 0);
    assert_int_equal(db_exec(d,
                             "INSERT INTO models (name, source, quantization, created_ms, "
                             "updated_ms, status) VALUES ('a', 'local', 'FP16', 1, 1, 'ready')",
                             &e),
                     0);
    assert_int_equal(db_commit(d, &e), 0);
    db_close(d);
    d = db_open(p->file, &e);
    assert_int_equal(one_int(d, "SELECT count(*) FROM models"), 1);
    db_close(d);
}

/* As another process sees it: somebody has the database open, so its -wal file stays. */
static bool looks_open(const char *file)
{
    pid_t child = fork();
    int status = 0;

    assert_true(child >= 0);
    if (child == 0) { /* the bytes that SQLite locks for readers */
        struct flock shared = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0x40000002, .l_len = 510};
        int fd = open(file, O_RDWR);

        _exit(fd >= 0 && fcntl(fd, F_GETLK, &shared) == 0 && shared.l_type != F_UNLCK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void a_second_connection_leaves_the_locks_of_the_first(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    struct db *first = db_open(p->file, &e);

    assert_non_null(first);
    assert_true(looks_open(p->file));
    struct db *second = db_open(p->file, &e);

    assert_non_null(second);
    assert_true(looks_open(p->file));
    db_close(second);
    assert_true(looks_open(p->file));
    db_close(first);
    assert_false(looks_open(p->file));
}

/* Texts that are used again, also inside each other, and more of them than are kept. */
static void statements_that_are_used_again_begin_anew(void **state)
{
    struct err e = {0};
    struct db *d = db_open(":memory:", &e);
    struct db_stmt outer = {0}, inner = {0};
    const char *twice = "SELECT ?1, ?2 UNION ALL SELECT ?2, ?1";

    (void)state;
    assert_non_null(d);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(db_prepare(&outer, d, twice, &e), 0);
        db_bind_int(&outer, round);
        db_bind_int(&outer, 7);
        assert_int_equal(db_step(&outer, &e), 1);
        assert_int_equal(db_prepare(&inner, d, twice, &e), 0);
        db_bind_text(&inner, "in");
        assert_int_equal(db_step(&inner, &e), 1); /* nothing of another use is bound */
        assert_string_equal(db_text(&inner, 0), "in");
        assert_true(db_is_null(&inner, 1));
        db_finish(&inner); /* in its middle */
        assert_int_equal(db_step(&outer, &e), 1);
        assert_int_equal(db_int(&outer, 1), round);
        assert_int_equal(db_step(&outer, &e), 0);
        db_finish(&outer);
        for (int i = 0; i < 100; i++) {
            char sql[32];

            snprintf(sql, sizeof sql, "SELECT %d", i);
            assert_int_equal(one_int(d, sql), i);
        }
    }
    db_close(d);
}

static void a_kept_statement_sees_a_changed_schema_and_a_pragma_its_change(void **state)
{
    struct err e = {0};
    struct db *d = db_open(":memory:", &e);

    (void)state;
    assert_int_equal(db_exec(d, "CREATE TABLE t (a)", &e), 0);
    assert_int_equal(db_exec(d, "INSERT INTO t VALUES (1)", &e), 0);
    assert_int_equal(one_int(d, "SELECT * FROM t"), 1);
    assert_int_equal(db_exec(d, "DROP TABLE t", &e), 0);
    assert_int_equal(db_exec(d, "CREATE TABLE t (b, a)", &e), 0);
    assert_int_equal(db_exec(d, "INSERT INTO t VALUES (1)", &e), -1); /* two columns now */
    assert_int_equal(db_exec(d, "INSERT INTO t VALUES (5, 6)", &e), 0);
    assert_int_equal(one_int(d, "SELECT * FROM t"), 5);
    assert_int_equal(one_int(d, "PRAGMA synchronous"), 2);
    assert_int_equal(db_exec(d, "PRAGMA synchronous=NORMAL", &e), 0);
    assert_int_equal(one_int(d, "PRAGMA synchronous"), 1);
    db_close(d);
}

static void a_newer_file_is_refused_with_both_versions(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    struct db *d = db_open(p->file, &e);

    assert_int_equal(db_exec(d, "PRAGMA user_version = 999", &e), 0);
    db_close(d);
    assert_null(db_open(p->file, &e));
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "999"));
    assert_non_null(strstr(e.msg, "newer program"));
}

static void a_file_that_is_no_database_is_refused(void **state)
{
    struct place *p = *state;
    struct err e = {0};
    FILE *f = fopen(p->file, "w");

    for (int i = 0; i < 200; i++)
        fputs("this is a text file, ", f);
    fclose(f);
    assert_null(db_open(p->file, &e));
    assert_int_equal(e.code, ERR_FORMAT);
}

/* Permissions do not bind root, so root tries it as somebody else. */
static void refused_to_this_user(const struct place *p, mode_t mode)
{
    struct err e = {0};
    uid_t me = geteuid();

    assert_int_equal(chmod(p->dir, 0755), 0);
    assert_int_equal(chmod(p->file, mode), 0);
    if (me == 0)
        assert_int_equal(seteuid(65534), 0);
    assert_null(db_open(p->file, &e));
    if (me == 0)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(e.code, ERR_IO);
    assert_non_null(strstr(e.msg, p->file));
    assert_non_null(strstr(e.msg, "run as its owner"));
}

static void a_file_that_this_user_may_not_write_is_refused_by_name(void **state)
{
    const struct place *p = *state;
    struct err e = {0};

    db_close(db_open(p->file, &e));
    refused_to_this_user(p, 0444);
    refused_to_this_user(p, 0);
    assert_int_equal(chmod(p->file, 0600), 0);
}

static void an_aborted_transaction_leaves_nothing(void **state)
{
    struct err e = {0};
    struct db *d = db_open(":memory:", &e);

    (void)state;
    assert_int_equal(db_begin(d, &e), 0);
    assert_int_equal(db_exec(d, "CREATE TABLE t (x)", &e), 0);
    db_abort(d);
    assert_int_equal(one_int(d, "SELECT count(*) FROM sqlite_master WHERE name = 't'"), 0);
    assert_int_equal(db_begin(d, &e), 0); /* the lock was given back */
    assert_int_equal(db_commit(d, &e), 0);
    db_close(d);
}

/* Two rows of `kept`: the number and `second`. */
static int add_two(struct db *d, int64_t first, int64_t second, struct err *e)
{
    const int64_t rows[] = {first, second};
    int rc = db_begin(d, e);

    if (rc < 0)
        return -1;
    for (int i = 0; i < 2 && rc == 0; i++) {
        struct db_stmt q = {0};

        rc = db_prepare(&q, d, "INSERT INTO kept VALUES (?)", e);
        if (rc == 0) {
            db_bind_int(&q, rows[i]);
            rc = db_step(&q, e);
        }
        db_finish(&q);
    }
    return db_end(d, rc, e);
}

static void a_transaction_that_breaks_a_rule_is_undone_and_lets_others_in(void **state)
{
    struct err e = {0};
    struct db *d = db_open(":memory:", &e);

    (void)state;
    assert_non_null(d);
    assert_int_equal(db_exec(d, "CREATE TABLE kept (n INTEGER UNIQUE)", &e), 0);
    assert_int_equal(add_two(d, 1, 2, &e), 0);
    assert_int_equal(add_two(d, 3, 2, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    e = (struct err){0};
    assert_int_equal(db_run(d, &e, "INSERT INTO kept VALUES (?)", "i", (int64_t)4), 0);
    assert_int_equal(one_int(d, "SELECT sum(n) FROM kept"), 1 + 2 + 4);
    db_close(d);
}

static void a_full_database_is_a_matter_of_space_and_can_still_be_read(void **state)
{
    struct err e = {0};
    struct db *d = db_open(":memory:", &e);
    char text[65536];
    int rc = 0;

    (void)state;
    assert_non_null(d);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(db_exec(d, "CREATE TABLE big (t TEXT)", &e), 0);
    assert_true(one_int(d, "PRAGMA max_page_count = 200") >= 200);
    for (int i = 0; i < 1000 && rc == 0; i++)
        rc = db_run(d, &e, "INSERT INTO big VALUES (?)", "t", text);
    assert_int_equal(rc, -1);
    assert_int_equal(e.code, ERR_SPACE);
    assert_true(one_int(d, "SELECT count(*) FROM big") > 0);
    db_close(d);
}

static void text_null_and_numbers_come_back_as_bound(void **state)
{
    struct err e = {0};
    struct db *d = db_open(":memory:", &e);
    struct db_stmt q = {0};

    (void)state;
    assert_int_equal(db_prepare(&q, d, "SELECT ?, ?, ?", &e), 0);
    db_bind_text(&q, "it's; DROP TABLE models --");
    db_bind_text(&q, NULL);
    db_bind_int(&q, INT64_MIN);
    assert_int_equal(db_step(&q, &e), 1);
    assert_string_equal(db_text(&q, 0), "it's; DROP TABLE models --");
    assert_true(db_is_null(&q, 1));
    assert_int_equal(db_int(&q, 2), INT64_MIN);
    assert_int_equal(db_step(&q, &e), 0);
    db_finish(&q);
    db_close(d);
}

static void a_bind_too_many_fails_the_step(void **state)
{
    struct err e = {0};
    struct db *d = db_open(":memory:", &e);
    struct db_stmt q = {0};

    (void)state;
    assert_int_equal(db_prepare(&q, d, "SELECT ?", &e), 0);
    db_bind_int(&q, 1);
    db_bind_int(&q, 2);
    assert_int_equal(db_step(&q, &e), -1);
    db_finish(&q);
    db_close(d);
}

static void *add_rows(void *arg)
{
    struct db *d = arg;
    struct err e = {0};
    int rc = 0;

    for (int i = 0; i < 50 && rc == 0; i++) {
        rc = db_begin(d, &e);
        if (rc == 0 && (rc = db_exec(d, "INSERT INTO t SELECT count(*) FROM t", &e)) < 0)
            db_abort(d);
        else if (rc == 0)
            rc = db_commit(d, &e);
    }
    return rc == 0 ? NULL : arg;
}

static void transactions_of_two_threads_do_not_mix(void **state)
{
    struct err e = {0};
    struct db *d = db_open(":memory:", &e);
    pthread_t a, b;
    void *bad;

    (void)state;
    assert_int_equal(db_exec(d, "CREATE TABLE t (x UNIQUE)", &e), 0);
    assert_int_equal(pthread_create(&a, NULL, add_rows, d), 0);
    assert_int_equal(pthread_create(&b, NULL, add_rows, d), 0);
    pthread_join(a, &bad);
    assert_null(bad);
    pthread_join(b, &bad);
    assert_null(bad);
    assert_int_equal(one_int(d, "SELECT count(*) FROM t"), 100);
    db_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_new_file_has_the_newest_version_and_is_private,
                                        make_place, drop_place),
        cmocka_unit_test_setup_teardown(a_commit_is_durable_and_in_wal_mode, make_place,
                                        drop_place),
        cmocka_unit_test_setup_teardown(a_second_open_keeps_rows_and_migrates_nothing, make_place,
                                        drop_place),
        cmocka_unit_test_setup_teardown(a_second_connection_leaves_the_locks_of_the_first,
                                        make_place, drop_place),
        cmocka_unit_test(statements_that_are_used_again_begin_anew),
        cmocka_unit_test(a_kept_statement_sees_a_changed_schema_and_a_pragma_its_change),
        cmocka_unit_test_setup_teardown(a_newer_file_is_refused_with_both_versions, make_place,
                                        drop_place),
        cmocka_unit_test_setup_teardown(a_file_that_is_no_database_is_refused, make_place,
                                        drop_place),
        cmocka_unit_test_setup_teardown(a_file_that_this_user_may_not_write_is_refused_by_name,
                                        make_place, drop_place),
        cmocka_unit_test(an_aborted_transaction_leaves_nothing),
        cmocka_unit_test(a_transaction_that_breaks_a_rule_is_undone_and_lets_others_in),
        cmocka_unit_test(a_full_database_is_a_matter_of_space_and_can_still_be_read),
        cmocka_unit_test(text_null_and_numbers_come_back_as_bound),
        cmocka_unit_test(a_bind_too_many_fails_the_step),
        cmocka_unit_test(transactions_of_two_threads_do_not_mix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
