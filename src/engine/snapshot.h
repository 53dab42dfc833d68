/* engine/snapshot.h - an image's bytes as they are at one instant, read while serving goes on.
 *
 * snapshot_begin (engine thread, between two steps) pins the image and returns at once; nothing is
 * copied. One reader thread then calls snapshot_read with rising offsets. A writer in place
 * (commit-begin, an in-place load) must first call snapshot_detach_all: it waits for the block
 * being read, copies what has not been read yet with every core into spare memory, and later reads
 * come from there. So the pause of a save is the time of snapshot_begin, and a copy is paid only
 * when a write really overlaps. */
#ifndef ENGINE_SNAPSHOT_H
#define ENGINE_SNAPSHOT_H

#include <stddef.h>

struct engine;
struct err;
struct image;
struct snapshot;

struct snapshot *snapshot_begin(struct engine *e, struct image *im, struct err *err);
size_t snapshot_bytes(const struct snapshot *s); /* size of model.safetensors, header included */
/* Copies [offset, offset+n) to `to`. Any one thread; offset rises. 0, or -1 when a detach found no
 * memory. */
int snapshot_read(struct snapshot *s, void *to, size_t offset, size_t n, struct err *err);
void snapshot_end(struct snapshot *s); /* any thread; drops the pin */

/* Engine thread. 0; -1 with ERR_NOMEM: nothing may be written in place. */
int snapshot_detach_all(struct engine *e, const struct image *im, struct err *err);
#endif
