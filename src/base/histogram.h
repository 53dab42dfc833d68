/* base/histogram.h - how often values fell into buckets: what a long run looks like, in a few
 * numbers.
 *
 * Bucket i counts values at most bounds[i] and above bounds[i - 1]; the last one counts the rest.
 * Start with HISTOGRAM(bounds) of a static rising array. Not safe to share between threads. */
#ifndef BASE_HISTOGRAM_H
#define BASE_HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_BOUNDS_MAX = 24 };

struct histogram {
    const double *bounds; /* borrowed, static */
    int n_bounds;
    double sum;
    uint64_t counts[HISTOGRAM_BOUNDS_MAX + 1];
};

#define HISTOGRAM(array)                                                       \
    {                                                                          \
        .bounds = (array), .n_bounds = (int)(sizeof(array) / sizeof(*(array))) \
    }

void histogram_add(struct histogram *h, double value); /* NaN is not counted */
uint64_t histogram_total(const struct histogram *h);
#endif
