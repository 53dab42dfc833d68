/* base/stopping.h - a server that is being stopped, as long work looks at it now and then. */
#ifndef BASE_STOPPING_H
#define BASE_STOPPING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* 0, or -1 with ERR_CANCELLED once *stop is true. NULL: never. Any thread. */
static inline int stopping_check(const atomic_bool *stop, struct err *e)
{
    return stop && atomic_load(stop) ? err_set(e, ERR_CANCELLED, "the server is being stopped") : 0;
}
#endif
