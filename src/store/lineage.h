/* store/lineage.h - from a checkpoint back to its base, by the parent of each manifest.
 *
 * Reads manifests only. Memory: under 70 bytes an entry for the cycle check, and one manifest.
 * Needs no lock; runs beside saves and loads. */
#ifndef STORE_LINEAGE_H
#define STORE_LINEAGE_H

#include <stdbool.h>

#include "base/buf.h"
#include "store/name.h"

struct err;
struct manifest;
struct roots;
struct schema;

enum lineage_break {
    LINEAGE_COMPLETE, /* reached parent: null */
    LINEAGE_MANIFEST_MISSING,
    LINEAGE_MANIFEST_INVALID, /* also a place or a parent that leads out of its root */
    LINEAGE_NAME_MISMATCH,
    LINEAGE_CYCLE,
    LINEAGE_DEPTH_LIMIT,
    LINEAGE_AMBIGUOUS,
};
const char *
lineage_break_name(enum lineage_break b); /* "manifest_missing" ...; NULL when complete */

struct lineage_entry {
    const struct manifest *manifest;
    const char *path; /* "<run_id>/step-<NNNNNN>" */
    const char *root; /* as configured */
};

struct lineage_end {
    enum lineage_break reason;
    struct buf at; /* name of the checkpoint at the break; empty when complete */
    int depth;     /* entries handed out */
};

/* Walks from `name` (youngest first). on_entry may be NULL; its entry is borrowed during the call,
 * and -1 from it ends the walk with that error. 0: *out tells how the walk ended (release it). -1:
 * no memory, unusable schema. */
int lineage_walk(const struct roots *r, const struct schema *s, const char *name, int max_depth,
                 int (*on_entry)(void *arg, const struct lineage_entry *entry, struct err *e),
                 void *arg, struct lineage_end *out, struct err *e);
void lineage_end_release(struct lineage_end *end);

/* As docs/api/weights.md has them: the object of one entry of `chain`; `break`, null when complete.
 */
void lineage_write_entry(struct buf *b, const struct lineage_entry *entry);
void lineage_write_break(struct buf *b, const struct lineage_end *end);
#endif
