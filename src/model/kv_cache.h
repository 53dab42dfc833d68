/* model/kv_cache.h - keys and values of running sequences, in blocks of 64 positions.
 *
 * A block holds, for every attention layer and KV head, one K page [head_dim][64] (transposed: keys
 * lie in vector lanes) and one V page [64][head_dim], float32. Memory for the whole budget is
 * reserved as addresses only; a block's pages are touched before or when it is first used and kept
 * for reuse. A sequence is a table of blocks plus, for LFM2, the convolution states [conv
 * layers][K-1][H] (float32).
 *
 * Admission: kv_seq_reserve promises blocks to a sequence, so that later steps cannot fail for
 * memory. Full blocks are immutable and counted: kv_seq_fork shares them and copies the partial
 * one.
 *
 * One thread (the engine's) makes all calls; during a forward step workers write the pages. A cache
 * and its sequences belong to one image's content and are dropped with it: nothing here compares
 * weights. */
#ifndef MODEL_KV_CACHE_H
#define MODEL_KV_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct kv_cache;
struct kv_seq;
struct model_config;
struct pool;

/* Which layers have pages of their own. */
enum kv_layers {
    KV_ALL_LAYERS,
    KV_ONE_LAYER, /* all use the same pages: for who takes every position through a layer before the
                     next layer, and generates nothing */
};

/* Owned, or NULL with ERR_SPACE (the budget holds no block) or ERR_NOMEM. The config is read, not
 * kept. */
struct kv_cache *kv_cache_new(const struct model_config *c, enum kv_layers layers,
                              size_t budget_bytes, struct err *e);
void kv_cache_free(struct kv_cache *kv); /* NULL is allowed; every sequence has been freed */

size_t kv_block_bytes(const struct model_config *c, enum kv_layers layers); /* of such a cache */
size_t kv_cache_block_bytes(const struct kv_cache *kv);
int kv_cache_blocks(const struct kv_cache *kv);      /* that the budget holds */
int kv_cache_blocks_used(const struct kv_cache *kv); /* held by sequences */
/* Positions that can still be promised to new sequences: 64 x (blocks - used - promised). */
int64_t kv_cache_free_positions(const struct kv_cache *kv);
/* Positions of one sequence that the empty cache could hold. */
int64_t kv_cache_max_positions(const struct kv_cache *kv);

/* Memory that is touched for the first time may cost a virtual machine 2 ms a megabyte, and
 * sequences that began together need their next blocks in one step. Touches a piece (2 MiB at most
 * a worker) of the blocks that `ahead` takings of one block would come to use for the first time.
 * False: all of them were touched before. Between steps. */
bool kv_cache_touch_ahead(struct kv_cache *kv, struct pool *pool, int ahead);

struct kv_seq *kv_seq_new(struct kv_cache *kv, struct err *e);
void kv_seq_free(struct kv_seq *s);        /* NULL is allowed; gives back blocks and promises */
int kv_seq_length(const struct kv_seq *s); /* positions stored: the next token's position */

/* Promises that the sequence may grow to `positions` in all. 0, or -1 with ERR_SPACE and nothing
 * changed. Growing past a promise is allowed while blocks are free. */
int kv_seq_reserve(struct kv_seq *s, int positions, struct err *e);

/* A new sequence that starts as the first `positions` of s do. For models with convolution layers
 * `positions` must be the length of s (their state exists only there): ERR_ARG. ERR_SPACE,
 * ERR_NOMEM. */
struct kv_seq *kv_seq_fork(const struct kv_seq *s, int positions, struct err *e);

/* ---- for forward.c ---- */
/* Makes blocks for n more positions (all or none; the length does not change yet). ERR_SPACE. */
int kv_seq_extend(struct kv_seq *s, int n, struct err *e);
void kv_seq_trim(struct kv_seq *s); /* gives back what extend took and the step did not use */
void kv_seq_advance(struct kv_seq *s, int n); /* after the step: n positions are stored */
/* Pages of block b, attention layer `layer`, KV head `head`. */
float *kv_seq_k_page(const struct kv_seq *s, int block, int layer, int head);
float *kv_seq_v_page(const struct kv_seq *s, int block, int layer, int head);
float *kv_seq_conv_state(const struct kv_seq *s, int conv_layer); /* [K-1,H] */
#endif
