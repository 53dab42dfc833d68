#include "engine/served.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct served *served_new(const struct served *from)
{
    struct served *s = malloc(sizeof *s);

    if (!s)
        return NULL;
    served_fill(s, from);
    atomic_init(&s->refs, 1);
    return s;
}

/* Not the count: others may be changing it. */
void served_fill(struct served *to, const struct served *from)
{
    memcpy(to->name, from->name, sizeof *to - offsetof(struct served, name));
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
