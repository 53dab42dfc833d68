#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/procinfo.h"

static void a_descriptor_counts_while_it_is_open(void **state)
{
    struct procinfo before, with, after;

    (void)state;
    procinfo_read(&before);
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    procinfo_read(&with);
    close(fd);
    procinfo_read(&after);
    assert_true(before.open_fds >= 3);
    assert_int_equal(with.open_fds, before.open_fds + 1);
    assert_int_equal(after.open_fds, before.open_fds);
}

static void *look(void *arg)
{
    procinfo_read(arg);
    return NULL;
}

static void a_thread_counts_while_it_runs(void **state)
{
    struct procinfo one, two;
    pthread_t t;

    (void)state;
    procinfo_read(&one);
    assert_int_equal(pthread_create(&t, NULL, look, &two), 0);
    pthread_join(t, NULL);
    assert_int_equal(two.threads, one.threads + 1);
    assert_true(one.resident_bytes > 0 && one.virtual_bytes >= one.resident_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_descriptor_counts_while_it_is_open),
        cmocka_unit_test(a_thread_counts_while_it_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
