/* store/leftovers.h - files that could not be removed, to be tried again.
 *
 * What was to be removed has no name any more for those who ask; a failure (a full disk, a path
 * that somebody keeps busy) leaves its bytes only. They stay in this list while the process lives,
 * and leftovers_retry goes through it now and then; what is left at its end the next start finds by
 * itself. Any thread. A list that is NULL notes nothing. */
#ifndef STORE_LEFTOVERS_H
#define STORE_LEFTOVERS_H

struct err;
struct leftovers;

struct leftovers *leftovers_new(struct err *e);
void leftovers_free(struct leftovers *l);

/* Removes a file or a tree below a directory, as fs_remove_tree. -1 with *e: it is noted. dir_fd is
 * borrowed for the call only. */
int leftovers_remove(struct leftovers *l, int dir_fd, const char *path, struct err *e);

/* One attempt for each; how many are gone now. *left: how many are still there. */
int leftovers_retry(struct leftovers *l, int *left);
#endif
