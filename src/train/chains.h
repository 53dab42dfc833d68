/* train/chains.h - inside the room: one operation of the backward pass that is made of chains
 * (kernels/backward.h), cut into blocks of the results.
 *
 * A target is a matrix C that is added to; its links are chains on C that follow one another. Items
 * are blocks of targets: independent, so any order and any number of threads gives the same bits.
 */
#ifndef TRAIN_CHAINS_H
#define TRAIN_CHAINS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/backward.h"

enum { CHAIN_LINKS = 6, CHAIN_TARGETS = 16 };

struct chain_link {
    const float *a;
    ptrdiff_t a_row, a_step;
    const void *b;
    enum kern_dtype b_dtype;
    ptrdiff_t ldb;
    int steps;
    bool pairs;      /* numerics of the weights' products (kernels/backward.h, chain_pairs) */
    const int *ends; /* of its segments, or NULL */
};

struct chain_target {
    float *c;
    ptrdiff_t ldc;
    int m, n;
    bool clear;   /* C starts from zero */
    float factor; /* C is multiplied by it at the end; 1: no */
    struct chain_link link[CHAIN_LINKS];
    int n_links;
    int rows, cols; /* of a block */
};

struct chains {
    struct chain_target target[CHAIN_TARGETS];
    int n;
};

/* The new target, blocks as suit its shape. */
struct chain_target *chains_add(struct chains *s, float *c, ptrdiff_t ldc, int m, int n);
/* dX += dY W: W [out,in] in its own dtype. */
void chain_times(struct chain_target *t, const float *dy, ptrdiff_t ldy, const void *w,
                 enum kern_dtype dtype, ptrdiff_t ldw, int out);
/* dW += dY^T X over `rows` rows. */
void chain_outer(struct chain_target *t, const float *dy, ptrdiff_t ldy, const float *x,
                 ptrdiff_t ldx, int rows);
/* The last link runs as a product of weights: in pairs where the kernels have such a chain. ends:
 * where the sequences of its rows end, so that pairs do not depend on what else is in the call. */
void chain_of_weights(struct chain_target *t, const struct kernels_back *k, enum kern_dtype weights,
                      const int *ends);
/* Bias: sums of the columns of dY over `rows` rows, as a target of one column. */
void chain_columns(struct chain_target *t, const float *dy, ptrdiff_t ldy, int rows);

/* Multiply-adds of all targets. */
long chains_products(const struct chains *s);
/* Smaller blocks, so that an item has at most about this many multiply-adds. */
void chains_limit(struct chains *s, long products);

int chains_items(const struct chains *s);
void chains_item(const struct chains *s, const struct kernels_back *k, int item, void *scratch);
#endif
