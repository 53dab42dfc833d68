/* kernels/linear_job.h - one call of linear(), as the tiles of the vector variants pass it on. */
#ifndef KERNELS_LINEAR_JOB_H
#define KERNELS_LINEAR_JOB_H

#include "kernels/kernels.h"

struct linear_job {
    float *y;
    const float *x;
    const void *px; /* rows as linear_x_prepare wrote them, or NULL */
    const struct kern_matrix *w;
    const void *bias;
    ptrdiff_t ldy, ldx;
    int m, n1;
    bool accumulate;
};

/* The rows of the next tile when `left` remain: at most `most`, and no tile much smaller than
 * another. */
static inline int tile_rows(int left, int most)
{
    int tiles = (left + most - 1) / most;

    return (left + tiles - 1) / tiles;
}

/* The row of W that output j of a tile reads: past the end, the last one again. */
static inline const char *weight_row(const struct linear_job *b, int j, size_t element)
{
    int row = j < b->n1 ? j : b->n1 - 1;

    return (const char *)b->w->w + (size_t)row * (size_t)b->w->k * element;
}

/* How far ahead of a tile's rows to prefetch: whole tiles of `out` rows, about `bytes` of them. */
static inline size_t prefetch_distance(const struct kern_matrix *w, size_t element, int out,
                                       size_t bytes)
{
    size_t tile = (size_t)out * (size_t)w->k * element;

    return tile == 0 ? 0 : (bytes + tile - 1) / tile * tile;
}
#endif
