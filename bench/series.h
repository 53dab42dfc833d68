/* bench/series.h - samples of one figure, and their median. */
#ifndef BENCH_SERIES_H
#define BENCH_SERIES_H

#include <stdlib.h>

enum { MAX_SAMPLES = 500 };

struct series {
    double v[MAX_SAMPLES];
    int n;
};

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the samples, smallest first. */
static inline double median(struct series *s)
{
    qsort(s->v, (size_t)s->n, sizeof *s->v, compare_doubles);
    return s->v[s->n / 2];
}
#endif
