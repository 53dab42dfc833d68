/* What a thread asks of the kernel's scheduler. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <sys/resource.h>

#include "base/cpus.h"

static void the_cpus_worth_using_are_among_those_allowed(void **state)
{
    int ids[CPUS_MAX];
    int n = cpus_allowed(ids);

    (void)state;
    assert_in_range(cpus_usable(), 1, n);
    for (int i = 1; i < n; i++)
        assert_true(ids[i - 1] < ids[i]);
}

static void short_turns_change_neither_class_nor_priority(void **state)
{
    int policy = sched_getscheduler(0);
    int nice_before = getpriority(PRIO_PROCESS, 0);

    (void)state;
    cpus_short_turns(true);
    assert_int_equal(sched_getscheduler(0), policy);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), nice_before);
    cpus_short_turns(false);
    assert_int_equal(sched_getscheduler(0), policy);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), nice_before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpus_worth_using_are_among_those_allowed),
        cmocka_unit_test(short_turns_change_neither_class_nor_priority),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
