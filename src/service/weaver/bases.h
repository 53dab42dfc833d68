/* service/weaver/bases.h - the base model that a client names: a catalogue row, by name or by
 * repository id, with a longest sequence behind a colon if it likes. */
#ifndef SERVICE_WEAVER_BASES_H
#define SERVICE_WEAVER_BASES_H

#include <stdint.h>

struct buf;
struct image;
struct model_row;
struct refusal;
struct w_ckpt;
struct weaver;

/* The row (model_row_release), *max_tokens from the suffix or 0. base_model_not_found, or why the
 * catalogue cannot be read. */
int w_base_find(struct weaver *w, const char *name, struct model_row *row, int64_t *max_tokens,
                struct refusal *r);
/* *row_id as long as there is such a row; else the row that has the name now, as rows are made anew
 * by another registration or a reindex; 0: none. -1: the catalogue cannot be read. */
int w_base_row(struct weaver *w, int64_t *row_id, const char *name, struct refusal *r);
/* The name without that suffix: what others know the base by. */
void w_base_plain(struct weaver *w, const char *name, struct buf *out);
/* Its weights, counted; NULL with out_of_memory, or base_model_not_found for damaged files. */
struct image *w_base_image(struct weaver *w, const struct model_row *row, struct refusal *r);
struct image *w_base_image_of(struct weaver *w, int64_t row_id, struct refusal *r);
/* An adapter belongs to the base it was trained beside: compares the sha256 that its checkpoint has
 * with the base as it lies here, which the caller holds. checkpoint_incompatible. What has no
 * sha256 (shards; a checkpoint of all weights) fits. */
int w_base_fits(struct weaver *w, const struct w_ckpt *c, struct refusal *r);
#endif
