/* tests/crash/no_memory.c - a library to preload: lets one allocation of a running program fail.
 *
 * NO_MEMORY names a file of three 64-bit numbers, which the test maps too: armed (0: nothing
 * fails), how many allocations there were since, and which of them fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct control {
    _Atomic int64_t armed, count, fails_at;
};

static struct control *control;

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("NO_MEMORY");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd < 0 ? MAP_FAILED
                     : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd >= 0)
        close(fd);
    if (p != MAP_FAILED)
        control = p;
}

static int fails(void)
{
    if (!control || !control->armed || atomic_fetch_add(&control->count, 1) != control->fails_at)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return n && fails() ? NULL : __libc_realloc(p, n);
}

void *reallocarray(void *p, size_t n, size_t size)
{
    size_t all;

    if (__builtin_mul_overflow(n, size, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(p, all);
}
