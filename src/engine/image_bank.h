/* engine/image_bank.h - the memory of images: page-aligned, huge pages advised, every page touched.
 *
 * Fresh memory costs 0.4 to 2.4 s a gigabyte, touched memory 0.04. So from the first attach or swap
 * on (image_bank_keep_spare) the block of the last image that was let go stays resident as the
 * spare, and the next load, copy or detached snapshot of about that size takes it. One spare at
 * most. The bank also numbers epochs and counts what is alive.
 *
 * Counted; each image holds a reference. Any thread; each call takes one short lock, except that
 * touching fresh memory happens outside it. */
#ifndef ENGINE_IMAGE_BANK_H
#define ENGINE_IMAGE_BANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct image;
struct image_bank;
struct image_files;

struct image_bank *image_bank_new(struct err *e);
struct image_bank *image_bank_ref(struct image_bank *b);
void image_bank_unref(struct image_bank *b); /* NULL is allowed */

/* From now on one block stays as the spare. */
void image_bank_keep_spare(struct image_bank *b);
/* Gives the spare back to the system (memory is short). */
void image_bank_drop_spare(struct image_bank *b);

/* A block of at least `bytes`; *block_bytes is what give wants back. Its content is undefined. NULL
 * with ERR_NOMEM. */
unsigned char *image_bank_take(struct image_bank *b, size_t bytes, size_t *block_bytes,
                               struct err *e);
/* The same for a load that may be cut short: while pages are touched, progress(arg, 0, bytes) is
 * called on the calling thread every few megabytes; nonzero is NULL with ERR_CANCELLED. */
unsigned char *image_bank_take_for(struct image_bank *b, size_t bytes, size_t *block_bytes,
                                   int (*progress)(void *arg, uint64_t done, uint64_t total),
                                   void *arg, struct err *e);
/* The spare, if it has at least `bytes`, however much larger it is: for who needs memory for a
 * moment and cannot wait for fresh pages. NULL: there is none; the spare stays what it was. */
unsigned char *image_bank_take_resident(struct image_bank *b, size_t bytes, size_t *block_bytes);
void image_bank_give(struct image_bank *b, unsigned char *block, size_t block_bytes);

size_t image_bank_spare_bytes(struct image_bank *b);
uint64_t image_bank_next_epoch(struct image_bank *b);
/* Images by the verified file whose tensors they hold. Known is only a private image, which nobody
 * writes; who writes into one after all forgets it first. The bank holds no reference, and an image
 * that is freed is forgotten. find gives one other than `except` with the same files
 * (image_files_same: a model is its configuration and tokenizer too), counted; NULL: none is alive.
 */
void image_bank_know(struct image_bank *b, struct image *im, const char *sha256);
void image_bank_forget(struct image_bank *b, struct image *im);
struct image *image_bank_find(struct image_bank *b, const char *sha256,
                              const struct image_files *files, const struct image *except);

/* Images alive in this process, for the limit and for the metrics. */
void image_bank_count(struct image_bank *b, int change);
int image_bank_alive(struct image_bank *b);
#endif
