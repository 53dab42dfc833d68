/* store/ring.h - blocks handed from a helper thread to the calling thread, in order.
 *
 * The helper fills, the caller drains; either may fail, which wakes and ends the other. The helper
 * may go on reading a block after ring_filled (to write it to disk) until it asks for the next one:
 * the caller only reads it too.
 *
 * The helper runs on the CPUs that the caller may use, also when those change: a caller that pins
 * itself to a lent core takes the helper with it, one that is set free again lets it spread.
 *
 * A caller and a helper that have one CPU between them gain nothing from two passes over a block:
 * the helper may then leave `bytes` NULL and the filling to the caller, who is done with the block
 * at ring_drained; ring_wait_drained tells.
 *
 * Order. Caller: ring_open, ring_start, ring_drain and ring_drained for each block, ring_join,
 * ring_close. Helper, in the function given to ring_start: ring_fill and ring_filled. */
#ifndef STORE_RING_H
#define STORE_RING_H

#include <stdbool.h>
#include <stddef.h>

struct err;
struct ring;

struct ring_block {
    unsigned char *own;   /* page-aligned memory of the ring, block_bytes long */
    unsigned char *bytes; /* what the caller gets: `own`, where the helper put it, or NULL */
    size_t offset;
    size_t n;
};

struct ring *ring_open(int n_blocks, size_t block_bytes, struct err *e); /* owned; NULL with *e */
void ring_close(struct ring *r); /* after ring_join, or without ring_start; NULL is allowed */

/* Runs fn(arg, r, &err) in the helper thread, all signals but SIGBUS blocked. -1 from it fails the
 * ring. */
typedef int ring_fn(void *arg, struct ring *r, struct err *e);
int ring_start(struct ring *r, ring_fn *fn, void *arg, struct err *e);

struct ring_block *ring_fill(struct ring *r); /* helper; NULL: the caller gave up */
void ring_filled(struct ring *r);
bool ring_one_cpu(
    struct ring *r); /* helper: whether the caller has one CPU, and so the helper too */
/* Helper: waits until the caller is done with the first n blocks. False: it has given up. */
bool ring_wait_drained(struct ring *r, unsigned n);
struct ring_block *ring_drain(struct ring *r); /* caller; NULL: the helper is done, or failed */
void ring_drained(struct ring *r);
void ring_give_up(struct ring *r); /* caller: the helper's next ring_fill is NULL */

/* Waits for the helper; -1 with its error when it failed. */
int ring_join(struct ring *r, struct err *e);
#endif
