/* daemon/state_dir.h - the directory of the catalogue, which one process at a time may use: a start
 * settles what a stop has left behind, and would settle what another server is still at.
 *
 * Open it before the database, keep the handle as long as the database is open, close it last. */
#ifndef DAEMON_STATE_DIR_H
#define DAEMON_STATE_DIR_H

struct err;

/* Makes the directory (0700) where it is missing and locks <path>/cairn.lock. The handle that keeps
 * the lock, owned; -1: ERR_CONFLICT (another process has it), ERR_IO. */
int state_dir_open(const char *path, struct err *e);
#endif
