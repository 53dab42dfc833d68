/* store/sweep.h - start-up cleanup of the primary root.
 *
 * Removes every ".tmp-*" entry one level below a run directory, then run directories that are
 * empty. Follows no link, crosses no mount, touches nothing else and no read root. Called once,
 * with the root's lock held, before the first save. What cannot be removed is counted and left. */
#ifndef STORE_SWEEP_H
#define STORE_SWEEP_H

struct err;
struct roots;

struct sweep_report {
    int removed; /* temporary entries */
    int emptied; /* run directories */
    int failed;  /* entries left because they could not be removed; the first cause: */
    char why[320];
};

int sweep_primary(const struct roots *r, struct sweep_report *out, struct err *e);
#endif
