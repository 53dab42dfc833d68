#include "base/histogram.h"

#include <math.h>

void histogram_add(struct histogram *h, double value)
{
    int i = 0;

    if (isnan(value))
        return;
    while (i < h->n_bounds && value > h->bounds[i])
        i++;
    h->counts[i]++;
    h->sum += value;
}

uint64_t histogram_total(const struct histogram *h)
{
    uint64_t n = 0;

    for (int i = 0; i <= h->n_bounds; i++)
        n += h->counts[i];
    return n;
}
