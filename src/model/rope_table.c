#include "model/rope_table.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/err.h"
#include "model/config.h"

enum { FIRST_CAPACITY = 1024 };

/* llama3: long waves are stretched by `factor`, short ones stay, those between are blended. */
static double scale_llama3(const struct rope_config *c, double inv)
{
    double wave = 2 * M_PI / inv;
    double blend;

    if (wave < c->original_positions / c->high_freq_factor)
        return inv;
    if (wave > c->original_positions / c->low_freq_factor)
        return inv / c->factor;
    blend = (c->original_positions / wave - c->low_freq_factor) /
            (c->high_freq_factor - c->low_freq_factor);
    return (1 - blend) * inv / c->factor + blend * inv;
}

double rope_inv_frequency(const struct rope_config *c, int head_dim, int j)
{
    double inv = pow(c->theta, -2.0 * j / head_dim);

    return c->type == ROPE_LLAMA3 ? scale_llama3(c, inv) : inv;
}

int rope_table_init(struct rope_table *t, const struct rope_config *c, int head_dim, struct err *e)
{
    *t = (struct rope_table){.half = head_dim / 2};
    t->inv = malloc((size_t)t->half * sizeof *t->inv);
    if (!t->inv)
        return err_nomem(e);
    for (int j = 0; j < t->half; j++)
        t->inv[j] = rope_inv_frequency(c, head_dim, j);
    return 0;
}

void rope_table_release(struct rope_table *t)
{
    free(t->inv);
    free(t->cos);
    free(t->sin);
    *t = (struct rope_table){0};
}

static int resize(struct rope_table *t, int capacity, struct err *e)
{
    size_t bytes = (size_t)capacity * (size_t)t->half * sizeof(float);
    float *cos_new = realloc(t->cos, bytes);
    float *sin_new;

    if (!cos_new)
        return err_nomem(e);
    t->cos = cos_new;
    sin_new = realloc(t->sin, bytes);
    if (!sin_new)
        return err_nomem(e);
    t->sin = sin_new;
    t->capacity = capacity;
    return 0;
}

int rope_table_grow(struct rope_table *t, int n, struct err *e)
{
    int capacity = t->capacity ? t->capacity : FIRST_CAPACITY;

    if (n <= t->n)
        return 0;
    while (capacity < n)
        capacity *= 2;
    if (capacity > t->capacity && resize(t, capacity, e) < 0)
        return -1;
    for (; t->n < n; t->n++) {
        size_t row = (size_t)t->n * (size_t)t->half;

        for (int j = 0; j < t->half; j++) {
            double angle = t->n * t->inv[j];

            t->cos[row + (size_t)j] = (float)cos(angle);
            t->sin[row + (size_t)j] = (float)sin(angle);
        }
    }
    return 0;
}
