#include "base/nomem.h"

#include <stdlib.h>

/* A hook of jansson takes no argument that could lead to a struct of ours. */
static _Thread_local struct {
    bool noted;
    void *aside; /* given back to the allocator when it has nothing else; or NULL */
    size_t bytes;
} memory;

void nomem_note(void)
{
    memory.noted = true;
}

void nomem_forget(void)
{
    memory.noted = false;
}

bool nomem_noted(void)
{
    return memory.noted;
}

bool nomem_set_aside(size_t bytes)
{
    if (memory.aside && memory.bytes < bytes)
        nomem_let_go();
    if (!memory.aside)
        memory.aside = malloc(bytes);
    if (memory.aside && memory.bytes < bytes)
        memory.bytes = bytes;
    return memory.aside && !memory.noted;
}

void nomem_let_go(void)
{
    free(memory.aside);
    memory.aside = NULL;
    memory.bytes = 0;
}

/* True once: there is memory again, if so much is enough. */
static bool give_up(size_t n)
{
    if (n > memory.bytes)
        return false;
    nomem_let_go();
    return true;
}

void *nomem_malloc(size_t n)
{
    return nomem_realloc(NULL, n ? n : 1);
}

void *nomem_realloc(void *p, size_t n)
{
    void *got = realloc(p, n);

    if (!got && give_up(n))
        got = realloc(p, n);
    if (!got)
        nomem_note();
    return got;
}
