/* service/weaver/images.h - weights in memory for runs and samplers, one copy for all who ask.
 *
 * Keyed by where they lie (a catalogue row, a checkpoint). Counted by their holders; what nobody
 * holds is let go when memory is short, else after a while. A catalogue row whose own weights are
 * the resident is shared with it. Any thread; loads go one after the other. */
#ifndef SERVICE_WEAVER_IMAGES_H
#define SERVICE_WEAVER_IMAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/sha256.h"

struct err;
struct image;
struct image_cache;
struct model_row;
struct refusal;
struct service;

struct image_cache *images_new(struct service *s, struct err *e);
void images_free(struct image_cache *c); /* NULL is allowed; holders keep theirs */

/* Counted for the caller. ERR_NOMEM: the budget; ERR_FORMAT, ERR_NOT_FOUND: the directory. */
struct image *images_of_row(struct image_cache *c, const struct model_row *row, struct err *e);
/* `key` names it (a checkpoint id); sha256: of model.safetensors, checked (ERR_FORMAT). */
struct image *images_of_dir(struct image_cache *c, const char *key, int dir_fd, const char *sha256,
                            struct err *e);
/* They could be had without reading a file (checked: and without hashing one). */
bool images_at_hand(struct image_cache *c, const char *key);
bool images_row_at_hand(struct image_cache *c, int64_t row_id, bool checked);
bool images_row_held(struct image_cache *c, int64_t row_id); /* somebody holds it */
/* sha256 of the model.safetensors of a row that somebody holds, hashed once; "" when there is no
 * single file. May take seconds the first time. */
void images_row_sha256(struct image_cache *c, int64_t row_id, char out[SHA256_HEX]);
/* For memory of another kind: what nobody holds is let go until so many bytes are free.
 * INSUFFICIENT_MEMORY: they are not, without it either. */
int images_make_way(struct image_cache *c, size_t bytes, struct refusal *r);
void images_sweep(struct image_cache *c);
#endif
