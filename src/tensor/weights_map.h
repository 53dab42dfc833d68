/* tensor/weights_map.h - how an image gets its memory, shared by weights.c and weights_read.c. */
#ifndef TENSOR_WEIGHTS_MAP_H
#define TENSOR_WEIGHTS_MAP_H

#include <stddef.h>

struct err;
struct st_index;
struct weights;

unsigned char *weights_map(size_t bytes, struct err *e); /* whole pages; munmap; NULL: *e */
int weights_touch(unsigned char *base, size_t bytes, struct err *e);
/* weights_new without touching the pages: for a caller that writes all of them at once. */
struct weights *weights_lay_out(const struct st_index *src, void *memory, size_t memory_bytes,
                                struct err *e);
#endif
