/* daemon/state_dir.h - directories that one process at a time may use: a start settles what a stop
 * has left behind, and would settle what another server is still at.
 *
 * Open them before the database, keep the handles as long as the database is open, close them last.
 * The handle keeps the lock, and is owned; -1: ERR_CONFLICT (another process has it), ERR_IO. */
#ifndef DAEMON_STATE_DIR_H
#define DAEMON_STATE_DIR_H

struct err;

/* STATE_DIR, made (0700) where it is missing; <path>/cairn.lock. */
int state_dir_open(const char *path, struct err *e);
/* WEAVER_CHECKPOINT_DIR, the same; <path>/.weaver.lock, so that both may be one directory. */
int weaver_dir_open(const char *path, struct err *e);
#endif
