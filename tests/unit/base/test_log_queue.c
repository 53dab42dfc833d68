#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"

/* Standard error is a pipe meanwhile; what cmocka says goes where it always goes. */
struct sink {
    int real, from;
    pthread_t reader;
    struct buf got;
};

static struct sink sink_open(void)
{
    struct sink s = {.real = dup(STDERR_FILENO)};
    struct err e = {0};
    int ends[2];

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    s.from = ends[0];
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    assert_int_equal(log_start(&e), 0);
    return s;
}

static void *read_on(void *arg)
{
    struct sink *s = arg;
    char block[4096];
    ssize_t n;

    while ((n = read(s->from, block, sizeof block)) > 0)
        buf_add(&s->got, block, (size_t)n);
    close(s->from);
    return NULL;
}

static void sink_read(struct sink *s)
{
    assert_int_equal(pthread_create(&s->reader, NULL, read_on, s), 0);
}

/* The text that came, to be released. The reader comes to an end where no writer is left. */
static const char *sink_close(struct sink *s)
{
    log_stop();
    dup2(s->real, STDERR_FILENO);
    close(s->real);
    pthread_join(s->reader, NULL);
    return buf_str(&s->got);
}

static int count(const char *text, const char *what)
{
    int n = 0;

    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

enum { FLOOD = 20000, THREADS = 4, LINES = 500 };

static void flood(void)
{
    for (int i = 0; i < FLOOD; i++)
        log_ev(LOG_INFO, "flood", "n=%d %0100d", i, 0);
}

/* ---- a reader that keeps up ---- */

static void a_line_is_there_when_the_call_returns(void **state)
{
    struct sink s = sink_open();
    char line[256] = "";

    (void)state;
    log_ev(LOG_INFO, "hello", "a=%d", 1);
    fcntl(s.from, F_SETFL, O_NONBLOCK);
    assert_true(read(s.from, line, sizeof line - 1) > 0);
    fcntl(s.from, F_SETFL, 0);
    sink_read(&s);
    sink_close(&s);
    assert_non_null(strstr(line, "INFO    hello a=1\n"));
    assert_int_equal(log_dropped(), 0);
    buf_release(&s.got);
}

static void *write_lines(void *arg)
{
    for (int i = 0; i < LINES; i++)
        log_ev(LOG_INFO, "thread", "<%s%0900d>", (const char *)arg, i);
    return NULL;
}

static void lines_of_several_threads_stay_whole(void **state)
{
    static const char *const names[THREADS] = {"a", "b", "c", "d"};
    struct sink s = sink_open();
    pthread_t threads[THREADS];
    const char *text;
    int whole = 0;

    (void)state;
    sink_read(&s);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, write_lines, (void *)(uintptr_t)names[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    text = sink_close(&s);
    for (const char *at = text; (at = strchr(at, '<')); at++)
        whole += at[902] == '>' && at[903] == '\n';
    assert_int_equal(whole + (int)log_dropped(), THREADS * LINES);
    assert_int_equal(count(text, "<"), whole);
    buf_release(&s.got);
}

/* ---- a reader that stalls ---- */

static void check_flood(const char *text)
{
    const char *told = strstr(text, "log_dropped lines=");
    int seen = 0, at = 0;

    assert_non_null(told);
    for (const char *line = text; (line = strstr(line, "flood n=")); line++, seen++) {
        int n = atoi(line + strlen("flood n="));

        assert_true(n >= at); /* in order */
        at = n + 1;
    }
    assert_int_equal(atoi(told + strlen("log_dropped lines=")), log_dropped());
    assert_int_equal(seen + (int)log_dropped(), FLOOD);
}

static void a_stalled_reader_stops_nobody_and_what_is_missing_is_counted(void **state)
{
    struct sink s = sink_open();
    const char *text;

    (void)state;
    flood(); /* nobody reads: this returns all the same */
    sink_read(&s);
    text = sink_close(&s);
    check_flood(text);
    assert_int_equal(count(text, "log_dropped"), 1);
    buf_release(&s.got);
}

static void *write_audit(void *arg)
{
    log_audit("{\"audit\":\"waited for\"}");
    atomic_store((_Atomic int *)arg, 1);
    return NULL;
}

static void audit_lines_are_never_dropped(void **state)
{
    struct sink s = sink_open();
    _Atomic int returned = 0;
    const char *text;
    pthread_t caller;

    (void)state;
    flood();
    log_audit_later("{\"audit\":\"later\"}"); /* the queue is full */
    assert_int_equal(pthread_create(&caller, NULL, write_audit, &returned), 0);
    usleep(50000);
    assert_int_equal(atomic_load(&returned), 0); /* it cannot have been written */
    sink_read(&s);
    pthread_join(caller, NULL); /* now it is: the call returns before anything stops */
    text = sink_close(&s);
    assert_int_equal(count(text, "{\"audit\":\"later\"}\n"), 1);
    assert_int_equal(count(text, "{\"audit\":\"waited for\"}\n"), 1);
    buf_release(&s.got);
}

static void a_stop_does_not_wait_for_a_reader_that_stalls(void **state)
{
    struct sink s = sink_open();
    _Atomic int returned = 0;
    const char *text;
    pthread_t caller;

    (void)state;
    flood();
    assert_int_equal(pthread_create(&caller, NULL, write_audit, &returned), 0);
    log_end_waits();
    pthread_join(caller, NULL);
    log_stop(); /* nobody reads */
    sink_read(&s);
    text = sink_close(&s); /* what was queued was not lost by that */
    assert_int_equal(count(text, "{\"audit\":\"waited for\"}\n"), 1);
    buf_release(&s.got);
}

/* ---- a sink with moods ---- */

static void a_sink_that_does_not_block_gets_whole_lines(void **state)
{
    struct sink s = sink_open();

    (void)state;
    fcntl(STDERR_FILENO, F_SETFL, O_WRONLY | O_NONBLOCK);
    flood();
    sink_read(&s);
    check_flood(sink_close(&s));
    buf_release(&s.got);
}

static void a_sink_that_is_gone_stops_nobody(void **state)
{
    struct sink s = sink_open();

    (void)state;
    close(s.from);
    flood();
    log_audit("{}");
    assert_int_equal(log_dropped(), 0);
    log_stop();
    dup2(s.real, STDERR_FILENO);
    close(s.real);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_there_when_the_call_returns),
        cmocka_unit_test(lines_of_several_threads_stay_whole),
        cmocka_unit_test(a_stalled_reader_stops_nobody_and_what_is_missing_is_counted),
        cmocka_unit_test(audit_lines_are_never_dropped),
        cmocka_unit_test(a_stop_does_not_wait_for_a_reader_that_stalls),
        cmocka_unit_test(a_sink_that_does_not_block_gets_whole_lines),
        cmocka_unit_test(a_sink_that_is_gone_stops_nobody),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
