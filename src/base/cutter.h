/* base/cutter.h - one block of memory, cut into aligned pieces by a function that runs twice.
 *
 * With a zeroed cutter it only adds up: every piece is NULL, `used` is the size to take. With
 * `base` set it hands out. So sizes are written once. */
#ifndef BASE_CUTTER_H
#define BASE_CUTTER_H

#include <stddef.h>

enum { CUTTER_ALIGN = 128 };

struct cutter {
    char *base; /* aligned to CUTTER_ALIGN, or NULL */
    size_t used;
};

/* n pieces of `size` bytes side by side; the caller has bounded the product. */
static inline void *cutter_take(struct cutter *c, size_t n, size_t size)
{
    void *at = c->base ? c->base + c->used : NULL;

    c->used += (n * size + CUTTER_ALIGN - 1) / CUTTER_ALIGN * CUTTER_ALIGN;
    return at;
}

/* [rows,width] f32, n times. */
static inline float *cutter_rows(struct cutter *c, int n, int rows, int width)
{
    return cutter_take(c, (size_t)n * (size_t)rows * (size_t)width, sizeof(float));
}
#endif
