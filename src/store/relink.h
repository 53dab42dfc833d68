/* store/relink.h - start-up gives a run its `latest` when a crash took it.
 *
 * A process killed between the rename of a run's first step directory and the link (or a power cut
 * there) leaves a whole checkpoint in a run without `latest`. For every run of the primary root
 * with no entry of that name, the link is made: to the checkpoint that was saved last. Called once,
 * with the root's lock held, after sweep_primary and before the first save. A `latest` that is
 * there is never touched, nor is a read root, a link, or another mount. */
#ifndef STORE_RELINK_H
#define STORE_RELINK_H

struct err;
struct roots;
struct schema;

struct relink_report {
    int made;      /* links */
    int failed;    /* runs that need one and could not get it; the first cause: */
    char why[320]; /* "" while none failed */
};

/* Whole is a step directory with a manifest that is valid there and a regular model.safetensors
 * (not hashed: a load does that). Saved last is the one whose manifest.json has the latest
 * modification time, the larger step where two are equal. Without a usable schema nothing can be
 * judged and nothing is done. -1: the root itself cannot be listed. */
int relink_primary(const struct roots *r, const struct schema *s, struct relink_report *out,
                   struct err *e);
#endif
