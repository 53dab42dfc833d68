/* engine/companions.h - the small files of a model directory that a save copies along.
 *
 * They are read into memory when the model is loaded, so that a source directory that vanishes
 * cannot break a save. Immutable after companions_read: any thread may read. */
#ifndef ENGINE_COMPANIONS_H
#define ENGINE_COMPANIONS_H

#include <stdbool.h>
#include <stddef.h>

struct companions;
struct err;

struct companion {
    const char *name; /* e.g. "tokenizer.json" */
    const char *data; /* borrowed; followed by a NUL that is not counted */
    size_t bytes;
};

enum { COMPANION_FILE_MAX = 256 << 20 }; /* bytes of one file that is kept at all */

/* config.json and every file of the list that is there and regular; with_code: also *.py at the top
 * level. generation_config.json is "{}" when absent. Owned. ERR_FORMAT: a file is too large. */
struct companions *companions_read(int dir_fd, bool with_code, struct err *e);
void companions_free(struct companions *c); /* NULL is allowed */

int companions_count(const struct companions *c);
struct companion companions_at(const struct companions *c,
                               int i); /* i in [0, count), sorted by name */
/* The same names with the same bytes. */
bool companions_same(const struct companions *a, const struct companions *b);
/* False: not there. */
bool companions_find(const struct companions *c, const char *name, struct companion *out);
#endif
