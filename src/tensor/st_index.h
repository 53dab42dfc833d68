/* tensor/st_index.h - what the files that make a struct st_index share, inside the room only. */
#ifndef TENSOR_ST_INDEX_H
#define TENSOR_ST_INDEX_H

#include "tensor/safetensors.h"

/* Appends a zeroed tensor; NULL with ERR_NOMEM. Pointers from before may dangle. */
struct st_tensor *st_index_push(struct st_index *ix, struct err *e);
int st_compare_names(const struct st_tensor *a, const struct st_tensor *b);
/* Sorts by name; -1 with ERR_FORMAT when a name occurs twice. */
int st_index_sort(struct st_index *ix, struct err *e);
/* Is the header (data_start bytes, prefix included) the one that st_index_plan would make? */
bool st_index_is_canonical(const struct st_index *ix, const void *header);
/* A name for a message: at most 80 bytes of it, cut between characters. */
const char *st_name_str(const char *name, size_t len, char out[96]);
#endif
