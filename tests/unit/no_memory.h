/* tests/unit/no_memory.h - lets one allocation of a program fail. The program is linked with malloc
 * and its siblings wrapped (Makefile, test_no_memory). */
#ifndef TESTS_NO_MEMORY_H
#define TESTS_NO_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

static atomic_long until_failure = -1; /* allocations that still succeed; -1: all of them */
static atomic_bool lasting;            /* from the first failure on every one fails */
static atomic_bool met;                /* one failed */

static bool fails(void)
{
    bool now = until_failure == 0;

    if (until_failure > 0 || (now && !lasting))
        until_failure--;
    met = met || now;
    return now;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_reallocarray(void *p, size_t n, size_t size);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    return fails() ? NULL : __real_reallocarray(p, n, size);
}

char *__wrap_strdup(const char *s)
{
    return fails() ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n)
{
    return fails() ? NULL : __real_strndup(s, n);
}
#endif
