#include "engine/served.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct served *served_new(const struct served *from)
{
    struct served *s = malloc(sizeof *s);

    if (!s)
        return NULL;
    /* Not the count: others may be changing it. */
    memcpy(s->name, from->name, sizeof *s - offsetof(struct served, name));
    atomic_init(&s->refs, 1);
    return s;
}

struct served *served_ref(struct served *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void served_unref(struct served *s)
{
    if (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1)
        free(s);
}
