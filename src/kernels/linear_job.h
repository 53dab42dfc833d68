/* kernels/linear_job.h - one call of linear(), as the tiles of the vector variants pass it on. */
#ifndef KERNELS_LINEAR_JOB_H
#define KERNELS_LINEAR_JOB_H

#include "kernels/kernels.h"

enum { LINE = 64 }; /* bytes of a cache line */

struct linear_job {
    float *y;
    const float *x;
    const void *px; /* rows as linear_x_prepare wrote them, or NULL */
    const struct kern_matrix *w;
    const void *bias;
    struct kern_ahead *later;
    ptrdiff_t ldy, ldx;
    int m, n1;
    bool accumulate;
};

/* Outputs [n0, b->n1) where k is at most 32 (linear_short_bf16.c). */
void linear_short_bf16(const struct linear_job *b, int n0);

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
static inline size_t prefetch_distance(size_t row_bytes, int out, size_t bytes)
{
    size_t tile = (size_t)out * row_bytes;

    return tile == 0 ? 0 : (bytes + tile - 1) / tile * tile;
}

/* From row j of W to what is asked for while it is multiplied: rows `distance` bytes on, past the
 * end those that are read after it (NULL: not known). */
static inline size_t prefetch_from(const struct linear_job *b, int j, size_t row_bytes,
                                   size_t distance, const void *after)
{
    size_t at = (size_t)j * row_bytes, end = (size_t)b->n1 * row_bytes;

    if (at + distance < end || !after)
        return distance;
    return (uintptr_t)after + at + distance - end - ((uintptr_t)b->w->w + at);
}

/* ---- blocks of k: a panel holds elements [k0, k0 + k) of some rows of W ---- */

struct k_block {
    int k0, k;
    bool first, last; /* lanes start at zero; lanes are summed and put into y */
};

/* Equal blocks of at most `most` elements, multiples of `step`. */
static inline int k_block_length(int k, int most, int step)
{
    return (tile_rows(k, most) + step - 1) / step * step;
}

static inline struct k_block k_block_at(int k0, int k, int block)
{
    int n = k - k0 < block ? k - k0 : block;

    return (struct k_block){.k0 = k0, .k = n, .first = k0 == 0, .last = k0 + n == k};
}

static inline struct k_block k_block_first(int k, int block)
{
    return k_block_at(0, k, block);
}

/* An empty block (k = 0) after the last one. */
static inline struct k_block k_block_next(const struct k_block *kb, int k, int block)
{
    struct k_block none = {0};

    return kb->last ? none : k_block_at(kb->k0 + kb->k, k, block);
}

/* ---- what somebody reads after this product ---- */

/* The next lines, `most` at most; *n of them follow where the result points. */
static inline const char *later_lines(struct kern_ahead *a, int most, int *n)
{
    const char *at = a->at;
    ptrdiff_t left = (a->end - at + LINE - 1) / LINE;

    *n = left < most ? (int)left : most;
    a->at = left <= most ? a->end : at + (ptrdiff_t)most * LINE;
    if (a->at == a->end && a->next < a->n) {
        const struct kern_range *r = &a->ranges[a->next];

        a->next++;
        a->at = (const char *)r->from + a->offset;
        a->end = a->at + r->bytes;
    }
    return at;
}

/* ---- the weights of the next panel, prefetched line by line while the tiles of this one run ----
 */

struct ahead {
    const char *row; /* the row being fetched */
    size_t stride;   /* bytes from row to row */
    size_t bytes;    /* of one row that the panel takes */
    size_t at;       /* the next line of the row */
    int rows;        /* still to fetch, this one included */
    int lines;       /* a tile */
};

/* What follows the block kb of rows [j, j + panel): the next block of these rows, or the first one
 * of the next rows. `tiles` calls of ahead_fetch take all of it. */
static inline struct ahead ahead_of(const struct linear_job *b, int j, int panel,
                                    const struct k_block *kb, int block, int tiles)
{
    size_t size = kern_dtype_bytes(b->w->dtype);
    int row = kb->last ? j + panel : j;
    struct k_block n = kb->last ? k_block_first(b->w->k, block) : k_block_next(kb, b->w->k, block);
    struct ahead a = {.stride = (size_t)b->w->k * size, .bytes = (size_t)n.k * size};

    a.rows = b->n1 - row < panel ? b->n1 - row : panel;
    if (a.rows > 0)
        a.row = weight_row(b, row, size) + (size_t)n.k0 * size;
    a.lines = (int)((a.bytes + LINE - 1) / LINE) * panel / tiles + 1;
    return a;
}

static inline void ahead_fetch(struct ahead *a)
{
    for (int i = 0; i < a->lines && a->rows > 0; i++) {
        __builtin_prefetch(a->row + a->at, 0, 2); /* into the second cache */
        a->at += LINE;
        if (a->at >= a->bytes) {
            a->at = 0;
            a->row += a->stride;
            a->rows--;
        }
    }
}
#endif
